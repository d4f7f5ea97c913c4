"""The rule by which a difference is too large; every figure it looks at stands in the Deviation."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from aligner.errors import UsageError

if TYPE_CHECKING:
    from aligner.compare.deviation import Deviation

RULES = ("scaled", "allclose", "abs", "l2")

FLOOR = 1e-7
"""The smallest scale a tensor is measured against.

A gradient that is truly zero (the bias of attention's keys) comes out as round-off of norm 4e-11 in both nets and must
stay quiet: 1e-3 of this floor is more than twice that. Gradients of size 1e-6 stand above it and are seen.
"""


def scale_of(rms: float) -> float:
    """What differences are set against besides the element itself: the tensor's own size, one at most."""
    return max(min(1.0, rms), FLOOR)


@dataclass(frozen=True)
class Tolerance:
    """A pair is over tolerance when `error(deviation) > value`; integers and booleans when any element differs.

    "scaled" sets each difference against min(1, rms) + |reference|, "allclose" against 1 + |reference| (as
    np.allclose does with rtol = atol = value), "abs" against nothing; "l2" is the relative L2 norm of the whole tensor.
    """

    value: float = 1e-3
    rule: str = "scaled"

    def __post_init__(self) -> None:
        if self.rule not in RULES:
            raise UsageError("rule-unknown", rule=str(self.rule), known=", ".join(RULES))
        if not (isinstance(self.value, (int, float)) and 0 <= self.value < math.inf):
            raise UsageError("tolerance-invalid", value=str(self.value))

    def error(self, deviation: Deviation) -> float:
        """The figure that is set against `value`; inf where NaN or Inf stand apart."""
        if deviation.nonfinite:
            return math.inf
        if deviation.exact or self.rule == "abs":
            return deviation.max_abs
        if self.rule == "allclose":
            return deviation.allclose
        return deviation.scaled if self.rule == "scaled" else deviation.rel_l2

    def over(self, deviation: Deviation) -> bool:
        """Whether the pair is over tolerance."""
        if deviation.exact:
            return deviation.mismatched > 0
        return self.error(deviation) > self.value
