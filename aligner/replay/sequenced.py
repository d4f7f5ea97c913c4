"""Layers in the order in which both sides define them: one for one, several for the one that is made of their rows.

Each side is a row of layers. Of all ways to set two rows against each other without crossings that one is taken which
leaves the least over, and then the one with the likeliest kinds and names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from aligner.replay import fused
from aligner.replay.items import STATISTICS, Item, Match
from aligner.replay.likeness import ratio

MOST = 400_000
"""Pairs of layers that are looked at."""

PARTS = 4
"""Layers whose rows are one layer's of the other side."""

JOINED, OTHER_KIND, OTHER_NAME, OTHER_ROLES, IDLE = 0.3, 0.1, 0.2, 1.0, 0.01
"""What it costs that layers are parts of one, are of another kind, have another name, call their parameters otherwise;
to leave out what may be left out. What must not be left out costs one."""

SURE = 0.9

_Shapes = Mapping[str, tuple[int, ...]]
_Step = tuple[int, int]
"""How many layers of either side stand for each other."""


class _Layer:
    """A layer's parameters, by role."""

    def __init__(self, items: Sequence[Item], known: dict[tuple[object, ...], int]) -> None:
        self.items = {item.role: item for item in items}
        self.shapes = {role: item.shape for role, item in self.items.items()}
        self.needed = {role: item.shape for role, item in self.items.items() if item.required}
        """Those that must have a counterpart."""
        self.called = {item.slot.role for item in items if item.required}
        self.kind = items[0].kind
        self.around = items[0].place.rpartition(".")[0]
        self.name = tuple(word for word in items[0].place.split(".") if not word.isdigit())[-2:]
        like = self.kind, *sorted(self.called), *sorted(self.shapes.items()), *sorted(self.needed)
        self.like = known.setdefault(like, len(known))
        """Equal for layers that differ in their names alone."""
        self.left = float(len(self.needed)) or IDLE
        """What it costs to leave it over."""


def in_sequence(reference: Sequence[Item], port: Sequence[Item]) -> list[Match]:
    """What stands for each other; none where there are too many layers."""
    known: dict[tuple[object, ...], int] = {}
    ours, theirs = _layers(reference, known), _layers(port, known)
    if not ours or not theirs or len(ours) * len(theirs) > MOST:
        return []
    found: list[Match] = []
    for start, stop, (one, other) in _path(ours, theirs):
        pairs = [*_pairs(ours[start : start + one], theirs[stop : stop + other])]
        found += [Match(a, b, "structure" if one == other else "parts", SURE) for a, b in pairs]
    return found


def _layers(items: Sequence[Item], known: dict[tuple[object, ...], int]) -> list[_Layer]:
    """In order of definition."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.slot.layer, []).append(item)
    return [_Layer(members, known) for members in found.values()]


def _path(ours: Sequence[_Layer], theirs: Sequence[_Layer]) -> list[tuple[int, int, _Step]]:
    """The cheapest way through both rows: where layers stand for each other, and how many."""
    rows, columns, fitting = len(ours), len(theirs), _Fitting()
    best = [[0.0] * (columns + 1) for _ in range(rows + 1)]
    steps: list[list[_Step]] = [[(0, 0)] * (columns + 1) for _ in range(rows + 1)]
    for i in range(rows, -1, -1):
        for j in range(columns, -1, -1):
            ways: list[tuple[float, _Step]] = []
            if i < rows:
                ways.append((best[i + 1][j] + ours[i].left, (1, 0)))
            if j < columns:
                ways.append((best[i][j + 1] + theirs[j].left, (0, 1)))
            for step, cost in fitting.ways(ours, theirs, i, j) if i < rows and j < columns else ():
                ways.append((best[i + step[0]][j + step[1]] + cost, step))
            best[i][j], steps[i][j] = min(ways, default=(0.0, (0, 0)))
    found, i, j = list[tuple[int, int, _Step]](), 0, 0
    while i < rows or j < columns:
        step = steps[i][j]
        found += [(i, j, step)] if 0 not in step else []
        i, j = i + step[0], j + step[1]
    return found


class _Fitting:
    """What may stand for each other; most layers of a net are like others."""

    def __init__(self) -> None:
        self._alike: dict[tuple[int, int], float] = {}
        self._made: dict[tuple[int, ...], bool] = {}

    def ways(self, ours: Sequence[_Layer], theirs: Sequence[_Layer], i: int, j: int) -> Iterator[tuple[_Step, float]]:
        """From here on, and at which cost."""
        one, other = ours[i], theirs[j]
        cost = self._alike.get((one.like, other.like))
        if cost is None:
            lacking = [*(one.needed.items() - other.shapes.items()), *(other.needed.items() - one.shapes.items())]
            fits = all(role in STATISTICS for role, _ in lacking)  # a norm may take each batch's own
            cost = OTHER_KIND * (one.kind != other.kind) + OTHER_ROLES * (one.called != other.called) + len(lacking)
            self._alike[one.like, other.like] = cost = cost if fits else math.inf
        if cost < math.inf:
            yield (1, 1), cost + OTHER_NAME * (1.0 - _likeness(one.name, other.name))
        for count in range(2, PARTS + 1):
            if self._is_made_of(other, ours[i : i + count], count):
                yield (count, 1), JOINED
            if self._is_made_of(one, theirs[j : j + count], count):
                yield (1, count), JOINED

    def _is_made_of(self, whole: _Layer, parts: Sequence[_Layer], count: int) -> bool:
        """Whether so many layers, all of them in one layer, are the rows of one."""
        if len(parts) < count or any(part.around != parts[0].around for part in parts):
            return False
        key = (whole.like, *(part.like for part in parts))
        if key not in self._made:
            self._made[key] = len(whole.needed.get("weight", ())) > 1 and _is_sum(
                whole.needed, [part.needed for part in parts]
            )
        return self._made[key]


def _is_sum(whole: _Shapes, parts: Sequence[_Shapes]) -> bool:
    if any(part.keys() != whole.keys() or not all(part.values()) for part in parts):
        return False
    rest = {role: {part[role][1:] for part in parts} for role in whole}
    rows = {role: sum(part[role][0] for part in parts) for role in whole}
    return all(rest[role] == {shape[1:]} and rows[role] == shape[0] for role, shape in whole.items())


def _pairs(ours: Sequence[_Layer], theirs: Sequence[_Layer]) -> Iterator[tuple[Item, Item]]:
    """The parameters that stand for each other."""
    if len(ours) == len(theirs):
        mine, its = ours[0].items, theirs[0].items
        yield from ((one, its[role]) for role, one in mine.items() if role in its and one.shape == its[role].shape)
        return
    parts, (whole,), turned = (ours, theirs, True) if len(theirs) == 1 else (theirs, ours, False)
    for role in whole.needed:
        for part, other in fused.rows_of(whole.items[role], [layer.items[role] for layer in parts]):
            yield (other, part) if turned else (part, other)


@lru_cache(1 << 16)
def _likeness(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    """Of their names: the last word of either may be that of a layer around the other."""
    pairs = [(one[-1:], other[-1:]), (one[-1:], other[-2:-1]), (one[-2:-1], other[-1:])]
    return max((ratio(a[0], b[0]) for a, b in pairs if a and b), default=0.0)
