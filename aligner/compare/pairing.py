"""Which record of the port is set against which of the reference: every record of both stands in one Pair."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Optional

from aligner.compare.layers import Pairing
from aligner.compare.net import CallId, is_input
from aligner.compare.spread import squeezed
from aligner.record import Key, Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry

CALLS = (Phase.FORWARD, Phase.BACKWARD)
"""Phases whose records belong to a call; those of the others belong to a parameter."""

_Group = tuple[int, Phase, str, int]


@dataclass(eq=False)
class Pair:
    """A record of each side, or of one side only. `key` is the reference's, or the port's where it stands alone."""

    reference: Optional[Entry]
    port: Optional[Entry]
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        self.key = self.entry.key

    @property
    def entry(self) -> Entry:
        """The reference's record, or the port's where the reference has none."""
        entry = self.reference if self.reference is not None else self.port
        assert entry is not None  # a pair of nothing is never made
        return entry


def pair_records(reference: Dump, port: Dump, pairing: Pairing) -> list[Pair]:
    """All records of both dumps in pairs: by step, phase, layer and call, then by slot."""
    theirs = _grouped(port)
    single = pairing.single
    owners: dict[str, list[str]] = {}
    for pair in pairing.layers:
        owners.setdefault(pair.reference, []).append(pair.port)
    pairs: list[Pair] = []
    for group, entries in _grouped(reference).items():
        left = entries
        for other in _counterparts(group, pairing, single, owners):
            if other in theirs:
                matched, left, theirs[other] = _by_slot(left, theirs[other], group[1] in CALLS)
                pairs += matched
        pairs += [Pair(entry, None) for entry in left]
    pairs += [Pair(None, entry) for entries in theirs.values() for entry in entries]
    return pairs


def _grouped(dump: Dump) -> dict[_Group, list[Entry]]:
    groups: dict[_Group, list[Entry]] = {}
    for entry in dump.entries:
        key = entry.key
        if key.phase is Phase.FORCED:
            continue  # what compare draws its conclusions with, and no part of the run
        groups.setdefault((key.step, key.phase, key.layer, key.call), []).append(entry)
    return groups


def _counterparts(
    group: _Group, pairing: Pairing, single: Mapping[str, str], owners: Mapping[str, Sequence[str]]
) -> list[_Group]:
    """Where the port's records of this group may stand."""
    step, phase, layer, number = group
    if phase not in CALLS:
        return [(step, phase, other, number) for other in owners.get(layer, ())]
    call = pairing.counterpart(CallId(layer, number), single)
    return [] if call is None else [(step, phase, call.layer, call.number)]


def _by_slot(one: Sequence[Entry], other: Sequence[Entry], sided: bool) -> tuple[list[Pair], list[Entry], list[Entry]]:
    """Pairs of equal slots, then of what is left on the same side of the call in order, as far as shapes agree."""
    slots = {entry.key.slot: entry for entry in other}
    pairs: list[Pair] = []
    ours: list[Entry] = []
    for entry in one:
        match = slots.pop(entry.key.slot, None)
        if match is None:
            ours.append(entry)
        else:
            pairs.append(Pair(entry, match))
    theirs = [entry for entry in other if entry.key.slot in slots]
    if pairs and not sided:
        return pairs, ours, theirs  # parameters: one role that agrees shows that the layer's roles have names
    for form in (_shape, _squeezed) if sided else (_content, _shape, _squeezed):
        left = []
        for entry in ours:
            match = next((e for e in theirs if form(e) == form(entry) and _same_side(entry, e, sided)), None)
            if match is None:
                left.append(entry)
            else:
                theirs.remove(match)
                pairs.append(Pair(entry, match))
        ours = left
    return pairs, ours, theirs


def _content(entry: Entry) -> tuple[object, ...]:
    """Parameters of equal bits are counterparts, whatever they are called."""
    return (entry.content, squeezed(entry.shape))


def _shape(entry: Entry) -> tuple[object, ...]:
    return entry.shape


def _squeezed(entry: Entry) -> tuple[object, ...]:
    return squeezed(entry.shape)


def _same_side(one: Entry, other: Entry, sided: bool) -> bool:
    """Inputs with inputs, outputs with outputs; parameters have no sides."""
    return not sided or is_input(one.key.slot) == is_input(other.key.slot)
