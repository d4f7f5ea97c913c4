"""Which values were made of weights that are not those in the dump: an optimizer or the user's code has changed them.

A layer that ran on other weights is not wrong by itself if its values differ. So from the first call of such a layer
on, the values of that step are compared, and no layer is judged by them; what comes before it in the step is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aligner.findings import MOVED
from aligner.record import Phase, Scalar, display

if TYPE_CHECKING:
    from aligner.compare.reading import Reading
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

BOTH, REFERENCE, PORT = "unjudged-both", "unjudged-reference", "unjudged-port"
"""Whose weights were changed: the reasons of verdicts."""

ABSENT = "unmatched-moved"
"""The reason of a record of such a step, where the other dump does not have that step at all."""

MIXED = "unjudged-mixup"
"""The reason of all records that differ where the dumps were mixed up (aligner.compare.mixup)."""

UNJUDGED = (BOTH, REFERENCE, PORT, MIXED)
APART = (REFERENCE, PORT)
"""Values that were made of other weights on one side alone cannot be set side by side."""

TOLD = {
    BOTH: "weights-moved",
    REFERENCE: "weights-moved-reference",
    PORT: "weights-moved-port",
    ABSENT: "steps-not-compared",
}
"""The warning for each."""


@dataclass(frozen=True)
class Moved:
    """Of one dump."""

    starts: Mapping[int, int]
    """The order number from which on a step's values are made of other weights."""
    layers: tuple[str, ...] = ()
    """Layers whose weights were changed, in the net's order."""

    def holds(self, entry: Entry) -> bool:
        """Whether this value was made of other weights."""
        return entry.key.phase is not Phase.PARAMETER and entry.order >= self.starts.get(entry.key.step, math.inf)

    @property
    def steps(self) -> list[int]:
        """The steps in which some are."""
        return sorted(self.starts)


def moved(dump: Dump) -> Moved:
    """What the capture has found out; nothing for a dump of an older aligner."""
    changes = sorted((order, layers) for order, layers in map(_change, _facts(dump)) if order >= 0)
    starts: dict[int, int] = {}
    named: dict[str, None] = {}
    at, now = 0, frozenset[str]()
    for call in sorted(dump.calls, key=lambda call: call.first) if changes else ():
        while at < len(changes) and changes[at][0] <= call.first:
            now = frozenset(changes[at][1])
            named.update(dict.fromkeys(changes[at][1]))
            at += 1
        if call.phase is Phase.FORWARD and call.layer in now:
            starts.setdefault(call.step, call.first)
    places = {path: place for place, path in enumerate(dump.layers)}
    return Moved(starts, tuple(sorted(named, key=lambda path: places.get(path, len(places)))))


def _facts(dump: Dump) -> Iterator[Mapping[str, Any]]:
    return (facts for kind, facts in dump.findings if kind == MOVED)


def _change(facts: Mapping[str, Any]) -> tuple[int, list[str]]:
    """From a dump, which anybody may have written."""
    order, layers = facts.get("order"), facts.get("layers")
    if type(order) is not int or not isinstance(layers, list):
        return -1, []
    return order, [layer for layer in layers if isinstance(layer, str)]


class Unjudged:
    """The readings of one comparison that no layer is judged by."""

    def __init__(self, reference: Dump, port: Dump, readings: Sequence[Reading]) -> None:
        self._moved = moved(reference), moved(port)
        self._steps = set(reference.steps), set(port.steps)
        self._reasons = {id(r): reason for r in readings if (reason := self._reason(r))} if any(self.steps) else {}
        self.failing: tuple[Reading, ...] = ()
        """Those that differ."""
        self.failing = tuple(r for r in readings if r.over and not r.covered and self.reason(r) in UNJUDGED)
        self._absent = {r.pair.key.step for r in readings if self.reason(r) == ABSENT}

    @property
    def steps(self) -> tuple[list[int], list[int]]:
        """The steps of reference and port that ran, from some call on, on other weights."""
        return self._moved[0].steps, self._moved[1].steps

    def reason(self, reading: Reading) -> str:
        """Why it is not judged by, "" if it is: one of the words above."""
        return self._reasons.get(id(reading), "")

    def _reason(self, reading: Reading) -> str:
        one, other = reading.pair.reference, reading.pair.port
        if one is None or other is None:
            step, alone, lacking = reading.pair.key.step, *((1, 0) if one is None else (0, 1))
            forward = reading.pair.key.phase is not Phase.PARAMETER
            return ABSENT if forward and step in self._moved[alone].starts and step not in self._steps[lacking] else ""
        sides = [known.holds(entry) for entry, known in zip((one, other), self._moved)]
        if not any(sides):
            return ""
        return BOTH if all(sides) else REFERENCE if sides[0] else PORT

    def cautions(self) -> Iterator[tuple[str, Mapping[str, Scalar]]]:
        """What is to be told where such values differ, or were not compared."""
        for reason in (BOTH, REFERENCE, PORT):
            found = [reading for reading in self.failing if self.reason(reading) == reason]
            if found:
                named = self._moved[1 if reason == PORT else 0].layers
                facts: dict[str, Scalar] = {"step": min(r.pair.key.step for r in found), "records": len(found)}
                yield TOLD[reason], {**facts, "count": len(named), "layer": display(named[0])}
        if self._absent:
            yield TOLD[ABSENT], {"steps": len(self._absent), "step": min(self._absent)}
