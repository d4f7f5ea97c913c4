"""Layers that one side calls several times for what the other side does in one call.

Words may be embedded one by one as a decoder comes to them, or all of them beforehand; the first of them apart from the
others. What the calls are given and make lies along an axis of what the one call is given and makes, a new one or one
that both have.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional, Union

from aligner.compare.along import Along, Row, Single, apart, stacks
from aligner.compare.folded import as_part
from aligner.compare.formed import Formed
from aligner.compare.net import CallId, is_input
from aligner.compare.reformed import Part
from aligner.record import Key, Phase

if TYPE_CHECKING:
    from aligner.compare.layers import Pairing
    from aligner.dump.reader import Dump, Entry

_Call = Mapping[str, "Entry"]
"""What a call is given and makes, by slot."""

_Runs = tuple[range, range]
"""Numbers of calls of either side that stand for each other; one of the two is a single call."""


@dataclass(frozen=True)
class Loop:
    """Of one layer and step: what stands for each other, and what each of the port's calls is to be given and make."""

    reference: CallId
    port: Sequence[CallId]
    parts: Sequence[Part]
    entries: Mapping[Key, Union[Formed, Entry]]


def loops(reference: Dump, port: Dump, pairing: Pairing) -> Iterator[Loop]:
    """The layers that both sides call in a step, but not as often."""
    ours, theirs = (
        Counter((call.step, call.layer) for call in dump.calls if call.phase is Phase.FORWARD)
        for dump in (reference, port)
    )
    for one, other in pairing.single.items():
        for step in sorted({step for step, layer in ours if layer == one}) if one and other else ():
            counts = ours[step, one], theirs[step, other]
            if 0 < min(counts) < max(counts):
                calls = _calls(reference, step, one, counts[0]), _calls(port, step, other, counts[1])
                found = [_loop(calls, runs, (one, other)) for runs in _aligned(*calls)]
                yield from [loop for loop in found if loop is not None] if None not in found else ()


def _calls(dump: Dump, step: int, layer: str, count: int) -> Sequence[_Call]:
    found: list[dict[str, Entry]] = [{} for _ in range(count)]
    for entry in dump.of_layer(layer)[0]:
        key = entry.key
        if (key.step, key.phase) == (step, Phase.FORWARD) and key.call < count:
            found[key.call][key.slot] = entry
    return found


def _aligned(ours: Sequence[_Call], theirs: Sequence[_Call]) -> list[_Runs]:
    """All calls of both sides in runs of as many numbers; none where they cannot be cut so."""
    sizes = [[_size(call) for call in calls] for calls in (ours, theirs)]
    if min(map(len, sizes)) == 1:  # each of several may be given all that the one is given
        return [(range(len(ours)), range(len(theirs)))]
    found, at = list[_Runs](), [0, 0]
    while at[0] < len(ours) and at[1] < len(theirs):
        single = 0 if sizes[0][at[0]] >= sizes[1][at[1]] else 1
        several, stop, left = 1 - single, at[1 - single], sizes[single][at[single]]
        while left > 0 and stop < len(sizes[several]):
            left -= sizes[several][stop]
            stop += 1
        if left or stop == at[several]:
            return []
        ends = at[single] + 1, stop
        runs = [range(at[side], ends[side != single]) for side in (0, 1)]
        found.append((runs[0], runs[1]))
        at = [runs[0].stop, runs[1].stop]
    if found and (ours[at[0] :] or theirs[at[1] :]):
        rest = {*sizes[0][at[0] :], *sizes[1][at[1] :]}
        last = found[-1]
        found[-1] = range(last[0].start, len(ours)), range(last[1].start, len(theirs))
        return found if rest == {0} and min(map(len, found[-1])) == 1 else []
    return found


def _size(call: _Call) -> int:
    """How many numbers it is given."""
    return sum(math.prod(entry.shape) for slot, entry in call.items() if is_input(slot))


def _loop(calls: tuple[Sequence[_Call], Sequence[_Call]], runs: _Runs, layers: tuple[str, str]) -> Optional[Loop]:
    """None where what the calls make is not what the one call makes."""
    several = 0 if len(runs[0]) > 1 else 1
    (single,) = runs[1 - several]
    parts: list[Part] = []
    entries: dict[Key, Union[Formed, Entry]] = {}
    for slot, whole in calls[1 - several][single].items():
        each = [entry for n in runs[several] if (entry := calls[several][n].get(slot)) is not None]
        alike = len(each) == len(runs[several]) and {entry.dtype for entry in each} == {each[0].dtype}
        if not alike or (along := _along(each, whole)) is None:
            if not is_input(slot):
                return None
            continue
        keys = [entry.key for entry in each]
        if len(each) == 1:
            one, other = (whole, each[0]) if several else (each[0], whole)
            parts.append(Part(as_part(one), as_part(other), (one.key, other.key)))
            entries[other.key] = one
        elif several == 0:
            turns = Row(each, along, whole.shape)
            parts.append(Part(turns, as_part(whole), (keys[0], whole.key), (keys[1:], ())))
            entries[whole.key] = turns
        else:
            turns = Row(each, along, whole.shape)
            parts.append(Part(as_part(whole), turns, (whole.key, keys[0]), ((), keys[1:])))
            entries.update({e.key: Single(whole, along, n, e.shape) for n, e in enumerate(each)})
    port = [CallId(layers[1], number) for number in runs[1]]
    return Loop(CallId(layers[0], runs[0].start), port, parts, entries) if parts else None


def _along(each: Sequence[Entry], whole: Entry) -> Optional[Along]:
    """How the calls' values may lie in the one; of several ways the one in which they are nearest to it."""
    shapes, shape = [entry.shape for entry in each], whole.shape
    ways = stacks(shapes[0], len(each), shape) if len({*shapes}) == 1 else []
    for axis in range(len(shape)) if {len(one) for one in shapes} == {len(shape)} else ():
        sizes = tuple(one[axis] for one in shapes)
        beside = {one[:axis] + one[axis + 1 :] for one in shapes}
        if sum(sizes) == shape[axis] and beside == {shape[:axis] + shape[axis + 1 :]}:
            ways.append(Along(axis, sizes))
    return min(ways, key=lambda way: apart(way, each, whole)) if len(ways) > 1 else next(iter(ways), None)
