"""Which call of a layer's counterpart stands for which of the layer's: in order, or in the order that values tell.

A net that works on two images with one encoder may begin with either. Where the calls are not each other's in order,
and are so in another, that one holds, for the layers inside as well; where no values tell, it is the order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.net import CallId, Net, Visit
from aligner.errors import DumpError

if TYPE_CHECKING:
    from aligner.compare.verdict import LayerPair

NEAR, APART = 1e-3, 1e-2
"""Calls are each other's where what they are given differs by no more than the one part, and not beyond the other."""

LEAST = 16
"""So many values may be equal by chance."""

MOST = 1024
"""Of more calls of one layer the order tells."""


def paired_calls(layers: Iterable[LayerPair], reference: Net, port: Net) -> Mapping[CallId, CallId]:
    """By the reference's call the port's, for layers with as many calls on both sides; parents, and those whose values
    tell, at any rate."""
    ours, theirs = reference.by_layer(), port.by_layer()
    rows = [(pair, ours.get(pair.reference, []), theirs.get(pair.port, [])) for pair in layers]
    found: dict[CallId, CallId] = {}
    for pair, one, other in sorted((row for row in rows if row[1] and row[2]), key=lambda row: row[1][0].call.first):
        told, spare = _told(one, other, found)
        found.update((one[i].id, other[j].id) for i, j in told.items())
        whole = len(one) == len(other) or _cut_short(reference, one, port, other)
        if whole or pair.by == "map" or (pair.reference in reference.inner or pair.port in port.inner):
            taken = {*told.values()}
            rest = [visit for i, visit in enumerate(one) if i not in told and i not in spare[0]]
            left = [visit for j, visit in enumerate(other) if j not in taken and j not in spare[1]]
            found.update((a.id, b.id) for a, b in zip(rest, left))
    return found


def _cut_short(reference: Net, one: Sequence[Visit], port: Net, other: Sequence[Visit]) -> bool:
    """Whether the side that has fewer calls raised before it came to the rest."""
    return (reference.cut and len(one) < len(other)) or (port.cut and len(other) < len(one))


def _told(
    one: Sequence[Visit], other: Sequence[Visit], found: Mapping[CallId, CallId]
) -> tuple[Mapping[int, int], tuple[set[int], set[int]]]:
    """Indices of calls that are each other's in another order, none where all are in order, and as many; and those of
    calls that are nobody's.

    What runs inside a call is nobody's but of what runs inside that call's counterpart, whatever it is given: a mistake
    may give it what another call is given, or call a layer in the place of another one.
    """
    theirs = _inside(other)
    told: dict[int, int] = {}
    known: tuple[set[int], set[int]] = set(), set()
    spare: tuple[set[int], set[int]] = set(), set()
    for parent, some in _inside(one).items():
        counterpart = None if parent is None else found.get(parent)
        others = theirs.get(counterpart) if counterpart is not None else None
        if others is not None:
            alike = _chosen(one, some, other, others)
            told.update(alike)
            rest = [i for i in some if i not in alike]
            left = [j for j in others if j not in {*alike.values()}]
            if len(some) == len(others):
                told.update(zip(rest, left))
            else:
                by_shape = _by_shape(one, rest), _by_shape(other, left)
                for shapes in {**by_shape[0], **by_shape[1]}:
                    ours, its = (side.get(shapes, []) for side in by_shape)
                    if len(ours) == len(its):
                        told.update(zip(ours, its))
                    elif not (ours and its):  # else any of them may be the one too many
                        spare[0].update(ours)
                        spare[1].update(its)
            known[0].update(some)
            known[1].update(others)
    left, free = ([n for n in range(len(side)) if n not in done] for side, done in zip((one, other), known))
    told.update(_chosen(one, left, other, free))
    uneven = bool(known[0]) and len(one) != len(other)
    return (told, spare) if uneven or any(i != j for i, j in told.items()) else ({}, (set(), set()))


