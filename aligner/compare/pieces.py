"""What a call of one side hands over in one piece, and its counterpart as a list or a tuple of pieces; what one of
them is given padded.

A block may join what it has before it hands it on, or leave that to the one that uses it. A list that only the
reference's call is given is none of this: in which order that joins it is known where it is used (replay.inner).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.along import Along, Row, Single, apart, stacks
from aligner.compare.folded import as_part
from aligner.compare.net import CallId, is_input
from aligner.compare.padded import padded
from aligner.compare.reformed import Part
from aligner.compare.selected import Rest, Selected, Selections, pairs
from aligner.compare.shares import Shares
from aligner.record import Key, Phase

if TYPE_CHECKING:
    from aligner.compare.formed import Formed
    from aligner.compare.layers import Pairing
    from aligner.dump.reader import Dump, Entry

MOST = 10
"""Arguments of a call that are looked at in turn."""

NEAR = 1e-2
"""Pieces of one of several values differ from it by no more than this part."""

_Ends = Mapping[tuple[int, CallId, bool], list["Entry"]]


def pieces(reference: Dump, port: Dump, pairing: Pairing) -> Iterator[tuple[list[Part], Mapping[Key, Formed]]]:
    """What stands for each other, and what each value of the port is to be."""
    ours, theirs = _ends(reference), _ends(port)
    forward = (entry for entry in reference.entries if entry.key.phase is Phase.FORWARD)
    shares, selections = (Shares(), Shares()), Selections(forward)
    sides: list[tuple[bool, object, list[Entry], list[Entry]]] = []
    sizes = _sizes(reference), _sizes(port)
    for (step, call, given), one in ours.items():
        counterpart = pairing.calls.get(call) if call.layer else None
        other = theirs.get((step, counterpart, given), []) if counterpart is not None else []
        layers: object = (call.layer, counterpart.layer) if counterpart is not None else ()
        sides.append((given, layers, one, other))
        if not given:
            shares[0].learn(layers, one, other)
            shares[1].learn(layers, other, one)
    for given, both, one, other in sides:
        if len(one) == len(other):
            value = padded(one[0], other[0], (reference, port)) if given and len(one) == 1 else None
            if value is not None:
                yield [Part(value, as_part(other[0]), (one[0].key, other[0].key))], {other[0].key: value}
            for mine, its in pairs(one, other) if value is None else ():
                looped = sizes[0][mine.key._replace(call=0)] == sizes[1][its.key._replace(call=0)]  # no row is left
                if not looped and (rows := selections.of(mine, its)) is not None:
                    taken = Selected(mine, rows, its.shape)
                    others = Rest(its, rows, len(mine.shape) - 1)
                    yield [Part(taken, others, (mine.key, its.key))], {its.key: taken}
            continue
        for whole, group, along in [*_found(one, other)] or (() if given else shares[1].of(both, other, one)):
            yield (
                [Part(Single(whole, along, n, e.shape), as_part(e), (whole.key, e.key)) for n, e in enumerate(group)],
                {entry.key: Single(whole, along, n, entry.shape) for n, entry in enumerate(group)},
            )
        for whole, group, along in (
            _in_turn(one, other) if given else [*_found(other, one)] or shares[0].of(both, one, other)
        ):
            row, first, *rest = Row(group, along, whole.shape), *(entry.key for entry in group)
            yield [Part(row, as_part(whole), (first, whole.key), (rest, ()))], {whole.key: row}


def _in_turn(parts: Sequence[Entry], wholes: Sequence[Entry]) -> Iterator[tuple[Entry, list[Entry], Along]]:
    """Arguments one after the other, each the counterpart of one of the other side's, or joined with those next to it:
    gates as three values or as one. Of several ways the one in which the numbers are nearest.
    """
    if not 1 < len(wholes) < len(parts) <= MOST or any(e.key.slot.count(".") != 1 for e in (*parts, *wholes)):
        return
    ways: list[list[tuple[Entry, list[Entry], Along]]] = []
    for cuts in combinations(range(1, len(parts)), len(wholes) - 1):
        groups = [[*parts[start:end]] for start, end in zip((0, *cuts), (*cuts, len(parts)))]
        pairs = [*zip(wholes, groups)]
        if all(math.prod(whole.shape) == math.prod(group[0].shape) for whole, group in pairs if len(group) == 1):
            joined = [(whole, _concatenated(group, whole)) for whole, group in pairs if len(group) > 1]
            found = [(whole, *way) for whole, way in joined if way is not None]
            ways += [found] if len(found) == len(joined) else []
    if len(ways) > 1:
        ways.sort(key=lambda way: sum(apart(along, group, whole) for whole, group, along in way))
    yield from ways[0] if ways else ()


def _ends(dump: Dump) -> _Ends:
    """By step and call: what it is given, and what it makes."""
    found: dict[tuple[int, CallId, bool], list[Entry]] = {}
    for entry in dump.entries:
        key = entry.key
        if key.phase is Phase.FORWARD:
            found.setdefault((key.step, CallId(key.layer, key.call), is_input(key.slot)), []).append(entry)
    return found


def _sizes(dump: Dump) -> Mapping[Key, int]:
    """How many numbers there are in all calls of a step, by the address in the first."""
    found = Counter[Key]()
    for entry in dump.entries:
        found[entry.key._replace(call=0)] += math.prod(entry.shape)
    return found


def _found(wholes: Sequence[Entry], others: Sequence[Entry]) -> Iterator[tuple[Entry, list[Entry], Along]]:
    """Values, and the lists of the other side that are their pieces."""
    known = {(entry.key.slot, entry.shape) for entry in (*wholes, *others)}
    shared = {each for each in known if sum(each == (e.key.slot, e.shape) for e in (*wholes, *others)) > 1}
    groups: dict[str, list[Entry]] = {}
    for entry in others:
        if (entry.key.slot, entry.shape) not in shared:
            groups.setdefault(entry.key.slot.rpartition(".")[0], []).append(entry)
    free = [whole for whole in wholes if (whole.key.slot, whole.shape) not in shared]
    for whole in free:
        alone = sum((other.shape, other.dtype) == (whole.shape, whole.dtype) for other in free) == 1
        for name, group in groups.items():
            found = _concatenated(group, whole) or _stacked(group, whole)
            if found is not None and (alone or _is_joined(found[0], whole, found[1])):
                groups.pop(name)
                yield whole, found[0], found[1]
                break


def _concatenated(group: list[Entry], whole: Entry) -> Optional[tuple[list[Entry], Along]]:
    """The axis that all of them have a share of."""
    if len(group) < 2 or {entry.dtype for entry in group} != {whole.dtype}:
        return None
    if {len(entry.shape) for entry in group} != {len(whole.shape)}:
        return None
    other = [axis for axis, size in enumerate(whole.shape) if any(entry.shape[axis] != size for entry in group)]
    sizes = tuple(entry.shape[other[0]] for entry in group) if len(other) == 1 else ()
    return (group, Along(other[0], sizes)) if sizes and sum(sizes) == whole.shape[other[0]] else None


def _stacked(group: list[Entry], whole: Entry) -> Optional[tuple[list[Entry], Along]]:
    """Those of one shape that lie along an axis of its own, and two of them also the other way round; of several ways
    the one in which they are nearest.
    """
    part = [entry for entry in group if entry.dtype == whole.dtype and len(entry.shape) == len(whole.shape) - 1]
    if len(part) < 2 or len({entry.shape for entry in part}) > 1:
        return None
    orders = [part, part[::-1]] if len(part) == 2 else [part]
    ways = [(order, way) for order in orders for way in stacks(part[0].shape, len(part), whole.shape)]
    return min(ways, key=lambda each: apart(each[1], each[0], whole), default=None)


def _is_joined(group: Sequence[Entry], whole: Entry, along: Along) -> bool:
    """Whether they hold its numbers: of several that they may be pieces of, this is to be the one."""
    found, wanted = (np.asarray(each, np.float64) for each in (along.joined([e.load() for e in group]), whole.load()))
    return float(np.linalg.norm(found - wanted)) <= NEAR * float(np.linalg.norm(wanted))
