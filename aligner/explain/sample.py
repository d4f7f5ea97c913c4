"""Whole items of a batch in place of all of them, for values that are too large to be looked at as a whole.

A rule that needs the whole of an item (an order of axes, attention, a convolution) finds it whole. Where an item is too
large as well, only rules are asked that look at each place by itself: part of an axis tells them what all of it would.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.explain.case import Case, Value, distance
from aligner.explain.phrase import Fact
from aligner.explain.suspect import Suspect
from aligner.record import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    Indices = npt.NDArray[np.int64]
else:
    Indices = Any

LARGE = 1 << 22
"""Elements of a value that is looked at as a whole; with what rules make of it in float64 that is some 100 MiB."""

SAMPLE = 1 << 20
"""Elements that are looked at in place of more."""

LEAST = 2
"""Items at least: with a single one the batch would look like an axis that is not there."""

LOCAL = frozenset(f"layer.{name}" for name in ("activations", "softmaxes", "norms", "products", "linear", "broken"))
"""Rules that are right about part of an axis: what they know of one place they need no other for."""

Chosen = Mapping[int, Indices]
"""Indices that are taken, by axis."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A case made smaller."""

    case: Case
    items: bool
    """Only whole items of the batch were left out; else only LOCAL rules may be asked."""
    shapes: tuple[tuple[int, ...], tuple[int, ...]]
    """Of the right value, before and afterwards."""

    def told(self, suspect: Suspect) -> Suspect:
        """What was found of it, with the shapes of the whole."""
        facts = {name: self._whole(name, fact) for name, fact in suspect.facts.items()}
        return replace(suspect, facts=facts)

    def _whole(self, name: str, fact: Fact) -> Fact:
        (before, *_), (after, *_) = self.shapes
        if not isinstance(fact, str) or before == after:
            return fact
        if name in ("shape", "port_shape", "factors"):
            return re.sub(rf"^\({after}([,)])", rf"({before}\1", fact)
        return re.sub(rf"\breshape\({after}([,)])", rf"reshape({before}\1", fact)


def sampled(case: Case) -> Optional[Sample]:
    """The case with less of its values; None where all of it can be looked at."""
    expected, actual = case.expected, case.actual
    if expected is None or actual is None or max(math.prod(v.shape) for v in (expected, actual)) <= LARGE:
        return None
    chosen: dict[int, Indices] = {}
    left, shape = math.prod(expected.shape), list(expected.shape)
    batch = case.batch is not None and case.batch > LEAST
    if batch and expected.shape[0] == actual.shape[0] == case.batch:
        chosen[0] = _chosen(case, 0, SAMPLE * shape[0] // left)
        left, shape[0] = left // shape[0] * len(chosen[0]), len(chosen[0])
    items = left <= LARGE
    axis = _axis(expected.shape, 0 in chosen)
    if not items and expected.shape == actual.shape and axis is not None:
        chosen[axis] = _chosen(case, axis, SAMPLE * shape[axis] // left)
        left, shape[axis] = left // shape[axis] * len(chosen[axis]), len(chosen[axis])
    if not chosen or left > LARGE:
        return Sample(replace(case, expected=None), False, (expected.shape, expected.shape))  # nothing can be asked
    rank = len(expected.shape)
    cut = partial(_cut, chosen, expected.shape, rank)
    made = replace(
        case,
        expected=cut(expected),
        actual=cut(actual),
        inputs=tuple(map(cut, case.inputs)),
        outputs=tuple(map(cut, case.outputs)),
        known=tuple(map(cut, case.known)),
    )
    return Sample(made, items, (expected.shape, tuple(shape)))


def _axis(shape: tuple[int, ...], batched: bool) -> Optional[int]:
    """An axis of places: rows of a map, tokens of a text, but neither channels nor the last axis."""
    offered = range(2, len(shape) - 1) if len(shape) > 3 else range(1 if batched else 0, len(shape) - 1)
    return max(offered, key=lambda axis: shape[axis], default=None)


def _chosen(case: Case, axis: int, count: int) -> Indices:
    """The first ones, and the one that is furthest off."""
    assert case.expected is not None
    assert case.actual is not None
    size = case.expected.shape[axis]
    count = min(max(count, LEAST), size)
    if case.expected.shape != case.actual.shape:
        return np.arange(count)
    one, other = (np.moveaxis(value.load(), axis, 0) for value in (case.expected, case.actual))
    apart = [distance(other[number], one[number]) for number in range(size)]
    return np.asarray(np.unique([*range(count - 1), max(range(count - 1, size), key=apart.__getitem__)]))


def _cut(chosen: Chosen, whole: tuple[int, ...], rank: int, value: Value) -> Value:
    """The value with the same part of each axis; as it is where it is a parameter, or has other axes."""
    shape = value.shape
    axes = [
        axis
        for axis in chosen
        if (axis == 0 or len(shape) == rank) and len(shape) > axis and shape[axis] == whole[axis]
    ]
    if not axes or not value.slot.startswith(("input.", "output.")):
        return value
    left = tuple(len(chosen[axis]) if axis in axes else size for axis, size in enumerate(shape))
    return replace(value, shape=left, load=partial(_part, value, {axis: chosen[axis] for axis in axes}))


def _part(value: Value, chosen: Chosen) -> Array:
    array = value.load()
    for axis, indices in chosen.items():
        array = np.take(array, indices, axis)
    return array
