"""Formulas over values in hand: a function of a sum of products. Built, evaluated and spelled here."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Optional

import numpy as np

from aligner.explain.glue.functions import FUNCTIONS, spelled
from aligner.explain.glue.views import View
from aligner.explain.inquiry import spend
from aligner.explain.patterns.pair import Floats


@dataclass(frozen=True)
class Factor:
    """A function of a value in hand."""

    function: str
    view: View

    @property
    def text(self) -> str:
        """As code."""
        return spelled(self.function, self.view.text)

    def __call__(self) -> Floats:
        spend(self.view.array.size * (4 if self.function else 1))
        return np.asarray(FUNCTIONS[self.function](self.view.array.astype(np.float64)))


@dataclass(frozen=True)
class Term:
    """A product of factors times a number."""

    factors: tuple[Factor, ...]
    coefficient: float = 1.0

    @property
    def text(self) -> str:
        """As code, without a plus in front."""
        product = " * ".join(factor.text for factor in self.factors)
        if abs(abs(self.coefficient) - 1.0) < 1e-4:
            return product if self.coefficient > 0 else f"-{product}"
        return f"{self.coefficient:.6g} * {product}"

    def __call__(self) -> Floats:
        product = self.factors[0]()
        for factor in self.factors[1:]:
            product = product * factor()
        return product if self.coefficient == 1.0 else self.coefficient * product


@dataclass(frozen=True)
class Formula:
    """`outer` of the sum of the terms."""

    terms: tuple[Term, ...]
    outer: str = ""

    @property
    def text(self) -> str:
        """As code."""
        first, *rest = [term.text for term in self.terms]
        whole = first + "".join(f" - {text[1:]}" if text.startswith("-") else f" + {text}" for text in rest)
        return spelled(self.outer, whole) if self.outer else whole

    @property
    def single(self) -> Optional[Factor]:
        """The one factor of a formula that has no more."""
        alone = len(self.terms) == 1 and len(self.terms[0].factors) == 1 and not self.outer
        return self.terms[0].factors[0] if alone else None

    def __call__(self, shape: tuple[int, ...]) -> Floats:
        spend(math.prod(shape) * (len(self.terms) + (4 if self.outer else 0)))
        total = self.terms[0]()
        for term in self.terms[1:]:
            total = total + term()
        with np.errstate(all="ignore"):
            return np.broadcast_to(FUNCTIONS[self.outer](total), shape)


def plain(view: View, function: str = "", coefficient: float = 1.0) -> Term:
    """The term of one value."""
    return Term((Factor(function, view),), coefficient)
