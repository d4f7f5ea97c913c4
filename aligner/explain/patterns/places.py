"""Where a value is wrong, when it is wrong only in part: rows, borders, one half, one side of zero. Evidence only."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Optional

import numpy as np

from aligner.explain.inquiry import spend
from aligner.explain.patterns.pair import Floats, Pair, figure
from aligner.explain.patterns.scales import listed, slope
from aligner.explain.phrase import Fact, Phrase, phrase
from aligner.explain.suspect import Suspect

TOLD = 4
"""Values below zero that most channels must have for their slopes to be known."""


def suspects(pair: Pair) -> Iterator[Suspect]:
    """At most one: the most telling description of the wrong part."""
    if not pair.alike or pair.expected.size < 8:
        return
    wrong = off(pair)
    share = float(wrong.mean())
    if not 0.0 < share < 0.9:
        return
    negative = _one_side(pair, wrong)
    if negative is not None:
        yield negative
        return
    told: Fact = _border(wrong) or _slices(wrong)
    if told:
        yield pair.suspect("part-differs", None, 0.2, part=told, share=f"{100 * share:.3g} %")


def off(pair: Pair) -> Floats:
    """Which elements are wrong, beyond what rounding makes of a value of this size."""
    spend(12 * pair.expected.size)
    with np.errstate(invalid="ignore"):  # inf - inf
        apart = np.abs(pair.actual - pair.expected)
    seen = np.isfinite(pair.expected)
    size = np.abs(pair.expected[seen])
    scale = float(np.sqrt(np.mean(np.square(size, dtype=np.float64)))) if size.size else 0.0
    finite = np.isfinite(pair.actual) & seen
    return np.asarray(
        np.where(finite, apart > pair.limit * (scale + np.abs(pair.expected)), pair.actual != pair.expected)
    )


def _slopes(pair: Pair, negative: Floats) -> Optional[Floats]:
    """The factor of each channel's values below zero, as a PReLU has it; None where most tell too little."""
    if pair.expected.ndim < 2:
        return None
    others = tuple(axis for axis in range(pair.expected.ndim) if axis != 1)
    below = np.where(negative, pair.expected, 0.0).astype(np.float64)
    square, both = (below * side for side in (below, np.asarray(pair.actual, np.float64)))
    if (negative.sum(axis=others) >= TOLD).mean() < 0.5:
        return None
    length = square.sum(axis=others, keepdims=True)
    return np.asarray(both.sum(axis=others, keepdims=True) / np.where(length > 0.0, length, np.inf))


def _one_side(pair: Pair, wrong: Floats) -> Optional[Suspect]:
    """Only values below zero are wrong, by one factor: the slope of another rectifier."""
    negative = pair.expected < 0
    if not negative.any() or negative.all():
        return None
    if (wrong & ~negative).any():
        return None
    ratio = slope(np.asarray(pair.expected[negative], np.float64), np.asarray(pair.actual[negative], np.float64))
    left = pair.proved(np.where(negative, ratio * pair.expected, pair.expected), pair.actual)
    if left is not None:
        return pair.suspect("negative-side-scaled", left, 0.75, ratio=figure(ratio))
    slopes = _slopes(pair, negative)
    if slopes is not None:
        left = pair.proved(np.where(negative, slopes * pair.expected, pair.expected), pair.actual)
        if left is not None:
            known = slopes[slopes != 0.0]
            told = phrase("channel-by-channel", figure(float(known.min())), figure(float(known.max())))
            return pair.suspect("negative-side-scaled", left, 0.75, ratio=told)
    if wrong[negative].mean() < 0.5:
        return None
    return pair.suspect("negative-side-differs", None, 0.4, share=f"{100 * float(wrong[negative].mean()):.3g} %")


def border(wrong: Floats) -> list[tuple[int, int, int]]:
    """Axes along which only a border is wrong: (axis, elements wrong at its start, at its end)."""
    found: list[tuple[int, int, int]] = []
    inside = [slice(None)] * wrong.ndim
    for axis, size in enumerate(wrong.shape):
        if size < 5:
            continue
        others = tuple(a for a in range(wrong.ndim) if a != axis)
        share = wrong.mean(axis=others)
        middle = share[size // 4 : size - size // 4]
        usual = float(middle.max())
        start = next((i for i, s in enumerate(share) if s <= usual), 0)
        end = next((i for i, s in enumerate(share[::-1]) if s <= usual), 0)
        if (start or end) and start + end < size // 2:
            found.append((axis, start, end))
            inside[axis] = slice(start, size - end)
    return found if found and not wrong[tuple(inside)].any() else []


def _border(wrong: Floats) -> str:
    """The border in words, where nothing inside it is wrong."""
    return indices(border(wrong))


def indices(edges: Iterable[tuple[int, int, int]]) -> str:
    """Borders as Python writes them, which needs no translation: "[:, :, :1], [:, :, -2:]"."""
    words = []
    for axis, start, end in edges:
        for side in ([f":{start}"] if start else []) + ([f"-{end}:"] if end else []):
            words.append("[" + ", ".join([":"] * axis + [side]) + "]")
    return ", ".join(words)


def _slices(wrong: Floats) -> Optional[Phrase]:
    """The slices of one axis outside of which nothing is wrong; the axis with the smallest share."""
    best, words = 0.9, None
    for axis, size in enumerate(wrong.shape):
        hit = wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != axis))
        share = float(hit.mean())
        if size > 1 and share < best:
            best, words = share, phrase("part-of-axis", axis, listed(np.flatnonzero(hit)), size)
    return words
