"""What rules about numbers work on: the right value, the wrong one, and how near a hypothesis must come.

Rules look at a few thousand elements first, always the same ones, and go over the whole tensor only for what those
did not rule out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.explain.case import Case, Value, distance
from aligner.explain.inquiry import spend
from aligner.explain.phrase import Fact
from aligner.explain.suspect import Suspect
from aligner.record import Attribute, Scalar

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[Any]
else:
    Floats = Any

SAMPLE = 4096
"""Elements looked at before the whole tensor is."""

FINE = 1e-5
"""A hypothesis in float64 meets float32 results within this, whatever order they were summed in."""

DROP = 8.0
"""A hypothesis must bring the error down by this factor: what leaves it as it is explains nothing."""

FEW = 6
"""Numbers that are not alike, at least, to know a formula by; fewer fit any."""


def distinct(values: Floats) -> int:
    """How many numbers there are that are not alike; what was spread over an axis counts once, and zero not at all."""
    usable = np.asarray(values, np.float64).reshape(-1)
    usable = usable[np.isfinite(usable) & (usable != 0.0)]
    scale = float(np.abs(usable).max()) if usable.size else 0.0
    return int(np.unique(np.round(usable / scale, 5)).size) if scale else 0


def limit(rounding: float) -> float:
    """The relative L2 that a right hypothesis may leave. Short floats explain much: only a little more is allowed."""
    return max(FINE, min(20.0 * rounding, 1e-3), 2.0 * rounding)


def usual(case: Case) -> dict[str, Scalar]:
    """The facts that every suspect has."""
    facts: dict[str, Scalar] = {"layer": case.layer or "(net)", "port_layer": case.port_layer or "(net)"}
    facts.update(kind=case.reference.kind, port_kind=case.port.kind)
    return facts


def figure(number: float) -> str:
    """A number as people read it: 0.5, 1.25, 3e-07."""
    return f"{number:.4g}"


@dataclass(frozen=True, eq=False)
class Pair:
    """The reference's value and the port's. `before` is how far they are apart."""

    expected: Floats
    actual: Floats
    limit: float
    facts: Mapping[str, Scalar] = field(default_factory=dict)

    @staticmethod
    def of(case: Case) -> Optional[Pair]:
        """The case's pair, or None where a side is missing, empty, or no real numbers."""
        if case.expected is None or case.actual is None:
            return None
        expected, actual = numbers(case.expected), numbers(case.actual)
        if expected is None or actual is None or not expected.size or not actual.size:
            return None
        return Pair(expected, actual, limit(case.rounding), usual(case))

    @property
    def alike(self) -> bool:
        """Whether both have one shape."""
        return bool(self.expected.shape == self.actual.shape)

    @cached_property
    def before(self) -> float:
        """Relative L2 of the two as they are."""
        return distance(self.actual, self.expected)

    @cached_property
    def spots(self) -> Floats:
        """Flat positions of the sample, in the port's value: all where there are few."""
        return spots(self.actual.size)

    @cached_property
    def sample(self) -> tuple[Floats, Floats]:
        """Expected and actual at `spots`, in float64; only for one shape, and only where both are finite."""
        one = at(self.expected, self.spots)
        other = at(self.actual, self.spots)
        whole = np.isfinite(one) & np.isfinite(other)
        return one[whole], other[whole]

    def near(self, found: Floats, wanted: Floats) -> bool:
        """Whether two samples agree as well as a right hypothesis must."""
        if not wanted.size:
            return False
        return distance(found, wanted) <= self.limit

    def proved(self, found: Floats, wanted: Floats) -> Optional[float]:
        """What is left between two whole tensors, where that is little enough to prove the hypothesis."""
        if wanted.size > 4 * SAMPLE and found.shape == wanted.shape:
            few = spots(wanted.size)
            if distance(at(found, few), at(wanted, few)) > 10.0 * self.limit:
                return None
        left = distance(found, wanted)
        return left if left <= self.limit and left * DROP <= self.before else None

    def suspect(
        self,
        cause: str,
        left: Optional[float],
        weight: float,
        change: Optional[Mapping[str, Attribute]] = None,
        **facts: Fact,
    ) -> Suspect:
        """A suspect of this place, with the facts that all have and its own."""
        told: dict[str, Fact] = dict(self.facts)
        told.update(facts)
        if left is not None:
            told["left"] = f"{left:.1e}" if left else "0"
        return Suspect(cause, told, change or {}, error=left, weight=weight)


def numbers(value: Value) -> Optional[Floats]:
    """The tensor as real numbers, a single one as an axis of one; None for complex ones and words."""
    spend(math.prod(value.shape))
    array = np.atleast_1d(value.load())
    if array.dtype.kind == "f":
        return array
    return array.astype(np.float64) if array.dtype.kind in "bui" else None


def spots(size: int, count: int = SAMPLE) -> Floats:
    """Flat positions, the same each time: all of a small array, else `count` drawn over the whole of it."""
    if size <= count:
        return np.arange(size)
    return np.asarray(np.unique(np.random.default_rng(size).integers(0, size, count)))


def at(array: Floats, flat: Floats) -> Floats:
    """Elements at flat positions (in C order, whatever the array's own), in float64."""
    return np.asarray(array[np.unravel_index(flat, array.shape)], np.float64)


def thin(shape: Sequence[int], keep: Sequence[int] = (), budget: int = 1 << 15, kept: int = 1024) -> tuple[Floats, ...]:
    """Evenly spread indices for each axis, about `budget` elements in all; the axes of `keep` whole up to `kept`."""
    chosen = {axis: min(shape[axis], kept) for axis in keep}
    room = max(budget // max(int(np.prod(list(chosen.values()))), 1), 4)
    others = sorted((axis for axis in range(len(shape)) if axis not in chosen), key=lambda axis: shape[axis])
    for rank, axis in enumerate(others):
        share = max(int(room ** (1.0 / (len(others) - rank)) + 1e-9), 1)
        chosen[axis] = min(shape[axis], share)
        room = max(room // chosen[axis], 1)
    picks = [np.linspace(0, shape[axis] - 1, chosen[axis]).round().astype(np.int64) for axis in range(len(shape))]
    return tuple(np.ix_(*picks))
