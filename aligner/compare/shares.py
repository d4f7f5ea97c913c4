"""What a layer hands on in several values on one side and in fewer on the other: of some, each is several of these.

A head may hand on the means of x and of y, and their deviations, or both means in one value and both deviations in
another. Set aside what is each other's by its numbers, they follow each other in one order; that it is so is seen in
some call of the layer, for in others they may be wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations
from typing import TYPE_CHECKING, NamedTuple, Optional

import numpy as np

from aligner.compare.along import Along, stacks

if TYPE_CHECKING:
    from aligner.dump.reader import Entry
    from aligner.record import Array

CALLS = 4
"""Calls of a layer that are looked at, at most, until one tells."""

MOST = 10
"""Values of a call."""

FEW = 3
"""Values that are tried in every order."""

NEAR = 1e-2
"""Values are each other's that differ by no more than this part."""

LARGEST = 1 << 22
"""Numbers of a value that is read for this."""

Share = tuple["Entry", list["Entry"], Along]


class _Way(NamedTuple):
    """Which values of one side are one of the other's, by their slots."""

    whole: str
    parts: tuple[str, ...]
    along: Along


class Shares:
    """What is known of each layer that hands on several values."""

    def __init__(self) -> None:
        self._known: dict[object, Sequence[_Way]] = {}
        self._asked: dict[object, int] = {}

    def learn(self, layer: object, parts: Sequence[Entry], wholes: Sequence[Entry]) -> None:
        """A call of the layer, whose `wholes` may be made of the other side's `parts`."""
        fits = layer not in self._known and 1 < len(wholes) < len(parts) <= MOST
        small = all(math.prod(entry.shape) <= LARGEST for entry in (*parts, *wholes))
        if not fits or not small or self._asked.get(layer, 0) >= CALLS:
            return
        self._asked[layer] = self._asked.get(layer, 0) + 1
        ways = _ways(*_others(parts, wholes))
        if ways:
            self._known[layer] = ways

    def of(self, layer: object, parts: Sequence[Entry], wholes: Sequence[Entry]) -> Iterator[Share]:
        """Those of a call: a value, and the parts of it."""
        ours, theirs = ({entry.key.slot: entry for entry in side} for side in (parts, wholes))
        for way in self._known.get(layer, ()):
            group, whole = [ours[slot] for slot in way.parts if slot in ours], theirs.get(way.whole)
            if whole is not None and len(group) == len(way.parts) and _fits(way.along, group, whole):
                yield whole, group, way.along


def _others(parts: Sequence[Entry], wholes: Sequence[Entry]) -> tuple[list[Entry], list[Entry]]:
    """Without those that are each other's by their numbers."""
    left, rest = [*parts], list["Entry"]()
    for whole in wholes:
        same = next((part for part in left if _is_same(part, whole)), None)
        if same is None:
            rest.append(whole)
        else:
            left.remove(same)
    return left, rest


def _is_same(part: Entry, whole: Entry) -> bool:
    alike = (part.shape, part.dtype) == (whole.shape, whole.dtype)
    return alike and (part.content == whole.content or _apart(part.load(), whole.load()) <= NEAR)


def _ways(parts: Sequence[Entry], wholes: Sequence[Entry]) -> Sequence[_Way]:
    """Which follow each other, where no other is left, and numbers speak for it: of all, or of all but one."""
    found: list[_Way] = []
    sure, at = 0, 0
    for whole in wholes:
        size = math.prod(parts[at].shape) if at < len(parts) else 0
        count = math.prod(whole.shape) // size if size else 0
        group = [*parts[at : at + count]]
        at += count
        if count < 2 or len(group) != count or {entry.dtype for entry in group} != {whole.dtype}:
            return ()
        best = _nearest(group, whole)
        if best is None:
            return ()
        sure += best[1]
        found.append(best[0])
    return found if at == len(parts) and sure and sure >= len(found) - 1 else ()


def _nearest(group: Sequence[Entry], whole: Entry) -> Optional[tuple[_Way, bool]]:
    """How the values lie in the one value, and whether their numbers say so: these, or all of them in other places."""
    wanted = whole.load()
    ways: list[tuple[float, _Way]] = []
    for order in permutations(group) if len(group) <= FEW else (tuple(group),):
        values = [entry.load() for entry in order]
        for along in _along(order, whole):
            slots = tuple(entry.key.slot for entry in order)
            ways.append((_apart(along.joined(values), wanted), _Way(whole.key.slot, slots, along)))
    if not ways:
        return None
    error, way = min(ways, key=lambda one: one[0])
    if error <= NEAR:
        return way, True
    plain = next(one for _, one in ways if one.parts == tuple(entry.key.slot for entry in group))
    numbers = np.concatenate([entry.load().reshape(-1) for entry in group])
    return plain, _apart(np.sort(numbers), np.sort(wanted.reshape(-1))) <= NEAR


def _along(group: Sequence[Entry], whole: Entry) -> Iterator[Along]:
    shapes = {entry.shape for entry in group}
    if len(shapes) == 1:
        yield from stacks(group[0].shape, len(group), whole.shape)
    for axis in range(len(whole.shape)) if {len(shape) for shape in shapes} == {len(whole.shape)} else ():
        along = Along(axis, tuple(entry.shape[axis] for entry in group))
        if _fits(along, group, whole):
            yield along


def _fits(along: Along, group: Sequence[Entry], whole: Entry) -> bool:
    """Whether values of these shapes lie so in the one value."""
    if along.own:
        return any(way == along for way in stacks(group[0].shape, len(group), whole.shape))
    sizes = tuple(entry.shape[along.axis] for entry in group if len(entry.shape) == len(whole.shape))
    rest = {entry.shape[: along.axis] + entry.shape[along.axis + 1 :] for entry in group}
    return (
        sizes == along.sizes
        and rest == {whole.shape[: along.axis] + whole.shape[along.axis + 1 :]}
        and (sum(sizes) == whole.shape[along.axis])
    )


def _apart(one: Array, other: Array) -> float:
    """How far apart two values are, as a part of them; infinite ones in the same places count for nothing."""
    first, second = (np.nan_to_num(np.asarray(each, np.float64)) for each in (one, other))
    norm = float(np.linalg.norm(second))
    return float(np.linalg.norm(first - second)) / norm if norm else math.inf
