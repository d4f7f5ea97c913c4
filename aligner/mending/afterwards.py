"""The net as a whole with the edits so far, nothing held to the reference: a value that is right then was wrong for
what it was made of, and is no mistake of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare.checks import OTHER_SHAPE, Check
from aligner.compare.net import is_input
from aligner.mending.care import UNBOUND, Care, Tables
from aligner.mending.sources import Sources
from aligner.record import Call, Key, Phase
from aligner.source.ear import Ear
from aligner.source.listening import Deaf
from aligner.structure import Tensors, flatten_arguments, flatten_result
from aligner.values import Values

if TYPE_CHECKING:
    from aligner.mending.running import Running

RIGHT, SHARE = 1e-3, 0.1
"""How far off a value may be in such a run, where rounding adds up, and how much of its error may be left."""


class Afterwards:
    """Tells what edits clear up of `checks` beside what they were found for."""

    def __init__(self, running: Running, checks: Sequence[Check], calls: Iterable[Call]) -> None:
        self._running, self._checks = running, checks
        whole = [call for call in calls if not call.layer]
        steps = [call.step for call in whole]
        self._whole = [call for call in whole if steps.count(call.step) == 1]
        self._known: Optional[tuple[Sources, Set[Key]]] = None

    def cleared(self, sources: Sources, anew: bool) -> Set[Key]:
        """Values that are right with these edits, by the port's address; as known before where nothing runs `anew`."""
        if not sources.texts:
            return set()
        if self._known is None or (anew and self._known[0] is not sources):
            self._known = sources, {key for call in self._whole for key in self._of(call, sources)}
        return self._known[1]

    def _of(self, call: Call, sources: Sources) -> Set[Key]:
        mine = [check for check in self._checks if check.port.step == call.step]
        wrong = [check for check in mine if check.fails]
        errors: Mapping[Key, float] = {}
        with suppress(Exception):  # what raises clears nothing
            errors = self._errors(call, mine, sources) if wrong else {}
        ends = [check for check in mine if not (check.port.layer or is_input(check.port.slot) or check.reason)]
        all_right = bool(ends) and all(errors.get(check.port, math.inf) <= RIGHT for check in ends)
        return {
            check.port
            for check in wrong
            if (all_right and check.reason == OTHER_SHAPE)
            or errors.get(check.port, math.inf) <= min(RIGHT, SHARE * check.error)
        }

    def _errors(self, call: Call, checks: Sequence[Check], sources: Sources) -> Mapping[Key, float]:
        adapter = self._running.adapter
        care = Care(Values(adapter), True, tables=Tables(self._running.tables, sizes=[UNBOUND]))
        run = _Free(self._running, self._running.ear(Deaf(), sources, care), call, checks)
        self._running.run(run, False)
        return run.errors


class _Free:
    """Such a run that is under way."""

    def __init__(self, running: Running, ear: Ear, call: Call, checks: Sequence[Check]) -> None:
        self.call, self.arguments = call, running.ground.arguments(call)
        self.errors: dict[Key, float] = {}
        """How far each value is off, by its address."""
        self._running, self._ear = running, ear
        self._counts = {**running.ground.before(call)}
        self._asked = {check.port: check for check in checks}

    def called(self, path: str, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A layer is called."""
        number = self._counts.get(path, 0)
        self._counts[path] = number + 1
        found: Tensors = []
        flatten_arguments(args, kwargs, self._running.adapter.is_tensor, found)
        self._look(path, number, found)
        output = (self._ear.form(inner) or inner)(*args, **kwargs)
        found = []
        flatten_result(output, self._running.adapter.is_tensor, found)
        self._look(path, number, found)
        return output

    def _look(self, path: str, number: int, found: Tensors) -> None:
        for slot, tensor in found:
            key = Key(self.call.step, Phase.FORWARD, path, number, slot)
            check = self._asked.get(key)
            if check is not None and not check.by_effect:
                with suppress(LookupError):
                    self.errors[key] = self._running.ground.off(check, tensor)
