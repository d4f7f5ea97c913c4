"""Which two of many rows of numbers are together what is wanted: sorted by the first number, then looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Optional

import numpy as np

from aligner.explain.patterns.pair import Floats

AT_ONCE = 8
"""Wanted rows that are looked for together."""

MAX_MATCHES = 100_000
ALIKE = 400
"""Rows that may begin as one row needs it."""
MOST = 50
"""Pairs that are told of one wanted row."""

Pairs = list[tuple[int, int]]
Needed = Callable[[Floats, Floats, Floats, Floats], tuple[Floats, Floats]]
"""What a row needs to be the wanted one, of wanted, noise, factor and row; and how near that must be met."""


class Rows:
    """Rows of finite numbers; `usable` says which are taken."""

    def __init__(self, numbers: Floats, usable: Optional[Floats] = None) -> None:
        good = np.isfinite(numbers).all(axis=1)
        self._at = np.flatnonzero(good if usable is None else good & usable)
        self._rows = np.ascontiguousarray(numbers[self._at])
        self._first, self._last = (np.ascontiguousarray(self._rows[:, column]) for column in (0, -1))
        self._sorted: dict[float, tuple[Floats, Floats]] = {}

    def sums(self, wanted: Floats, noise: Floats, sign: float) -> list[Pairs]:
        """For each wanted row the pairs of which one, plus or minus the other, is within its noise of it."""
        return self._met(sign, wanted, noise, np.ones_like(wanted), np.full_like(wanted, sign), _less)

    def products(self, wanted: Floats, noise: Floats) -> list[Pairs]:
        """The same of one times the other."""
        return self._met(1.0, wanted, noise, np.ones_like(wanted), np.ones_like(wanted), _divided)

    def blends(self, wanted: Floats, noise: Floats, front: Floats, back: Floats) -> list[Pairs]:
        """The same of one times `front` plus the other times `back`."""
        found: list[Pairs] = [[] for _ in wanted]
        for sign in (1.0, -1.0, 0.0):
            which = np.flatnonzero(np.sign(back[:, 0]) == sign)
            one, near, ours, theirs = (rows[which] for rows in (wanted, noise, front, back))
            for number, pairs in zip(which, self._met(sign, one, near, ours, theirs, _less)):
                found[number] = pairs
        return found

    def _order(self, sign: float) -> tuple[Floats, Floats]:
        """The first numbers times this in their order, and which they are."""
        if sign not in self._sorted:
            order = np.argsort(sign * self._first, kind="stable")
            self._sorted[sign] = (sign * self._first)[order], order
        return self._sorted[sign]

    def _met(self, sign: float, wanted: Floats, noise: Floats, front: Floats, back: Floats, how: Needed) -> list[Pairs]:
        """Pairs (i, j) where what is needed beside row i is `back` times row j: `sign` is that of its first numbers."""
        found: list[Pairs] = [[] for _ in wanted]
        if not self._at.size:
            return found
        first, order = self._order(sign)
        need, margin = how(wanted[:, :1], noise[:, :1], front[:, :1], self._first)
        part = np.where(back[:, :1] == 0, 1.0, np.abs(back[:, :1]))
        slack = np.where(part == 1.0, 0.0, 1e-12 * (np.abs(need) + margin) / part)  # a quotient is rounded
        high = (need + margin) / part + slack
        low = np.searchsorted(first, (need - margin) / part - slack)
        number, one = np.nonzero((low < first.size) & (first[np.minimum(low, first.size - 1)] <= high))
        if not one.size:
            return found
        low = low[number, one]
        counts = np.minimum(np.searchsorted(first, high[number, one], side="right") - low, ALIKE)
        _bound(counts, number)
        offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        other = order[np.repeat(low, counts) + offset]
        number, one = np.repeat(number, counts), np.repeat(one, counts)
        need, margin = how(wanted[number, -1], noise[number, -1], front[number, -1], self._last[one])
        near = np.abs(need - back[number, -1] * self._last[other]) <= margin
        number, one, other = number[near], one[near], other[near]
        need, margin = how(wanted[number], noise[number], front[number], self._rows[one])
        near = (np.abs(need - back[number] * self._rows[other]) <= margin).all(axis=1)
        for which, i, j in zip(number[near].tolist(), self._at[one[near]].tolist(), self._at[other[near]].tolist()):
            if len(found[which]) < MOST:
                found[which].append((i, j))
        return found


def _less(wanted: Floats, noise: Floats, front: Floats, rows: Floats) -> tuple[Floats, Floats]:
    return wanted - front * rows, noise


def _divided(wanted: Floats, noise: Floats, front: Floats, rows: Floats) -> tuple[Floats, Floats]:
    needed = wanted / rows
    return needed, noise / np.abs(rows) + 1e-9 * np.abs(needed)


def _bound(counts: Floats, number: Floats) -> None:
    """Of what is needed for one wanted row, all is left out beyond MAX_MATCHES."""
    for which in np.flatnonzero(np.bincount(number, counts) > MAX_MATCHES):
        mine = np.flatnonzero(number == which)
        counts[mine[np.cumsum(counts[mine]) > MAX_MATCHES]] = 0


def multiples(wanted: Floats, rows: Floats, noise: Floats) -> Iterator[list[tuple[int, float]]]:
    """For each wanted row the rows that are it times a number, with that number."""
    weight = np.square(rows).sum(axis=1)
    about = rows @ wanted.T / np.where(weight == 0, np.inf, weight)[:, None]
    near = np.ones(about.shape, bool)
    for column in (0, -1):  # what BLAS sums in another order is off by less than a billionth
        slack = noise[column] + 1e-9 * np.sqrt(np.square(wanted).sum(axis=1))
        near &= ~(np.abs(about * rows[:, [column]] - wanted[:, column]) > slack)
    for row, chosen in zip(wanted, near.T):
        few = np.flatnonzero(chosen)
        factor, same = constant(row, rows[few], noise)
        yield [(int(few[at]), float(factor[at])) for at in np.flatnonzero(same)]


def constant(wanted: Floats, rows: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """For each row the number that makes it the wanted one, and whether it does."""
    if not len(rows):
        return np.zeros(0), np.zeros(0, bool)
    weight = np.square(rows).sum(axis=1)
    factor = (rows * wanted).sum(axis=1) / np.where(weight == 0, np.inf, weight)
    varied = rows.max(axis=1) - rows.min(axis=1) > 1e-6 * np.abs(rows).max(axis=1)
    same = (np.abs(factor[:, None] * rows - wanted) <= noise).all(axis=1) & varied & (factor != 0)
    return factor, same
