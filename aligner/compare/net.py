"""What pairing needs to know of one dump: its layers, its calls as they nest, and where each record belongs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Optional

from aligner.findings import TRAINING
from aligner.record import Call, Layer, Phase
from aligner.selection import EVERYTHING

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry

Shapes = tuple[tuple[int, ...], ...]

WEIGHTS = frozenset({"weight", "bias"})
"""What every layer learns, or keeps as it was learnt."""

NEUTRAL = frozenset({"num_batches_tracked"})
"""Buffers that only count; a port need not have them (MindSpore has none)."""


DEEPEST = 1000
"""Calls in calls: Python itself goes no deeper."""

LISTS = frozenset({"ParameterList", "ParameterDict"})
"""Kinds that hold parameters and are never called."""

STATISTICS = frozenset({"running_mean", "running_var"})
"""Buffers that are learnt."""


class CallId(NamedTuple):
    """A call of a layer; `number` counts within a step."""

    layer: str
    number: int


@dataclass
class Visit:
    """One call: its tensors in the first step that has it, and the calls it stands in and has inside."""

    call: Call
    inputs: list[Entry] = field(default_factory=list)
    outputs: list[Entry] = field(default_factory=list)
    parent: Optional[Visit] = None
    children: list[Visit] = field(default_factory=list)

    @property
    def id(self) -> CallId:
        """Layer and number."""
        return CallId(self.call.layer, self.call.number)

    @property
    def shapes(self) -> tuple[Shapes, Shapes]:
        """Of inputs and outputs."""
        return tuple(e.shape for e in self.inputs), tuple(e.shape for e in self.outputs)


@dataclass(frozen=True)
class Net:
    """One side. `visits` are the forward calls of the first step, in a training of the longest, in order of entry."""

    layers: Mapping[str, Layer]
    visits: Sequence[Visit]
    parameters: Mapping[str, Mapping[str, Entry]]
    """By layer and role, from the first step."""
    inner: frozenset[str]
    """Layers that have other layers' calls inside theirs."""
    constants: frozenset[tuple[str, str]] = frozenset()
    """Layer and role of buffers that hold no statistics (masks, tables): one net stores them, the other works them
    out anew, and what they do shows in values that are compared."""
    selected: tuple[str, ...] = EVERYTHING
    """Patterns of the layers that were recorded at all (`aligner capture --layers`)."""
    weighed: bool = True
    """Parameters were recorded; not so with `aligner capture --no-weights`."""
    cut: bool = False
    """It raised in this very step: calls and layers are missing at its end."""
    partial: bool = False
    """Imported from what operators tell (`aligner import`): what is not in it may have run all the same."""
    complete: bool = True
    """The capture came to its end: what is not in it was not handed out."""
    idle: frozenset[str] = frozenset()
    """Layers that never ran."""

    def kind(self, layer: str) -> str:
        """The layer's kind; "" for one that was not declared (the loss)."""
        known = self.layers.get(layer)
        return known.spec.kind if known is not None else ""

    @cached_property
    def roots(self) -> frozenset[str]:
        """Layers that no other layer called: the net itself, as a rule."""
        return frozenset(visit.call.layer for visit in self.visits if visit.parent is None)

    @cached_property
    def paths(self) -> list[str]:
        """All layers: those declared, and those that only have records."""
        seen = dict.fromkeys(self.layers)
        seen.update(dict.fromkeys(visit.call.layer for visit in self.visits))
        seen.update(dict.fromkeys(self.parameters))
        return list(seen)

    def by_layer(self) -> Mapping[str, list[Visit]]:
        """The visits of each layer, in order."""
        found: dict[str, list[Visit]] = {}
        for visit in self.visits:
            found.setdefault(visit.call.layer, []).append(visit)
        return found

    def weights(self, layer: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Roles and shapes of the layer's own parameters, without those that only count and without constants."""
        own = self.parameters.get(layer, {})
        kept = (role for role in own if role not in NEUTRAL and (layer, role) not in self.constants)
        return tuple(sorted((role, own[role].shape) for role in kept))


def survey(dump: Dump) -> Net:
    """Read the structure of a dump from its index; no data is read."""
    parameters: dict[str, dict[str, Entry]] = {}
    steps = by_step(dump.calls)
    step = min(steps, default=0)
    if any(kind == TRAINING for kind, _ in dump.findings):  # an evaluation may run in one of them besides
        step = min((s for s in steps if len(steps[s]) == max(map(len, steps.values()))), default=0)
    visits = nest(steps.get(step, ()))
    where = {visit.id: visit for visit in visits}
    begun: dict[CallId, int] = {}
    for entry in dump.entries:
        key = entry.key
        if key.phase is Phase.PARAMETER:
            parameters.setdefault(key.layer, {}).setdefault(key.slot, entry)
        elif key.phase is Phase.FORWARD:
            visit = where.get(CallId(key.layer, key.call))
            if visit is not None and begun.setdefault(visit.id, key.step) == key.step:
                (visit.inputs if is_input(key.slot) else visit.outputs).append(entry)
    inner = frozenset(visit.call.layer for visit in visits if visit.children)
    return Net(
        dump.layers,
        visits,
        parameters,
        inner,
        _constants(dump),
        _selected(dump),
        dump.header.get("weights") is not False,
        (dump.header.get("stopped") or {}).get("step") == step,
        "imported" in dump.header,
        dump.complete,
        idle(dump),
    )


def idle(dump: Dump) -> frozenset[str]:
    """Layers that never ran, nor any around them but the net itself: heads that are for training alone."""
    called = {call.layer for call in dump.calls if call.phase is Phase.FORWARD}
    some = "imported" in dump.header or bool(dump.header.get("stopped")) or _selected(dump) != EVERYTHING
    if not called or some or not dump.complete:
        return frozenset()
    layers = (path for path, layer in dump.layers.items() if path and layer.spec.kind not in LISTS)
    return frozenset(path for path in layers if not called.intersection(one for one in (path, *ancestors(path)) if one))


def _selected(dump: Dump) -> tuple[str, ...]:
    patterns = dump.header.get("selected")
    return tuple(map(str, patterns)) if isinstance(patterns, (list, tuple)) else EVERYTHING


def _constants(dump: Dump) -> frozenset[tuple[str, str]]:
    """By the header's table of parameters: layer, role, name, trainable, buffer.

    A parameter that is not learnt, of a net that learns others, is a table that its author has worked out.
    """
    rows = dump.header.get("parameters")
    table = [row for row in (rows if isinstance(rows, (list, tuple)) else ()) if isinstance(row, (list, tuple))]
    table = [row for row in table if len(row) >= 5 and row[1] not in STATISTICS]
    learns = any(row[3] is True for row in table)
    frozen = [row for row in table if row[3] is False and row[4] is False and learns and row[1] not in WEIGHTS]
    found = {(str(row[0]), str(row[1])) for row in (*(row for row in table if row[4] is True), *frozen)}
    return frozenset(found)


def by_step(calls: Iterable[Call]) -> Mapping[int, list[Call]]:
    """The forward calls of each step."""
    found: dict[int, list[Call]] = {}
    for call in calls:
        if call.phase is Phase.FORWARD:
            found.setdefault(call.step, []).append(call)
    return found


def nest(calls: Iterable[Call]) -> list[Visit]:
    """Calls in order of entry, each knowing its parent. A call that raised ends where its parent does."""
    visits: list[Visit] = []
    stack: list[Visit] = []
    for call in sorted(calls, key=lambda c: c.first):
        while stack and stack[-1].call.last is not None and stack[-1].call.last < call.first:
            stack.pop()
        if len(stack) > DEEPEST:  # calls that raised, one after the other: nothing tells when
            stack = [visit for visit in stack if visit.call.last is not None and visit.call.last >= call.first]
        parent = stack[-1] if stack else None
        visit = Visit(call, parent=parent)
        if parent is not None:
            parent.children.append(visit)
        visits.append(visit)
        stack.append(visit)
    return visits


def is_input(slot: str) -> bool:
    """Whether a slot of a call is on the input side."""
    return slot.partition(".")[0] == "input"


def unnumbered(path: str) -> str:
    """The path without its numbers: blocks.0.norm and blocks.1.norm stand for the same line of code."""
    return ".".join("*" if word.isdigit() else word for word in path.split("."))


def ancestors(path: str) -> Iterable[str]:
    """The paths of the layers around this one, the nearest first, ending with the net itself."""
    while path:
        path = path.rpartition(".")[0]
        yield path
