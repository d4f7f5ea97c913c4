"""Records without a counterpart whose value was compared all the same, or whose effect was.

- The same bits were compared under another key: an activation that the other side wrote as a function leaves its
  output as the next layer's input.
- It lies inside a layer whose counterpart is one piece (the cells inside MindSpore's LSTM).
- It is a layer that only holds others (a wrapper), all of which have counterparts or are covered.
- It holds no weights, and what the layer around it hands on agrees: a missing step would show there. The same goes
  for an argument that only one side passes to a layer whose outputs agree.
- It is a buffer that only counts.

Anything else stays unmatched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.layers import Pairing
from aligner.compare.net import NEUTRAL, CallId, Net, Visit, is_input
from aligner.compare.pairing import CALLS
from aligner.compare.reading import Reading
from aligner.record import Scalar, display

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

_Why = Optional[tuple[str, Mapping[str, Scalar]]]


def cover(readings: Sequence[Reading], reference: Net, port: Net, pairing: Pairing) -> None:
    """Mark the unmatched readings of both sides that are covered, with the reason."""
    back = {other: one for one, other in pairing.calls.items()}
    handed_on = _handed_on(readings)
    _Side(reference, 0, set(pairing.calls), pairing.calls, port, handed_on[0]).mark(readings)
    _Side(port, 1, set(back), back, reference, handed_on[1]).mark(readings)


def _handed_on(readings: Iterable[Reading]) -> tuple[dict[tuple[int, CallId], bool], dict[tuple[int, CallId], bool]]:
    """For each side, whether the outputs of a call (in a step) were compared, and agree."""
    agree: tuple[dict[tuple[int, CallId], bool], dict[tuple[int, CallId], bool]] = ({}, {})
    for reading in readings:
        for entry, table in zip((reading.pair.reference, reading.pair.port), agree):
            if entry is not None and entry.key.phase in CALLS and not is_input(entry.key.slot) and reading.matched:
                call = entry.key.step, CallId(entry.key.layer, entry.key.call)
                table[call] = table.get(call, True) and not reading.over
    return agree


class _Side:
    """One net, and what is needed to judge its records without a counterpart."""

    def __init__(
        self,
        net: Net,
        side: int,
        paired: set[CallId],
        counterpart: Mapping[CallId, CallId],
        other: Net,
        handed_on: Mapping[tuple[int, CallId], bool],
    ) -> None:
        self._net = net
        self._side = side
        self._paired = paired
        self._counterpart = counterpart
        self._visits = {visit.id: visit for visit in net.visits}
        self._whole = {v.id for v in other.visits if not v.children}
        self._handed_on = handed_on
        self._covered: set[tuple[int, CallId]] = set()

    def mark(self, readings: Sequence[Reading]) -> None:
        """Innermost calls first, so that a wrapper is judged after what it holds."""
        compared: dict[object, Entry] = {}
        missing: list[tuple[Entry, Reading]] = []
        for reading in readings:
            entry = reading.pair.reference if self._side == 0 else reading.pair.port
            if entry is None:
                continue
            if not reading.matched:
                missing.append((entry, reading))
            elif reading.deviation is not None:
                compared.setdefault(entry.content, entry)
        missing.sort(key=lambda item: -self._depth(item[0]))
        for entry, reading in missing:
            why = self._same_value(entry, compared) or self._effect(entry)
            if why is not None:
                reading.covered, reading.over = True, False
                reading.reason, reading.facts = why
        self._note_covered(missing)

    def _depth(self, entry: Entry) -> int:
        visit = self._visits.get(CallId(entry.key.layer, entry.key.call))
        depth = 0
        while visit is not None:
            depth, visit = depth + 1, visit.parent
        return depth

    def _note_covered(self, missing: Iterable[tuple[Entry, Reading]]) -> None:
        for entry, reading in missing:
            if reading.covered:
                self._covered.add((entry.key.step, CallId(entry.key.layer, entry.key.call)))

    def _same_value(self, entry: Entry, compared: Mapping[object, Entry]) -> _Why:
        twin = compared.get(entry.content)
        if twin is None or twin is entry or not _telling(entry):
            return None
        return "covered-elsewhere", {"layer": display(twin.key.layer), "slot": twin.key.slot}

    def _effect(self, entry: Entry) -> _Why:
        key = entry.key
        if key.phase not in CALLS:
            return ("covered-counter", {"role": key.slot}) if key.slot in NEUTRAL else None
        call = CallId(key.layer, key.call)
        visit = self._visits.get(call)
        if visit is None:
            return None
        if call in self._paired:
            if is_input(key.slot) and self._handed_on.get((key.step, call)):
                return "covered-output", {"layer": display(key.layer)}
            return None
        around = self._around(visit)
        if around is None or (key.step, around.id) not in self._handed_on:
            return None
        if self._counterpart[around.id] in self._whole:
            return "covered-inside", {"layer": display(around.call.layer)}
        inside = _below(visit)
        if any(v.id in self._paired for v in inside) and all(self._settled(v, key.step) for v in inside):
            return "covered-children", {}
        if self._handed_on[key.step, around.id] and not any(self._net.weights(v.call.layer) for v in (visit, *inside)):
            return "covered-around", {"layer": display(around.call.layer)}
        return None

    def _around(self, visit: Visit) -> Optional[Visit]:
        parent = visit.parent
        while parent is not None and parent.id not in self._paired:
            parent = parent.parent
        return parent

    def _settled(self, visit: Visit, step: int) -> bool:
        """Whether a call inside a wrapper is accounted for: paired, or without weights and judged by its effect."""
        if visit.children or visit.id in self._paired or self._counterpartless_inside(visit):
            return True
        around = self._around(visit)
        agrees = around is not None and self._handed_on.get((step, around.id), False)
        return agrees and not self._net.weights(visit.call.layer)

    def _counterpartless_inside(self, visit: Visit) -> bool:
        around = self._around(visit)
        return around is not None and self._counterpart[around.id] in self._whole


def _below(visit: Visit) -> list[Visit]:
    found = list(visit.children)
    for child in found:
        found.extend(child.children)
    return found


def _telling(entry: Entry) -> bool:
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