def _by_shape(visits: Sequence[Visit], some: Iterable[int]) -> Mapping[object, list[int]]:
    """Indices of calls among these by the shapes that they are given."""
    found: dict[object, list[int]] = {}
    for number in some:
        found.setdefault(visits[number].shapes[0], []).append(number)
    return found


def _chosen(
    one: Sequence[Visit], some: Sequence[int], other: Sequence[Visit], others: Sequence[int]
) -> Mapping[int, int]:
    """Indices of the calls among these that were given the same."""
    if max(len(one), len(other)) > MOST:
        return {}
    told = _by_value([one[i] for i in some], [other[j] for j in others])
    return {some[i]: others[j] for i, j in told.items()}


def _inside(visits: Iterable[Visit]) -> Mapping[Optional[CallId], list[int]]:
    """Indices of calls by the call that they run inside of."""
    found: dict[Optional[CallId], list[int]] = {}
    for number, visit in enumerate(visits):
        found.setdefault(None if visit.parent is None else visit.parent.id, []).append(number)
    return found


def _by_value(one: Sequence[Visit], other: Sequence[Visit]) -> Mapping[int, int]:
    """Indices of calls that were given the same; none where order tells as much."""
    if len(one) == len(other) == 1:
        return {}
    odd = [k for k, (a, b) in enumerate(zip(one, other)) if not _same(a, b)]
    if not odd and len(one) == len(other):
        return {}
    last = min(len(one), len(other))
    rows = [*odd, *range(last, len(one))]
    columns = [*odd, *range(last, len(other))]
    near = _near(_samples(one, rows), _samples(other, columns))
    taken = [j for places in near.values() for j in places]
    told = {i: places[0] for i, places in near.items() if len(places) == 1 and taken.count(places[0]) == 1}
    return told if any(i != j for i, j in told.items()) else {}


def _samples(visits: Sequence[Visit], places: Iterable[int]) -> Mapping[int, Any]:
    taken = ((place, _given(visits[place])) for place in places)
    return {place: sample for place, sample in taken if sample is not None}


def _near(one: Mapping[int, Any], other: Mapping[int, Any]) -> Mapping[int, list[int]]:
    """By the index of each sample those of the other row that it may be."""
    sizes: dict[int, tuple[list[int], list[int]]] = {}
    for side, row in enumerate((one, other)):
        for index, sample in row.items():
            sizes.setdefault(sample.size, ([], []))[side].append(index)
    found: dict[int, list[int]] = {}
    for ours, theirs in sizes.values():
        columns = np.stack([other[j] for j in theirs] or [np.empty(0)])
        for i in ours if theirs else ():
            apart = np.linalg.norm(columns - one[i], axis=1)
            found[i] = [theirs[k] for k in np.flatnonzero(apart <= NEAR * np.linalg.norm(columns, axis=1))]
    return found


def _same(one: Visit, other: Visit) -> bool:
    """Whether two calls were given the same, or near enough that no other order need be asked for."""
    if [entry.content for entry in one.inputs] == [entry.content for entry in other.inputs]:
        return True
    return _apart(_given(one), _given(other)) <= APART


def _given(visit: Visit) -> Optional[Any]:
    """Samples of what a call was given, one behind the other; None where that tells nothing."""
    try:
        samples = [entry.sample() for entry in visit.inputs]
    except DumpError:  # it is told where all is read
        return None
    flat = np.concatenate(samples) if samples else np.empty(0)
    wide = np.abs(flat).astype(np.float64) if flat.dtype.kind == "c" else flat.astype(np.float64)
    return wide if wide.size >= LEAST and np.isfinite(wide).all() and np.ptp(wide) > 0.0 else None


def _apart(one: Optional[Any], other: Optional[Any]) -> float:
    """How far two samples differ, as a part of them; 1 where that cannot be said."""
    if one is None or other is None or one.size != other.size:
        return 1.0
    return float(np.linalg.norm(one - other) / max(float(np.linalg.norm(one)), float(np.linalg.norm(other))))
