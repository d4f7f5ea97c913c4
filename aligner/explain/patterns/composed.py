"""The reference's value is a function of the port's: an activation is missing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Optional

import numpy as np

from aligner.explain.patterns.functions import FUNCTIONS, Floats, applied, softmax
from aligner.explain.patterns.pair import Pair
from aligner.explain.suspect import Suspect

ROUGH = 4e-5
"""What a framework's tanh may be off by (relative L2); MindSpore's is on CPU."""

VARIED = 4
"""Fewer values than this fit any function with a flat end."""


def suspects(pair: Pair) -> Iterator[Suspect]:
    """One suspect, for the function that fits best."""
    if not pair.alike:
        return
    missing = fitting(pair, pair.actual, pair.expected) or _softmax(pair, pair.actual, pair.expected)
    if missing is not None:
        yield pair.suspect("activation-missing", missing[1], 0.75, function=missing[0])


def fitting(pair: Pair, source: Floats, result: Floats) -> Optional[tuple[str, float]]:
    """The function of each element that makes `result` of `source`, and what it leaves; of shapes alike."""
    flat = np.unravel_index(pair.spots, source.shape)
    few, wanted = np.asarray(source[flat], np.float64), np.asarray(result[flat], np.float64)
    if len(np.unique(wanted)) < VARIED:
        return None
    for name in FUNCTIONS:
        rough = replace(pair, limit=max(pair.limit, ROUGH)) if name in ("Tanh", "GELU(tanh)", "Mish") else pair
        if rough.near(applied(name, few), wanted):
            left = rough.proved(applied(name, source), result)
            if left is not None:
                return name, left
    return None


def _softmax(pair: Pair, source: Floats, result: Floats) -> Optional[tuple[str, float]]:
    if not np.isfinite(result).all():
        return None
    for axis in range(result.ndim):
        if result.shape[axis] < 2:
            continue
        sums = result.sum(axis=axis, dtype=np.float64)
        if np.abs(sums - 1.0).max() < 1e-3 and float(result.min()) >= 0.0:
            name, found = f"Softmax(axis={axis})", softmax(np.asarray(source, np.float64), axis)
        elif float(result.max()) <= 0.0 and np.abs(np.exp(result).sum(axis=axis, dtype=np.float64) - 1.0).max() < 1e-3:
            with np.errstate(divide="ignore"):
                name, found = f"LogSoftmax(axis={axis})", np.log(softmax(np.asarray(source, np.float64), axis))
        else:
            continue
        left = pair.proved(found, result)
        if left is not None:
            return name, left
    return None
