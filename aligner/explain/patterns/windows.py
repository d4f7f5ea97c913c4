"""Where a sliding window reads: coordinates along an axis, and what stands beyond the border."""

from __future__ import annotations

from typing import Any

import numpy as np

from aligner.explain.patterns.pair import Floats

MODES = ("zeros", "reflect", "replicate", "circular", "symmetric")
"""What a framework may put beyond the border."""


def pairs(padding: Any, axes: int) -> tuple[tuple[int, int], ...]:
    """(before, after) for each axis; zeros for a word such as "same" and for what is no padding."""
    if not isinstance(padding, (tuple, list)) or len(padding) != axes:
        return ((0, 0),) * axes
    both = [tuple(p) if isinstance(p, (tuple, list)) else (p, p) for p in padding]
    if not all(len(p) == 2 and all(isinstance(n, int) for n in p) for p in both):
        return ((0, 0),) * axes
    return tuple((int(p[0]), int(p[1])) for p in both)


def per_axis(value: Any, axes: int) -> tuple[int, ...]:
    """One number for each axis, at least 1; 1 for what is no number."""
    listed = value if isinstance(value, (tuple, list)) and len(value) == axes else (value,) * axes
    return tuple(max(int(v), 1) if isinstance(v, (int, float)) else 1 for v in listed)


def same(size: int, kernel: int, stride: int, dilation: int) -> int:
    """Elements before the first one where padding is worked out from the input: the smaller half."""
    total = max((-(-size // stride) - 1) * stride + (kernel - 1) * dilation + 1 - size, 0)
    return total // 2


def placed(index: Floats, size: int, mode: str) -> tuple[Floats, Floats]:
    """Where each coordinate is read, and whether it counts: outside it does not for zeros."""
    inside = (index >= 0) & (index < size)
    if mode == "zeros":
        return np.where(inside, index, 0), inside
    if mode == "replicate":
        at = np.clip(index, 0, size - 1)
    elif mode == "circular":
        at = index % size
    elif mode == "symmetric":
        turned = index % (2 * size)
        at = np.where(turned < size, turned, 2 * size - 1 - turned)
    else:
        period = max(2 * size - 2, 1)
        turned = index % period
        at = np.where(turned < size, turned, period - turned)
    return at, np.ones_like(inside)
