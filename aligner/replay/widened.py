"""A port that computes in a short type once more in float32, where small mistakes show: its layers and its own code.

A copy of the whole port runs one forced pass in float32. What is still wrong there is no rounding of the short type's.
Code that rounds to a short type by itself is judged by that type alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Optional

import numpy as np

from aligner.adapter import Adapter
from aligner.capture.tally import Tally
from aligner.compare.casts import is_short
from aligner.compare.checks import OTHER_FORM, ROUNDING, Check, in_float32
from aligner.dtypes import DTYPES, decode
from aligner.record import Array, Key, Phase, Record
from aligner.replay import coordinates
from aligner.replay.alone import Alone
from aligner.replay.forced import ForcedPass
from aligner.replay.frames import Plan
from aligner.replay.precision import SHORT
from aligner.replay.rounding import DOUBTFUL, ByItself, disturbed
from aligner.structure import Tensors, flatten_arguments

LONG = "float32"

Made = Optional[Callable[[object], None]]

CASTING = ("cast", "to", "type", "type_as", "half", "bfloat16")

COARSE = 0.05
"""A layer that is right in float32 may be off by this much in a short type: a softmax of large values is."""

SHARE = 0.2
"""What is off by less than this part of an error is not what makes it."""


class Widened:
    """One forced pass of a copy of the port in float32; `checks` says what is wrong there."""

    def __init__(self, adapter: Adapter, alone: Alone, plan: Plan) -> None:
        """Raises whatever copying the port raises."""
        self._alone, self._plan = alone, plan
        self._copy, self._run = alone.widened(LONG)
        self._kept = _Kept()
        self._forced = ForcedPass(adapter, self._copy, replace(plan, short=None, cast={}), self._kept)
        self._roundings = _Roundings(adapter, self._copy)

    def run(self, steps: Sequence[int]) -> None:
        """All steps; what the port raises goes up."""
        with self._roundings.heard():
            for step in steps:
                self._forced.run(step, partial(self._run, step))

    def checks(self) -> Mapping[Key, Check]:
        """What was found of each value, by the port's address."""
        checks = disturbed(self._forced, self._run, self.kept, DTYPES[LONG].eps or 0.0)
        found, by_itself = {}, ByItself(self._alone, LONG)
        for check in checks:
            doubtful = check.suspicious and check.kept and check.ratio < DOUBTFUL
            if doubtful and check.where == "glue" and not self.rounds(check):
                check = replace(check, expected=max(check.expected, self._angles(check)))
                if check.suspicious:
                    explained = by_itself.rounds(check, self.kept(check))
                    check = replace(check, expected=max(check.expected, explained))
            found[check.port] = check
        return found

    def rounds(self, check: Check) -> bool:
        """Whether the code that made this value rounds to a short type by itself."""
        return check.owner in {self._plan.layers.get(path, path) for path in self._roundings.layers}

    def kept(self, check: Check) -> Optional[Array]:
        """The numbers of a value that is suspicious."""
        record = self.record(check.port)
        return None if record is None else decode(record.array, record.dtype)

    def record(self, port: Key) -> Optional[Record]:
        """The same with the exact bits."""
        return self._kept.values.get(port._replace(phase=Phase.FORCED))

    def _angles(self, check: Check) -> float:
        kept = self.kept(check)
        return 0.0 if kept is None else coordinates.of_angles(check, kept, self._plan.entries)


def judged(checks: Sequence[Check], widened: Widened, forced: ForcedPass, plan: Plan) -> Iterator[tuple[Check, bool]]:
    """The checks, with what is wrong in float32 and hidden by a short type; and whether more cannot be found out."""
    found = widened.checks()
    for check in checks:
        other = found.get(check.port) if is_hiding(check, plan) else None
        known = other is not None and (other.where, other.owner, other.isolated) == (check.where, check.owner, True)
        if other is None or not known:
            yield check, False
        elif other.suspicious and widened.rounds(check):
            yield check, True
        else:
            yield _judged(check, other, widened, forced), True


