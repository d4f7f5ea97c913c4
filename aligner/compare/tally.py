"""The running sums and maxima of one pair of tensors, fed block by block."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from aligner.compare.tolerance import Tolerance, scale_of

Numbers = npt.NDArray[Any]

NOWHERE = -1


@dataclass
class Tally:
    """What is known after the blocks so far. Sums are of values times `unit`, a power of two (see `Meter`)."""

    tolerance: Tolerance
    rms: float
    unit: float = 1.0
    scale: float = field(init=False)
    reference_squares: float = 0.0
    port_squares: float = 0.0
    products: float = 0.0
    difference_squares: float = 0.0
    largest: float = 0.0
    """The largest finite modulus on either side, as far as `add_sums` saw it."""
    crowded: bool = False
    """A block had many elements of interest; the next ones will too, so none are looked for one by one."""
    max_abs: float = 0.0
    scaled: float = 0.0
    allclose: float = 0.0
    mismatched: int = 0
    nan: list[int] = field(default_factory=lambda: [0, 0])
    inf: list[int] = field(default_factory=lambda: [0, 0])
    nonfinite: int = 0
    top: float = 0.0
    """The rule's figure at `worst`; rule "l2", which looks at the whole tensor, has the difference there."""
    worst: int = NOWHERE
    worst_values: tuple[float, float] = (0.0, 0.0)
    apart: int = NOWHERE
    """The first place where NaN or Inf stand apart, and the values there."""
    apart_values: tuple[float, float] = (0.0, 0.0)

    def __post_init__(self) -> None:
        self.scale = scale_of(self.rms)

    @property
    def limit(self) -> float:
        """No element whose difference is up to this is over tolerance, whatever its size."""
        factors = {"scaled": self.scale, "allclose": 1.0, "abs": 1.0, "l2": self.rms}
        return self.tolerance.value * factors[self.tolerance.rule]

    @property
    def seen(self) -> float:
        """No element whose difference is up to this can raise a maximum."""
        return min(self.max_abs, self.scaled * self.scale, self.allclose)

    def over(self, difference: Numbers, size: Numbers) -> Numbers:
        """Which elements are over tolerance by themselves; rule "l2" has no such thing: more than the share of one."""
        rule, value = self.tolerance.rule, self.tolerance.value
        if rule == "scaled":
            return np.asarray(difference / (self.scale + size) > value)
        if rule == "allclose":
            return np.asarray(difference / (1.0 + size) > value)
        return np.asarray(difference > self.limit)

    def settle(self, reference: Numbers, port: Numbers, positions: Numbers) -> Numbers:
        """Take these finite elements into the maxima, in float64; says which of them are over tolerance."""
        difference, size = np.abs(port - reference), np.abs(reference)
        scaled, allclose = difference / (self.scale + size), difference / (1.0 + size)
        ruled = {"scaled": scaled, "allclose": allclose}.get(self.tolerance.rule, difference)
        at = int(np.argmax(ruled))
        if ruled[at] > self.top:
            self.top = float(ruled[at])
            self.worst = int(positions[at])
            self.worst_values = (plain(reference[at]), plain(port[at]))
        self.scaled = max(self.scaled, float(scaled.max()))
        self.max_abs = max(self.max_abs, float(difference.max()))
        self.allclose = max(self.allclose, float(allclose.max()))
        return self.over(difference, size)


def plain(value: np.generic) -> float:
    """A number a report can print: the modulus of a complex one."""
    return float(abs(value)) if isinstance(value, np.complexfloating) else float(value)  # type: ignore[arg-type] # real


def ratio(above: float, below: float) -> float:
    """Square root of a quotient of sums of squares; nothing over nothing is 0."""
    if below == 0.0:
        return 0.0 if above == 0.0 else math.inf
    return math.sqrt(above / below)
