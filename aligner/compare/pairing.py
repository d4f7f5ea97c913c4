"""Which record of the port is set against which of the reference: every record of both stands in one Pair."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare import reformed
from aligner.compare.arranged import arranged
from aligner.compare.folded import ends
from aligner.compare.layers import Pairing
from aligner.compare.looped import loops
from aligner.compare.masking import mask_like
from aligner.compare.net import CallId, is_input
from aligner.compare.outputs import by_value, matched_outputs, positional, told, unpaired
from aligner.compare.pieces import pieces
from aligner.compare.spread import LARGEST, squeezed
from aligner.compare.summed import joined, summed
from aligner.compare.tables import tables
from aligner.dtypes import DTYPES
from aligner.record import Key, Phase
from aligner.words.training import LOSS

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
    known = [*reformed.parts(reference, port), *reformed.made(reference, port), *ends(reference, port).parts]
    known += [part for loop in loops(reference, port, pairing) for part in loop.parts]
    known += [part for parts, _ in pieces(reference, port, pairing) for part in parts]
    known += arranged(reference, port)
    known += summed(reference, port, {pair.reference: pair.port for pair in pairing.layers})
    pairs: list[Pair] = [Pair(_as_entry(part.reference), _as_entry(part.port)) for part in known]
    theirs = _grouped(port, {key for part in known for key in part.keys(1)})
    single = pairing.single
    handed: dict[object, dict[str, str]] = {}
    elsewhere: dict[str, dict[str, str]] = {}
    owners: dict[str, list[str]] = {}
    for pair in pairing.layers:
        owners.setdefault(pair.reference, []).append(pair.port)
    left = _grouped(reference, {key for part in known for key in part.keys(0)})
    # The first step may have another number of losses than the others; the first one is the first one everywhere.
    losses = {LOSS} if joined(reference, port) else set()
    between = [
        (group, other)
        for group in left
        for other in ([group] if group[2] in losses else _counterparts(group, pairing, single, owners))
    ]
    between = [(group, other) for group, other in between if other in theirs]
    for group, other in between:
        if group[1] in CALLS:
            slots = handed.setdefault((group[0], *group[2:]), {})
            told_so_far = elsewhere.setdefault(group[2], {})
            matched, left[group], theirs[other] = _by_side(left[group], theirs[other], slots, told_so_far)
        else:
            matched, left[group], theirs[other] = _by_role(left[group], theirs[other])
        pairs += matched
    for group, other in between:  # what later calls have told
        rest = told(left[group], theirs[other], elsewhere.get(group[2], {}))
        left[group], theirs[other] = unpaired(left[group], theirs[other], rest)
        pairs += [Pair(*pair) for pair in rest]
    pairs += [Pair(entry, None) for entries in left.values() for entry in entries]
    pairs += [Pair(None, entry) for entries in theirs.values() for entry in entries]
    return pairs


def _as_entry(part: Any) -> Entry:
    """As what measuring takes it for: it asks for nothing of an Entry that a part lacks."""
    return part  # type: ignore[no-any-return]  # see above


def _grouped(dump: Dump, without: Set[Key]) -> dict[_Group, list[Entry]]:
    groups: dict[_Group, list[Entry]] = {}
    for entry in dump.entries:
        key = entry.key
        if key in without or key.phase is Phase.FORCED:
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


def _by_side(
    one: Sequence[Entry], other: Sequence[Entry], slots: dict[str, str], earlier: dict[str, str]
) -> tuple[list[Pair], list[Entry], list[Entry]]:
    """Pairs of a call's inputs by equal slots and then by order, of its outputs by what they hold where slots differ.

    Where a side is given more, places alone are no slots: what they hold comes first, for others may stand before it.

    `slots` tells which output of the port stands for which of the reference's, if that is known; else it is told.
    `earlier` are those of which what they hold has told it in calls of the same layer before, and is told more.
    """
    ours, theirs = ([e for e in entries if is_input(e.key.slot)] for entries in (one, other))
    shifted = by_value(*map(_in_places, (ours, theirs))) if len(ours) != len(theirs) else []
    given, ours, theirs = _by_slot(*unpaired(ours, theirs, shifted), {}, earlier)
    given += [Pair(*pair) for pair in shifted]
    for form, entry in () if slots else tables(ours, theirs):
        given.append(Pair(_as_entry(form), entry))
        ours, theirs = [e for e in ours if e is not form.entry], [e for e in theirs if e is not entry]
    left = ours, theirs
    ours, theirs = ([e for e in entries if not is_input(e.key.slot)] for entries in (one, other))
    if slots:  # their gradients
        found = _by_slot(ours, theirs, slots, {})
    else:
        matched = matched_outputs(ours, theirs, earlier)
        slots.update((a.key.slot, b.key.slot) for a, b in matched)
        taken = {id(entry) for pair in matched for entry in pair}
        pairs = [Pair(*pair) for pair in matched]
        found = pairs, [e for e in ours if id(e) not in taken], [e for e in theirs if id(e) not in taken]
    return given + found[0], left[0] + found[1], left[1] + found[2]


def _by_slot(
    one: Sequence[Entry], other: Sequence[Entry], known: Mapping[str, str], earlier: dict[str, str]
) -> tuple[list[Pair], list[Entry], list[Entry]]:
    """Pairs of equal slots (or of the port's slots by `known`), then of what holds the same, or has held it `earlier`,
    then of equal shapes in order.

    Slots of other sizes come last: a side may have an argument more, and others behind it.
    """
    slots = {entry.key.slot: entry for entry in other}
    wanted = {known.get(entry.key.slot, entry.key.slot): entry for entry in one}
    alike = [Pair(e, slots[slot]) for slot, e in wanted.items() if slot in slots]
    alike = [pair for pair in alike if not (positional([pair.entry]) and _is_no_mask(pair))]
    pairs = [pair for pair in alike if _size(pair.reference) == _size(pair.port)]
    ours, theirs = _left(pairs, one, other)
    same = by_value(ours, theirs)
    earlier.update((first.key.slot, second.key.slot) for first, second in same)
    same += told(*unpaired(ours, theirs, same), earlier)
    pairs += (held := [Pair(*pair) for pair in same])
    rest, *_ = _by_form(*_left(held, ours, theirs), (_shape, _squeezed))
    rest = [pair for pair in rest if not _is_no_mask(pair)]
    ours, theirs = _left([*held, *rest], ours, theirs)
    left = {id(entry) for entry in (*ours, *theirs)}
    last = [pair for pair in alike if {id(pair.reference), id(pair.port)} <= left]
    return pairs + rest + last, *_left(last, ours, theirs)


def _is_no_mask(pair: Pair) -> bool:
    """Whether one side's says true and false, and the other's are more numbers than a mask has."""
    both = [entry for entry in (pair.reference, pair.port) if entry is not None]
    numbers = [entry for entry in both if not DTYPES[entry.dtype].exact and entry.nbytes <= LARGEST]
    if len(numbers) != 1 or not any(entry.dtype == "bool" for entry in both):
        return False
    return not mask_like(numbers[0])


def _in_places(entries: Sequence[Entry]) -> list[Entry]:
    return [entry for entry in entries if positional([entry])]


def _left(pairs: Sequence[Pair], one: Sequence[Entry], other: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    taken = {id(entry) for pair in pairs for entry in (pair.reference, pair.port)}
    return [e for e in one if id(e) not in taken], [e for e in other if id(e) not in taken]


def _size(entry: Optional[Entry]) -> int:
    return 0 if entry is None else math.prod(entry.shape)


def _by_role(one: Sequence[Entry], other: Sequence[Entry]) -> tuple[list[Pair], list[Entry], list[Entry]]:
    """Pairs of a layer's parameters: one role that agrees shows that its roles have names; else by what they hold."""
    slots = {entry.key.slot: entry for entry in other}
    pairs = [Pair(entry, slots.pop(entry.key.slot)) for entry in one if entry.key.slot in slots]
    ours = [entry for entry in one if all(entry is not pair.reference for pair in pairs)]
    theirs = list(slots.values())
    return (pairs, ours, theirs) if pairs else _by_form(ours, theirs, (_content, _shape, _squeezed))


def _by_form(
    one: Sequence[Entry], other: Sequence[Entry], forms: Sequence[Callable[[Entry], object]]
) -> tuple[list[Pair], list[Entry], list[Entry]]:
    """Pairs of equal form in order, one form after the other; and what is left of both."""
    pairs: list[Pair] = []
    ours, theirs = list(one), list(other)
    for form in forms:
        waiting: dict[object, deque[Entry]] = {}
        for entry in theirs:
            waiting.setdefault(form(entry), deque()).append(entry)
        left = []
        for entry in ours:
            alike = waiting.get(form(entry))
            if alike:
                pairs.append(Pair(entry, alike.popleft()))
            else:
                left.append(entry)
        taken = {id(pair.port) for pair in pairs}
        ours, theirs = left, [entry for entry in theirs if id(entry) not in taken]
    return pairs, ours, theirs


def _content(entry: Entry) -> tuple[object, ...]:
    """Parameters of equal bits are counterparts, whatever they are called."""
    return (entry.content, squeezed(entry.shape))


def _shape(entry: Entry) -> tuple[object, ...]:
    return entry.shape


def _squeezed(entry: Entry) -> tuple[object, ...]:
    return squeezed(entry.shape)
