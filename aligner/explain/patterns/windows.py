"""Where a sliding window reads: coordinates along an axis, and what stands beyond the border."""

from __future__ import annotations

from typing import Any

import numpy as np

from aligner.explain.patterns.pair import Floats

MODES = ("zeros", "reflect", "replicate", "circular", "symmetric")
"""What a framework may put beyond the border."""


def pairs(padding: Any, axes: int) -> tuple[tuple[int, int], ...]:
    """(before, after) for each axis; zeros for a word such as "same"."""
    if isinstance(padding, (tuple, list)) and len(padding) == axes:
        return tuple((int(p[0]), int(p[1])) if isinstance(p, (tuple, list)) else (int(p), int(p)) for p in padding)
    return ((0, 0),) * axes


def per_axis(value: Any, axes: int, default: int = 1) -> tuple[int, ...]:
    """One number for each axis."""
    if isinstance(value, (tuple, list)) and len(value) == axes:
        return tuple(int(v) for v in value)
    return (int(value) if isinstance(value, (int, float)) else default,) * axes


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
