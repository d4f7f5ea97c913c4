"""Layers that hand on a value at once, where it is known what they would make, and compute nothing.

A leaf of the framework's own that made the right thing of what the reference's was given does so again where a forced
pass runs once more, and what was found of it stands. What a run costs is then what runs anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

from aligner.adapter import Adapter
from aligner.compare.checks import Check
from aligner.compare.net import CallId, is_input
from aligner.patches import Handle, together
from aligner.replay.frames import Frame, Plan
from aligner.source.ear import replaced

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

Due = dict[str, Callable[[], object]]
"""By layer, what makes the value that its next call hands on."""

Made = tuple[int, CallId]
"""A call of the port's: the step, and which it is in it."""


def answered(
    adapter: Adapter, layers: Mapping[str, object], due: Due, made: Callable[[str, object], None] = lambda *_: None
) -> Handle:
    """Until the end these layers compute nothing in a call that begins while something is `due` of them.

    `made` gets what the others have computed.
    """

    def called(path: str, inner: Callable[..., object], *args: object, **kwargs: object) -> object:
        answer = due.pop(path, None)
        if answer is not None:
            return answer()
        result = inner(*args, **kwargs)
        made(path, result)
        return result

    with together() as handle:
        for path, layer in layers.items():
            owner, name = adapter.computing(layer)
            handle.add(replaced(owner, name, partial(called, path, getattr(owner, name))))
        return handle


def leaves(adapter: Adapter, model: Any) -> dict[str, object]:
    """The framework's own layers that have weights and learn nothing: what takes time in a run."""
    if not hasattr(adapter, "computing"):  # an adapter of others' may not tell
        return {}
    weighed = {parameter.layer for parameter in adapter.parameters(model)}
    return {
        path: layer
        for path, layer in adapter.layers(model)
        if path in weighed
        and type(layer).__module__.partition(".")[0] in adapter.packages
        and not adapter.training(layer)
    }


class Answers:
    """What layers have made in earlier runs of the pass."""

    def __init__(self, adapter: Adapter, model: Any, plan: Plan) -> None:
        self._adapter = adapter
        self._plan = plan
        found = leaves(adapter, model) if plan.held and plan.given is None else {}
        self._leaves = {path: layer for path, layer in found.items() if path not in plan.uses.around}
        self._made: dict[Made, tuple[Entry, Check]] = {}
        """What a call hands on, and what was found of it."""
        self._due: Due = {}
        self._several: set[str] = set()
        """Layers that hand on more than a tensor."""

    def installed(self) -> Handle:
        """For a run: layers that were right answer at once, where they are asked."""
        self._due.clear()
        return answered(self._adapter, self._leaves, self._due, self._computed)

    def _computed(self, path: str, result: object) -> None:
        self._several |= set() if self._adapter.is_tensor(result) else {path}

    def asked(self, step: int, frame: Frame, given: int, checks: Sequence[Check]) -> None:
        """A call begins, of so many tensors; `checks` tell of them."""
        self._due.pop(frame.path, None)  # of a call that somebody else has answered
        known = self._made.get((step, CallId(frame.path, frame.number)))
        if known is None or frame.call != CallId(known[1].key.layer, known[1].key.call):
            return  # by now it stands for another call of the reference's
        if given == len(checks) and all(map(_is_right, checks)):
            self._due[frame.path] = lambda: self._adapter.from_numpy(known[0].raw(), known[0].dtype)

    def ran(self, checks: list[Check], learning: bool) -> None:
        """A run has ended: what was found where layers answered stands again, and who was right answers from now on."""
        if not learning:  # it was given other values
            return
        calls: dict[Made, list[int]] = {}
        for place, check in enumerate(checks):
            if check.port.layer in self._leaves:
                calls.setdefault(_call(check), []).append(place)
        for call, places in calls.items():
            *given, made = (checks[place] for place in places)
            known = self._made.get(call)
            same = known is not None and (made.port, made.key) == (known[1].port, known[1].key)
            if known is not None and same and not (made.error or made.reason):
                checks[places[-1]] = known[1]
            elif given and all(map(_is_right, [*given, made])) and not is_input(made.port.slot):
                entry = self._as_made(made)
                if entry is not None:
                    self._made[call] = entry, made

    def _as_made(self, check: Check) -> Optional[Entry]:
        """The reference's value, if the free run's has its shape and type, and it is all that was handed on."""
        pairs = self._plan.results.get(_call(check), ())
        if check.port.layer in self._several or len(pairs) != 1:
            return None
        one, other = pairs[0].reference, pairs[0].port
        if one is None or other is None or self._plan.entries.get(check.port) is not one or one.key != check.key:
            return None
        return one if (one.shape, one.dtype) == (other.shape, other.dtype) and other.key == check.port else None


def _call(check: Check) -> Made:
    return check.port.step, CallId(check.port.layer, check.port.call)


def _is_right(check: Check) -> bool:
    """Whether the reference's value was handed on for it, and differs by rounding alone."""
    return not (check.suspicious or check.reason or check.follows or check.axes)
