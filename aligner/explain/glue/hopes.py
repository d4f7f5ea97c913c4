"""Which edits of a formula may give a value at all, told for all values in hand at once by a few positions."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Optional

import numpy as np

from aligner.explain.glue.formula import Formula, Term
from aligner.explain.glue.functions import FUNCTIONS
from aligner.explain.glue.pool import Pool
from aligner.explain.patterns.pair import Floats

LOOKED_AT = 48
FITTING = 0.97
"""Of all positions, more than this must fit."""


class Hopes:
    """For each of the pool's views whether it may be what was put into the formula; what cannot be is not tried."""

    def __init__(self, formula: Formula, pool: Pool, wanted: Floats, noise: Floats) -> None:
        self._formula, self._pool = formula, pool
        self._raw = pool.raw[:, :LOOKED_AT]
        self._wanted, self._noise = wanted[:LOOKED_AT], 2.0 * noise[:LOOKED_AT]  # sums are made in another order
        self._misses = math.floor((1.0 - FITTING) * len(wanted) + 1e-6)
        self._terms = [self._values((term,)) for term in formula.terms]
        self._made: dict[str, Floats] = {}

    def added(self, sign: float) -> Floats:
        """Added to it, or taken off."""
        return self._near(self._sum(self._terms) + sign * self._raw)

    def gated(self, function: str, number: Optional[int] = None) -> Floats:
        """A function of it, times one term or all of them."""
        if number is None:
            return self._near(self._sum(self._terms) * self._of(function))
        return self._near(self._but(number) + self._terms[number] * self._of(function))

    def put(self, number: int, place: int) -> Floats:
        """In the place of a factor's value, in one term."""
        term = self._formula.terms[number]
        others = term.factors[:place] + term.factors[place + 1 :]
        rest = self._values((Term(others, term.coefficient),))
        return self._near(self._but(number) + rest * self._of(term.factors[place].function))

    def _of(self, function: str) -> Floats:
        if function not in self._made:
            self._made[function] = np.asarray(FUNCTIONS[function](self._raw))
        return self._made[function]

    def _but(self, number: int) -> Floats:
        return self._sum([*self._terms[:number], *self._terms[number + 1 :]])

    def _sum(self, rows: Iterable[Floats]) -> Floats:
        return np.asarray(sum(rows, np.zeros(len(self._wanted))))

    def _values(self, terms: tuple[Term, ...]) -> Floats:
        return self._pool.values(Formula(terms))[:LOOKED_AT]

    def _near(self, inner: Floats) -> Floats:
        apart = np.abs(FUNCTIONS[self._formula.outer](inner) - self._wanted)
        return np.asarray(np.count_nonzero(~(apart <= self._noise), axis=1) <= self._misses)
