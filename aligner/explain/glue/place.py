"""One wrong value between layers, at some positions and as a whole, with the pool of what was in hand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from aligner.explain.case import Case, distance
from aligner.explain.glue.formula import Formula
from aligner.explain.glue.hand import Hand
from aligner.explain.glue.pool import POSITIONS, Pool
from aligner.explain.patterns.pair import DROP, FEW, Floats, Pair, distinct, spots

TRIES = 6
"""Formulas that are checked on the whole tensor before a search is given up."""


@dataclass(frozen=True, eq=False)
class Place:
    """`wanted` is the reference's value at the positions, `found` the port's; both sides have one shape."""

    case: Case
    pair: Pair
    pool: Pool
    wanted: Floats
    found: Floats

    @staticmethod
    def of(case: Case, pair: Pair, hand: Hand) -> Place:
        """The place of a case whose two values have one shape."""
        positions = _positions(pair.expected, pair.actual)
        pool = Pool(hand, pair.expected.shape, positions)
        wanted, found = (
            np.asarray(side[np.unravel_index(positions, side.shape)], np.float64)
            for side in (pair.expected, pair.actual)
        )
        return Place(case, pair, pool, wanted, found)

    @cached_property
    def telling(self) -> bool:
        """Whether there are numbers enough to know a formula by: a lone number is many sums and products."""
        return distinct(self.wanted) >= FEW

    def noise(self, at: Floats, factor: float = 1.0) -> Floats:
        """What may be off at each position without meaning anything."""
        usable = at[np.isfinite(at)]
        scale = float(np.sqrt(np.square(usable).mean())) if usable.size else 0.0
        tolerance = factor * max(2e-5, 2.0 * self.pair.limit)
        return np.asarray(tolerance * np.nan_to_num(np.abs(at)) + 0.02 * tolerance * scale)

    def gives(self, formula: Formula, whole: Floats) -> bool:
        """Whether the formula is this whole value, up to rounding and less than the error to explain."""
        left = distance(formula(whole.shape), whole)
        return left <= self.pair.limit and left * DROP <= self.pair.before


def _positions(expected: Floats, actual: Floats) -> Floats:
    """Where to look: mostly where the two differ and neither is zero, always the same."""
    flat = np.random.default_rng(0).permutation(spots(expected.size, 16 * POSITIONS))
    at = np.unravel_index(flat, expected.shape)
    one, other = np.asarray(expected[at], np.float64), np.asarray(actual[at], np.float64)
    finite = np.isfinite(one) & np.isfinite(other)
    with np.errstate(invalid="ignore"):
        differs = finite & (np.abs(one - other) > 1e-4 * (np.abs(one) + np.abs(other)))
    rank = np.where(differs & (one != 0) & (other != 0), 0, np.where(differs, 1, np.where(finite, 2, 3)))
    order = np.argsort(rank, kind="stable")
    telling, rest = order[: 3 * POSITIONS // 4], order[3 * POSITIONS // 4 :]
    return np.asarray(flat[np.concatenate([telling, rest[:: max(1, len(rest) * 4 // POSITIONS)][: POSITIONS // 4]])])
