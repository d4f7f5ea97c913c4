"""Values dropped, not finite, or rounded: what happened to single elements of the reference's value."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.inquiry import spend
from aligner.explain.patterns.pair import Floats, Pair, figure
from aligner.explain.patterns.scales import listed, slope
from aligner.explain.suspect import Suspect

GRIDS = {"bfloat16": 16, "float16": 13, "tf32": 13, "hf32": 12}
"""Low bits of a float32 that each short float lacks; float16 has fewer exponents too.

tf32 and hf32 are what devices make of the operands of products on their own: they appear in no dtype.
"""

HALF = 4e-3
"""More than a few roundings to float16 make of a tensor as a whole."""

LARGEST = 65504.0
"""The largest float16."""


def suspects(pair: Pair) -> Iterator[Suspect]:
    """All that hold of finite values."""
    if not pair.alike:
        return
    for rule in (_dropped, _rounded):
        found = rule(pair)
        if found is not None:
            yield found


def broken(pair: Pair) -> Iterator[Suspect]:
    """NaN and Inf on one side, and the largest float16."""
    if not pair.alike:
        return
    apart = np.isnan(pair.expected) != np.isnan(pair.actual)
    if apart.any():
        more = bool(np.isnan(pair.actual[apart]).any())
        places = np.argwhere(apart)
        yield pair.suspect(
            "nan-appears" if more else "nan-hidden",
            None,
            0.6,
            count=len(places),
            total=int(apart.size),
            first=str(tuple(int(i) for i in places[0])),
            rows=listed(sorted({int(i) for i in places[:4096, 0]})) if places.shape[1] else "",
        )
    lost = np.isinf(pair.actual) & np.isfinite(pair.expected)
    if lost.any():
        least = float(np.abs(pair.expected[lost]).min())
        yield pair.suspect("overflow", None, 0.7, count=int(lost.sum()), least=figure(least))
        yield from _too_large(pair)
    full = np.abs(pair.actual) == LARGEST
    if full.any() and not (np.abs(pair.expected) == LARGEST).any():
        yield pair.suspect("ascend-overflow-saturation-mode", None, 0.6, count=int(full.sum()))


def _too_large(pair: Pair) -> Iterator[Suspect]:
    """Infinity where the reference has numbers that float16 cannot hold, or sums of such that it has to hold."""
    numbers = np.abs(pair.expected[np.isfinite(pair.expected)])
    largest = float(numbers.max())
    if largest < LARGEST / 2:
        return
    with np.errstate(over="ignore"):
        rounded = pair.expected.astype(np.float16).astype(np.float64)
    finite = np.isfinite(rounded)
    same = np.array_equal(np.where(finite, 0.0, rounded), np.where(np.isfinite(pair.actual), 0.0, pair.actual))
    left = distance(np.where(finite, pair.actual, 0.0), np.where(finite, pair.expected, 0.0)) if same else None
    count = int((np.isfinite(pair.expected) & ~np.isfinite(pair.actual)).sum())
    beyond = int((numbers > LARGEST).sum())
    yield pair.suspect(
        "float16-overflow",
        left if left is not None and left <= HALF else None,
        0.97,
        None,
        largest=figure(largest),
        count=count,
        beyond=beyond,
    )


def _dropped(pair: Pair) -> Optional[Suspect]:
    """Zeros at random places, the rest scaled up: a dropout that is active."""
    wanted, found = pair.sample
    zero = (found == 0) & (wanted != 0)
    kept = (found != 0) & (wanted != 0)
    if zero.sum() < 4 or kept.sum() < 8:
        return None
    ratio = slope(wanted[kept], found[kept])
    if ratio <= 0.0 or not pair.near(found[kept] / ratio, wanted[kept]):
        return None
    gone = (pair.actual == 0) & (pair.expected != 0)
    left = pair.proved(np.where(gone, 0.0, ratio * pair.expected), pair.actual)
    rate = float(gone.sum()) / max(int(np.count_nonzero(pair.expected)), 1)
    if left is None or _negative(pair, gone):
        return None
    if not (abs(ratio * (1.0 - rate) - 1.0) < 0.1 and ratio > 1.001):
        return None  # any pattern of zeros fits itself: without the scale of a dropout it is no proof
    facts: dict[str, Any] = {"rate": f"{1.0 - 1.0 / ratio:.3f}", "ratio": figure(ratio), "scaled": figure(ratio)}
    return pair.suspect("dropout-functional-train-flag", left, 0.8, **facts)


def _negative(pair: Pair, gone: Floats) -> bool:
    """Whether zeros stand exactly where the reference is below zero: that is a ReLU."""
    return bool((gone == (pair.expected < 0)).all())


def grid(values: Floats, word: str) -> Floats:
    """The values rounded to a short float, as float32."""
    spend(6 * np.size(values))
    single = np.asarray(values, np.float32)
    if word == "float16":
        with np.errstate(over="ignore"):
            return single.astype(np.float16).astype(np.float32)
    bits = np.ascontiguousarray(single).view(np.uint32)
    low = np.uint32(GRIDS[word])
    half = np.uint32((1 << (GRIDS[word] - 1)) - 1)
    odd = (bits >> low) & np.uint32(1)
    return np.asarray(((bits + half + odd) >> low << low).view(np.float32))


def _rounded(pair: Pair) -> Optional[Suspect]:
    """All of the port's elements can be written in a short float, those of the reference cannot."""
    wanted, found = pair.sample
    if wanted.size < 16 or len(np.unique(found)) < 8:
        return None
    for word in GRIDS:
        if not (grid(found, word) == found.astype(np.float32)).all():
            continue
        if (grid(wanted, word) == wanted.astype(np.float32)).mean() > 0.5:
            continue
        left = pair.proved(grid(pair.expected, word), pair.actual)
        if left is not None:
            return pair.suspect(
                "bf16-output-rounding" if word == "bfloat16" else "rounding-grid", left, 0.7, dtype=word
            )
        if pair.before < {"bfloat16": 3e-2, "float16": 4e-3, "tf32": 4e-3, "hf32": 2e-3}[word]:
            return pair.suspect("rounding-grid", None, 0.5, dtype=word)
    return None
