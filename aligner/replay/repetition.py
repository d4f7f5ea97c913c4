"""Mistakes that one piece of code hands on more than once: to several layers, along a shortcut, beside other values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.float64]

SAME = 0.02
"""Two differences are one mistake if they are alike to this much of their size."""

KEPT = 4
"""Differences that are remembered; code that makes more mistakes is named often enough."""

LARGEST = 64 << 20
"""Bytes of a difference that is remembered."""

PLAIN = 1e-3
"""What is smaller than this much of the largest difference may be the rounding of values beside the wrong ones."""

EXACT = 1e-7
"""The very same wrong number is off by the same, to this much of the largest difference."""

TELLING = 16
"""So many different numbers do not come together again by chance."""


class Mistakes:
    """By what the values of one piece of code have been off so far."""

    def __init__(self) -> None:
        self._known: list[Numbers] = []

    def repeats(self, difference: Numbers) -> bool:
        """Whether it is off again by what it was off by before; remembered if not."""
        with np.errstate(all="ignore"):
            size = float(np.linalg.norm(difference))
            if not np.isfinite(size) or size == 0:
                return False
            if any(_multiple(before, difference, size) or _among(difference, before) for before in self._known):
                return True
        if len(self._known) < KEPT and difference.nbytes <= LARGEST:
            self._known.append(difference)
        return False


def _multiple(before: Numbers, difference: Numbers, size: float) -> bool:
    """The whole of it, perhaps scaled, where both have the same number of elements."""
    if before.size != difference.size:
        return False
    share = float(before @ difference) / (float(before @ before) or 1.0)
    return float(np.linalg.norm(difference - share * before)) <= SAME * size


def _among(difference: Numbers, before: Numbers) -> bool:
    """Whether nearly all its numbers were among those of before: spread, cut out or put beside others."""
    found, known = _numbers(difference), _numbers(before)
    if min(found.size, known.size) < TELLING:
        return False
    largest = float(np.abs(known).max())
    if abs(float(np.abs(found).max()) - largest) > EXACT * largest and found.size > known.size:
        return False
    place = np.clip(np.searchsorted(known, found), 1, known.size - 1)
    apart = np.minimum(np.abs(known[place] - found), np.abs(known[place - 1] - found))
    return float(np.mean(apart <= EXACT * largest)) >= 1.0 - SAME


def _numbers(difference: Numbers) -> Numbers:
    """The different numbers in it, in order, without what may be rounding."""
    sizes = np.abs(difference)
    numbers: Numbers = np.unique(difference[sizes > PLAIN * float(sizes.max())])
    return numbers
