"""Gradients at a kink: where a value is zero but for rounding, an activation lets the gradient through on one side and
not on the other. So it is with two largest values of a pool that are equal but for rounding.

Few elements are off then, each with nothing on one side, and what the backward run makes of them is off by as little.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from aligner.compare.later import is_end
from aligner.record import Phase
from aligner.words.training import LOSS

if TYPE_CHECKING:
    from aligner.compare.reading import Reading

FEW, SHARE = 3, 1e-3
"""So many elements of one value, or this part of them, stand at a kink at most."""

ROUND = 1e-4
"""All others are off by less than this part of the value's size."""

GROWN, MOST = 10.0, 1e-2
"""What comes of it is off by so many times what it began with at most, and never by more than this (relative L2)."""


def excuse_kinks(readings: Iterable[Reading]) -> None:
    """Judge the gradients of each step's backward run as they were made."""
    begun: dict[int, float] = {}
    for reading in sorted(readings, key=lambda one: one.pair.entry.order):
        key, deviation = reading.pair.key, reading.deviation
        if key.phase is not Phase.BACKWARD or key.layer == LOSS or is_end(key) or not reading.over:
            continue
        if deviation is None or reading.covered or not reading.matched or deviation.nonfinite:
            continue
        known = begun.get(key.step, 0.0)
        off = deviation.rel_l2
        if off <= min(GROWN * known, MOST):
            reading.over, reading.rounded = False, True
        elif off <= MOST and deviation.mismatched <= max(FEW, SHARE * deviation.total) and _stands_at_one(reading):
            reading.over, reading.rounded = False, True
            begun[key.step] = max(known, off)


def _stands_at_one(reading: Reading) -> bool:
    one, other = reading.pair.reference, reading.pair.port
    if one is None or other is None or one.shape != other.shape:
        return False
    ours, theirs = (np.asarray(entry.load(), np.float64).reshape(-1) for entry in (one, other))
    far = np.abs(ours - theirs) > ROUND * np.sqrt(np.mean(np.square(ours)))
    apart = far & (ours != 0) & (theirs != 0)
    return bool(far.sum() <= max(FEW, SHARE * ours.size) and not apart.any())