def is_hiding(check: Check, plan: Plan) -> bool:
    """Whether a short type rounds what is made here, and does so on the port's side alone.

    A reference that computes in a short type itself has nothing that small mistakes could be seen against.
    """
    entry = plan.entries.get(check.port)
    if check.where == "inputs" or check.reason == OTHER_FORM or entry is None or DTYPES[entry.dtype].exact:
        return False
    if plan.lowered.get(check.owner) or check.key.layer in plan.lowered or entry.dtype in SHORT:
        return False
    return plan.short is not None or bool(check.cast) or check.owner in plan.cast


def rounded(check: Check, error: float) -> Check:
    """The check of a layer that is off by `error` in float32: what is right there is off by its precision."""
    explained = min(check.error, COARSE) if is_finite(check) and not check.cast else 0.0
    return replace(check, alone=error, expected=max(check.expected, explained))


def is_finite(check: Check) -> bool:
    """Whether the short type makes numbers of what it rounds here."""
    return bool(np.isfinite(check.error)) and (check.deviation is None or not check.deviation.nonfinite)


def _judged(check: Check, other: Check, widened: Widened, forced: ForcedPass) -> Check:
    """The check with what the same place does in float32."""
    layer = check.where == "layer"
    if not other.suspicious:
        return rounded(check, min(other.error, ROUNDING)) if layer else check
    if check.suspicious and other.error < SHARE * check.error and not (layer and is_finite(check)):
        return check  # the short type does more, an overflow for one
    if other.follows:
        return replace(check, follows=True)
    record = widened.record(other.port)
    if record is None or not is_finite(other):
        return check
    forced.values.keep(check.port._replace(slot=in_float32(check.port.slot)), record.dtype, record.array)
    check = rounded(check, other.error) if layer else check
    return replace(check, alone=other.error, deviation=other.deviation, facts=other.facts, follows=False, isolated=True)


class _Kept(Tally):
    """Keeps the values that a forced pass would write into a dump."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[Key, Record] = {}

    def write(self, record: Record) -> None:
        """Keep one."""
        self.values[record.key] = replace(record, array=record.array.copy())


class _Roundings:
    """Which layers' own code has to do with numbers of a short type all the same: by a cast, or a constant."""

    def __init__(self, adapter: Adapter, model: Any) -> None:
        self._adapter, self._model = adapter, model
        self._stack: list[str] = []
        self.layers: set[str] = set()

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen to what runs in the block."""
        with ExitStack() as stack:
            for path, layer in self._adapter.layers(self._model):
                stack.callback(
                    self._adapter.observe(layer, partial(self._before, path), partial(self._after, path)).remove
                )
            stack.callback(self._adapter.computations(self._computed).remove)
            executions = getattr(self._adapter, "executions", None)
            told = executions(self._begun) if executions is not None else self._adapter.operations(self._named)
            stack.callback(told.remove)
            yield

    def _before(self, path: str, args: object, kwargs: object) -> None:
        if not path:  # a run before it may have raised
            self._stack.clear()
        self._stack.append(path)

    def _after(self, path: str, args: object, kwargs: object, output: object) -> None:
        while self._stack.pop() != path:  # calls whose layer raised, and somebody caught it
            pass

    def _computed(self, name: str, dtype: str) -> None:
        if self._stack and is_short(dtype):
            self.layers.add(self._stack[-1])

    def _named(self, name: str) -> None:
        """Where an adapter does not tell what goes in and comes out, any cast may be one to a short type."""
        if self._stack and name in CASTING:
            self.layers.add(self._stack[-1])

    def _begun(self, name: str, args: tuple[object, ...], kwargs: Mapping[str, object], where: object) -> Made:
        if not self._stack or self._stack[-1] in self.layers:
            return None
        self._look(args, kwargs)
        return lambda output: self._look((output,), {})

    def _look(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        found: Tensors = []
        flatten_arguments(args, kwargs, self._adapter.is_tensor, found)
        if self._stack and any(is_short(self._adapter.dtype(tensor)) for _, tensor in found):
            self.layers.add(self._stack[-1])
