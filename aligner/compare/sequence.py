"""The best pairing of two rows of calls without crossings, by likeness of kind, shapes, weights and name.

Like a text diff, but with degrees of likeness instead of equal and unequal: a rectangle of scores is filled along
its anti-diagonals, each with a few numpy operations, so that 5,000 against 5,000 calls take about a second.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from aligner.record import Array

Codes = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

LEAST = 2.5
"""A pair scores at least this, or both calls stay alone."""

BEST = 11.0
"""The score of two calls that agree in everything."""


@dataclass(frozen=True)
class Feature:
    """What is known of a call. Empty words and tuples mean unknown, and speak neither for nor against."""

    kind: str
    family: str
    """Kinds that are mistaken for one another (two activations); "" for a class the vocabulary does not know."""
    outputs: Hashable
    inputs: Hashable
    weights: Hashable
    names: tuple[str, str]
    """The last part of the path and the part before it."""
    after: Hashable = None
    """What ran before it inside the same layer, where that is known on both sides."""
    idle: bool = False
    """It hands on what it is given."""


def likeness(one: Sequence[Feature], other: Sequence[Feature]) -> _Scorer:
    """Prepare the scores of all pairs of two rows."""
    return _Scorer(one, other)


class _Scorer:
    """Scores by index arrays; every property is a row of small integers, equal exactly where the property is."""

    def __init__(self, one: Sequence[Feature], other: Sequence[Feature]) -> None:
        def coded(name: str) -> tuple[Codes, Codes]:
            table: dict[Hashable, int] = {}
            both = []
            for row in (one, other):
                values = [getattr(feature, name) for feature in row]
                both.append(np.array([table.setdefault(v, len(table) + 1) if v else 0 for v in values], np.int64))
            return both[0], both[1]

        self._kind = coded("kind")
        self._family = coded("family")
        self._outputs = coded("outputs")
        self._inputs = coded("inputs")
        self._weights = coded("weights")
        self._after = coded("after")
        self._idle = [np.array([feature.idle for feature in row], np.bool_) for row in (one, other)]
        self._last = _words([f.names[0] for f in one], [f.names[0] for f in other])
        self._before = _words([f.names[1] for f in one], [f.names[1] for f in other])

    def __call__(self, rows: Codes, columns: Codes) -> npt.NDArray[np.float32]:
        """The score of each pair (rows[k], columns[k]): agreement adds, contradiction takes away."""

        def same(codes: tuple[Codes, Codes]) -> Flags:
            return np.equal(codes[0][rows], codes[1][columns])

        def known(codes: tuple[Codes, Codes]) -> Flags:
            return np.logical_and(codes[0][rows] > 0, codes[1][columns] > 0)

        families = known(self._family)
        kinds = np.where(same(self._kind), 3.0, np.where(families, np.where(same(self._family), -1.0, -9.0), 0.0))
        outputs = np.where(known(self._outputs), np.where(same(self._outputs), 3.0, -2.0), 0.0)
        inputs = np.where(known(self._inputs), np.where(same(self._inputs), 1.0, -1.0), 0.0)
        has = (self._weights[0][rows] > 0).astype(np.int64) + (self._weights[1][columns] > 0)
        names = np.where(same(self._last) & known(self._last), 0.6, 0.0)
        # Steps without weights of other classes: one that takes another shape, or does nothing, is not the other one.
        shapes = known(self._inputs) & ~same(self._inputs)
        apart = shapes | np.not_equal(self._idle[0][rows], self._idle[1][columns])
        kinds = np.where(apart & (has == 0) & ~same(self._kind) & ~families & (names == 0.0), -9.0, kinds)
        weights = np.where(has == 0, 1.0, np.where(has == 1, -3.0, np.where(same(self._weights), 3.0, -3.0)))
        names = names + np.where(same(self._before) & known(self._before), 0.4, 0.0)
        after = np.where(same(self._after) & known(self._after), 0.5, 0.0)  # of two activations, the one of this norm
        return np.asarray(kinds + outputs + inputs + weights + names + after, np.float32)


def _words(one: Sequence[str], other: Sequence[str]) -> tuple[Codes, Codes]:
    table: dict[str, int] = {"": 0}
    rows = [np.array([table.setdefault(word, len(table)) for word in row], np.int64) for row in (one, other)]
    return rows[0], rows[1]


def align(one: Sequence[Feature], other: Sequence[Feature]) -> list[tuple[int, int, float]]:
    """Pairs (index, index, score) that go up on both sides, with the greatest sum of scores."""
    rows, columns = len(one), len(other)
    if not rows or not columns:
        return []
    scorer = likeness(one, other)
    # best[i, j]: sum over the first i and j calls; only two anti-diagonals of it are kept, and the way taken.
    way = np.zeros((rows + columns + 1, min(rows, columns) + 1), np.int8)
    before: npt.NDArray[np.float32] = np.zeros(rows + 1, np.float32)
    last: npt.NDArray[np.float32] = np.zeros(rows + 1, np.float32)
    for diagonal in range(2, rows + columns + 1):
        low, high = max(1, diagonal - columns), min(rows, diagonal - 1)
        i = np.arange(low, high + 1)
        score = scorer(i - 1, diagonal - i - 1)
        paired = np.where(score >= LEAST, before[i - 1] + score, -1.0)
        skip_one, skip_other = last[i - 1], last[i]
        best = np.maximum(np.maximum(skip_one, skip_other), paired)
        skip = np.where(skip_one >= skip_other, 1, 2)  # of pairs that are as good, the first: loops end sooner or later
        way[diagonal, : high - low + 1] = np.where(paired > np.maximum(skip_one, skip_other), 3, skip)
        current = np.zeros(rows + 1, np.float32)
        current[low : high + 1] = best
        before, last = last, current
    return _trace(scorer, way, rows, columns)


def _trace(scorer: _Scorer, way: Array, rows: int, columns: int) -> list[tuple[int, int, float]]:
    pairs: list[tuple[int, int]] = []
    i, j = rows, columns
    while i and j:
        step = int(way[i + j, i - max(1, i + j - columns)])
        if step == 3:
            pairs.append((i - 1, j - 1))
        i, j = i - (step != 2), j - (step != 1)
    pairs.reverse()
    found = np.array(pairs, np.int64).reshape(-1, 2)
    scores = scorer(found[:, 0], found[:, 1])
    return [(a, b, float(score)) for (a, b), score in zip(pairs, scores)]


def rising(values: Sequence[int]) -> list[int]:
    """Indices of a longest strictly rising selection of `values`."""
    tails: list[int] = []
    heads: list[int] = []
    previous: list[int] = []
    for index, value in enumerate(values):
        place = bisect_left(heads, value)
        previous.append(tails[place - 1] if place else -1)
        if place == len(tails):
            tails.append(index)
            heads.append(value)
        else:
            tails[place] = index
            heads[place] = value
    chosen = []
    index = tails[-1] if tails else -1
    while index >= 0:
        chosen.append(index)
        index = previous[index]
    return chosen[::-1]
