"""Records without a counterpart whose value was compared all the same, or whose effect was.

- The same bits were compared under another key: an activation that the other side wrote as a function leaves its
  output as the next layer's input.
- It lies inside a layer whose counterpart is one piece (the cells inside MindSpore's LSTM).
- It is a layer that only holds others (a wrapper), all of which have counterparts or are covered.
- It holds no weights, and what the layer around it hands on agrees: a missing step would show there. The same goes
  for an argument that only one side passes to a layer whose outputs agree.
- It is part of an output that the other side hands on in one piece (a packed sequence, here its data and its batch
  sizes), and the code around goes on with values that agree.
- It is a buffer that only counts, or a constant that the other side works out anew.
- It is a parameter of a layer that never ran.

Anything else stays unmatched. What the other side was not asked to record is allowed to be, and what its layer does
not hand out (attention weights, a cache, a loss) is not compared: what the port makes of it shows behind that layer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TYPE_CHECKING, NamedTuple, Optional

import numpy as np

from aligner.compare.layers import Pairing
from aligner.compare.net import NEUTRAL, CallId, Net, Visit, is_input
from aligner.compare.pairing import CALLS
from aligner.compare.reading import Reading
from aligner.compare.stop import NOT_RUN
from aligner.record import Phase, Scalar, display
from aligner.selection import matches

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

LEFT_OUT = "unmatched-left-out"
"""The reason of records that are allowed to be missing, since nobody asked for them."""

ONE_SIDED = "unmatched-one-sided"
"""The reason of what a call hands out on one side alone: it is not compared, and what is made of it is."""

BY_VALUE = ("covered-elsewhere", "covered-border", "covered-border-held")
"""Reasons of values that were compared themselves, though no layer of the other side stands there; of all others only
what comes of them was."""

_Why = Optional[tuple[str, Mapping[str, Scalar]]]


class _Point(NamedTuple):
    """The inputs or the outputs of a call in a step."""

    step: int
    call: CallId
    given: bool


def cover(readings: Sequence[Reading], reference: Net, port: Net, pairing: Pairing) -> None:
    """Mark the unmatched readings of both sides that are covered, with the reason."""
    back = {other: one for one, other in pairing.calls.items()}
    agreement = _agreement(readings)
    right = _right_weights(readings, 0, reference), _right_weights(readings, 1, port)
    names = {pair.reference: pair.port for pair in pairing.layers}
    _Side(reference, 0, pairing.calls, port, agreement[0], names, right[0]).mark(readings)
    names = {other: one for one, other in names.items()}
    _Side(port, 1, back, reference, agreement[1], names, right[1]).mark(readings)


def _agreement(readings: Iterable[Reading]) -> tuple[dict[_Point, bool], dict[_Point, bool]]:
    """For each side, the inputs and outputs of calls that were compared, and whether all of them agree."""
    agree: tuple[dict[_Point, bool], dict[_Point, bool]] = ({}, {})
    for reading in readings:
        if not reading.matched or reading.pair.key.phase not in CALLS:
            continue
        for entry, table in zip((reading.pair.reference, reading.pair.port), agree):
            if entry is not None:
                key = entry.key
                point = _Point(key.step, CallId(key.layer, key.call), is_input(key.slot))
                table[point] = table.get(point, True) and reading.good
    return agree


def _right_weights(readings: Iterable[Reading], side: int, net: Net) -> frozenset[str]:
    """The layers of one side all of whose parameters were compared, and agree."""
    found: dict[str, bool] = {}
    for reading in readings:
        entry = reading.pair.reference if side == 0 else reading.pair.port
        if entry is not None and reading.pair.key.phase is Phase.PARAMETER and entry.key.slot not in NEUTRAL:
            layer = entry.key.layer
            if (layer, entry.key.slot) in net.constants:
                continue
            found[layer] = found.get(layer, True) and reading.matched and not reading.over
    return frozenset(layer for layer, right in found.items() if right)


class _Side:
    """One net, and what is needed to judge its records without a counterpart."""

    def __init__(
        self,
        net: Net,
        side: int,
        counterpart: Mapping[CallId, CallId],
        other: Net,
        agreement: Mapping[_Point, bool],
        names: Mapping[str, str],
        right: Set[str],
    ) -> None:
        self._net = net
        self._side = side
        self._counterpart = counterpart
        self._agreement = agreement
        self._names = names
        self._right = right
        self._weighed: Set[str] = right
        """Layers with right weights, as far as they count for the record that is judged."""
        self._other = other
        self._visits = {visit.id: visit for visit in net.visits}
        self._place = {visit.id: index for index, visit in enumerate(net.visits)}
        self._whole = {v.id for v in other.visits if not v.children}
        self._ended = {v.id for v in other.visits if v.call.last is not None and other.complete}
        self._handed = {v.id: [entry.key.slot for entry in v.outputs] for v in other.visits}

    def mark(self, readings: Sequence[Reading]) -> None:
        """Judge the records of this side that have no counterpart."""
        compared: dict[object, Entry] = {}
        missing: list[tuple[Entry, Reading]] = []
        for reading in readings:
            entry = reading.pair.reference if self._side == 0 else reading.pair.port
            if entry is None:
                continue
            if not reading.matched:
                if not reading.covered and reading.reason != NOT_RUN:
                    missing.append((entry, reading))
            elif reading.deviation is not None:
                compared.setdefault(entry.content, entry)
        for entry, reading in missing:
            left_out = self._left_out(entry)
            self._weighed = self._right if not left_out else frozenset()
            why = self._same_value(entry, compared) or self._effect(entry)
            if why is not None:
                reading.covered, reading.over = True, False
                reading.reason, reading.facts = why
            elif left_out:
                reading.reason, reading.over = LEFT_OUT, False
            elif self._given_here_alone(entry):
                reading.reason, reading.over = ONE_SIDED, False
            elif self._behind(entry):
                reading.reason = "unmatched-behind"

    def _same_value(self, entry: Entry, compared: Mapping[object, Entry]) -> _Why:
        twin = compared.get(entry.content)
        if twin is None or twin is entry or not telling(entry):
            return None
        return "covered-elsewhere", {"layer": display(twin.key.layer), "slot": twin.key.slot}

    def _effect(self, entry: Entry) -> _Why:
        key = entry.key
        if key.phase not in CALLS:
            if (key.layer, key.slot) in self._net.constants:
                return "covered-constant", {"layer": display(key.layer)}
            if key.layer in self._net.idle:
                return "covered-idle", {"layer": display(key.layer)}
            return ("covered-counter", {"role": key.slot}) if key.slot in NEUTRAL else None
        call = CallId(key.layer, key.call)
        visit = self._visits.get(call)
        if visit is None:
            return None
        if call in self._counterpart:
            if not is_input(key.slot):
                return self._in_pieces(entry, visit)
            agrees = self._agreement.get(_Point(key.step, call, False))
            return ("covered-output", {"layer": display(key.layer)}) if agrees else None
        around = self._around(visit)
        if around is None or _Point(key.step, around.id, False) not in self._agreement:
            return None
        if self._counterpart[around.id] in self._whole:
            return "covered-inside", {"layer": display(around.call.layer)}
        inside = _below(visit)
        paired = any(v.id in self._counterpart for v in inside)
        if paired and all(self._settled(v, around, key.step) for v in inside):
            return "covered-children", {}
        if not paired and all(self._harmless(v, around, key.step) for v in (visit, *inside)):
            return "covered-around", {"layer": display(around.call.layer)}
        return None

    def _in_pieces(self, entry: Entry, visit: Visit) -> _Why:
        """An output in another structure than the other side's: what comes next in the call around tells of it."""
        mine, theirs = entry.key.slot, self._handed.get(self._counterpart[visit.id], ())
        nested = any(mine.startswith(f"{slot}.") or slot.startswith(f"{mine}.") for slot in theirs)
        around = self._around(visit)
        if not nested or around is None or not self._next_agrees(visit, around, entry.key.step):
            return None
        return "covered-around", {"layer": display(around.call.layer)}

    def _left_out(self, entry: Entry) -> bool:
        """Whether the other side was captured without it: `--layers`, or for a parameter `--no-weights`; imported."""
        if self._other.partial:
            return True
        if entry.key.phase is Phase.PARAMETER:
            return not self._other.weighed
        layer = self._names.get(entry.key.layer, entry.key.layer)
        return entry.key.phase in CALLS and bool(layer) and not matches(layer, self._other.selected)

    def _given_here_alone(self, entry: Entry) -> bool:
        """Whether both sides have the call, and the other one's has ended without handing this out."""
        key = entry.key
        if key.phase not in CALLS or is_input(key.slot):
            return False
        return self._counterpart.get(CallId(key.layer, key.call)) in self._ended

    def _behind(self, entry: Entry) -> bool:
        """Whether it is a layer without weights behind a place that already disagrees: nothing can be told of it."""
        visit = self._visits.get(CallId(entry.key.layer, entry.key.call))
        if visit is None or visit.id in self._counterpart or self._net.weights(visit.call.layer):
            return False
        around = self._around(visit)
        if around is None:
            return False
        for earlier in reversed(self._net.visits[self._place[around.id] : self._place[visit.id]]):
            last = earlier.call.last
            over = last is not None and last < visit.call.first
            point = _Point(entry.key.step, earlier.id, not over)
            if (over or earlier is around) and point in self._agreement:
                return not self._agreement[point]
        return False

    def _around(self, visit: Visit) -> Optional[Visit]:
        """The nearest call around that has a counterpart."""
        parent = visit.parent
        while parent is not None and parent.id not in self._counterpart:
            parent = parent.parent
        return parent

    def _settled(self, visit: Visit, around: Visit, step: int) -> bool:
        """Whether a call inside a wrapper is accounted for, by a counterpart or by its effect."""
        if visit.children or visit.id in self._counterpart:
            return True
        nearest = self._around(visit)
        inside_one_piece = nearest is not None and self._counterpart[nearest.id] in self._whole
        return inside_one_piece or self._harmless(visit, nearest or around, step)

    def _harmless(self, visit: Visit, around: Visit, step: int) -> bool:
        """Without weights, or with right ones, and what comes next in the call around it agrees."""
        layer = visit.call.layer
        return (layer in self._weighed or not self._net.weights(layer)) and self._next_agrees(visit, around, step)

    def _next_agrees(self, visit: Visit, around: Visit, step: int) -> bool:
        """Whether what the call around goes on with agrees: what its next call gets, or what it hands on itself."""
        end = around.call.last
        for later in self._net.visits[self._place[visit.id] + 1 :]:
            if end is None or later.call.first > end:
                break
            point = _Point(step, later.id, True)
            if later.call.first > (visit.call.last or end) and point in self._agreement:
                return self._agreement[point]
        return self._agreement.get(_Point(step, around.id, False), False)


def _below(visit: Visit) -> list[Visit]:
    found = list(visit.children)
    for child in found:
        found.extend(child.children)
    return found


def telling(entry: Entry) -> bool:
    """Whether equal bits mean the same value: constants (a bias of zeros) are equal by chance."""
    if entry.nbytes == 0:
        return False
    buffer = np.empty(1 << 20, np.uint8)
    first: Optional[np.generic] = None
    telling = False
    for piece in entry.stream(buffer):  # to the end, where the checksum is verified
        if piece.size and not telling:
            first = piece.flat[0] if first is None else first
            telling = bool((piece != first).any())
    return telling
