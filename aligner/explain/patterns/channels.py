"""A line through the values of each channel: what an image is multiplied by, and what is added."""

from __future__ import annotations

from typing import Optional

import numpy as np

from aligner.explain.patterns.pair import Floats, thin

CLOSE = 1e-5
"""Numbers nearer than this, relatively, are one number."""

Line = tuple[Floats, Floats]
"""Factors and addends, one for each channel or one for all."""


def line(given: Floats, made: Floats, axis: int, limit: float) -> Optional[Line]:
    """The line through each channel, if all elements are on it."""
    x, y = (np.moveaxis(side, axis, 0).reshape(side.shape[axis], -1) for side in (given, made))
    few = thin(x.shape, (0,))
    some = _fitted(np.asarray(x[few], np.float64), np.asarray(y[few], np.float64))
    if some is None or not _on(some, x[few], y[few], 10 * limit):
        return None
    line = _fitted(np.asarray(x, np.float64), np.asarray(y, np.float64))
    if line is None or not _on(line, x, y, limit):
        return None
    return (np.where(np.abs(line[0] - 1.0) < CLOSE, 1.0, line[0]), np.where(np.abs(line[1]) < CLOSE, 0.0, line[1]))


def _fitted(x: Floats, y: Floats) -> Optional[Line]:
    middle, height = x.mean(axis=1), y.mean(axis=1)
    square = np.square(x - middle[:, None]).sum(axis=1)
    if not (np.isfinite(square).all() and np.isfinite(height).all() and (square > 0).all()):
        return None
    factors = ((x - middle[:, None]) * (y - height[:, None])).sum(axis=1) / square
    return None if (np.abs(factors) < 1e-6).any() else (factors, height - factors * middle)


def _on(line: Line, x: Floats, y: Floats, limit: float) -> bool:
    made = line[0][:, None] * x + line[1][:, None]
    return float(np.linalg.norm(made - y)) <= limit * float(np.linalg.norm(y))


def listed(numbers: Floats) -> str:
    words = [f"{number:.4g}" for number in numbers]
    return words[0] if len(set(words)) == 1 else f"({', '.join(words)})"
