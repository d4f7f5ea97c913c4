"""Parts one behind the other along an axis, each scaled or shifted by its own number: boxes of two levels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.patterns.pair import Floats, Pair, figure
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect

MOST = 16
"""Parts that may stand behind each other."""

LENGTH = 8
"""Elements in a row that a part has, at least, on average."""

SHORT = 8
"""Slices of an axis that may each have numbers of their own."""

Run = tuple[int, int]


def suspects(pair: Pair) -> Iterator[Suspect]:
    """At most one: the shifts, or the factors, by part; perhaps others for each slice of a short axis."""
    if not pair.alike or not (np.isfinite(pair.expected).all() and np.isfinite(pair.actual).all()):
        return
    shape = pair.expected.shape
    for axis, size in enumerate(shape):
        if size < 2 * LENGTH:
            continue
        short = [other for other, n in enumerate(shape) if other != axis and 1 < n <= SHORT]
        for keep in ((), *((other,) for other in short)):
            found = _shifted(pair, axis, keep) or _scaled(pair, axis, keep)
            if found is not None:
                yield found
                return


def _over(pair: Pair, axis: int, keep: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a for a in range(pair.expected.ndim) if a != axis and a not in keep)


def _shifted(pair: Pair, axis: int, keep: tuple[int, ...]) -> Optional[Suspect]:
    over = _over(pair, axis, keep)
    shifts = (np.asarray(pair.actual, np.float64) - pair.expected).mean(axis=over, keepdims=True)
    scale = float(np.sqrt(np.square(pair.expected, dtype=np.float64).mean())) or 1.0
    runs = _runs(shifts, axis, 1e-4 * scale)
    if runs is None:
        return None
    level = _levelled(shifts, axis, runs)
    left = pair.proved(pair.actual - level, pair.expected)
    return None if left is None else _told(pair, "part-shift", left, axis, level, runs)


def _scaled(pair: Pair, axis: int, keep: tuple[int, ...]) -> Optional[Suspect]:
    over = _over(pair, axis, keep)
    below = np.square(pair.expected, dtype=np.float64).sum(axis=over, keepdims=True)
    both = np.multiply(pair.expected, pair.actual, dtype=np.float64).sum(axis=over, keepdims=True)
    if not (below > 0).all():
        return None
    ratios = both / below
    runs = _runs(ratios, axis, 1e-4 * float(np.abs(ratios).max()))
    if runs is None or not ratios.any():
        return None
    level = _levelled(ratios, axis, runs)
    left = pair.proved(pair.expected * level, pair.actual)
    return None if left is None else _told(pair, "part-ratio", left, axis, level, runs)


def _runs(numbers: Floats, axis: int, near: float) -> Optional[list[Run]]:
    """Stretches of one number each; None where these are too many, or where there is but one."""
    size = numbers.shape[axis]
    steps = np.abs(np.diff(numbers, axis=axis)).max(axis=tuple(a for a in range(numbers.ndim) if a != axis))
    ends = (np.flatnonzero(steps > near) + 1).tolist()
    starts = [0, *ends]
    if not 2 <= len(starts) <= min(MOST, size // LENGTH):
        return None
    return list(zip(starts, [*ends, size]))


def _levelled(numbers: Floats, axis: int, runs: list[Run]) -> Floats:
    """The mean of each stretch in its place."""
    parts = [
        np.broadcast_to(part.mean(axis=axis, keepdims=True), part.shape)
        for part in np.split(numbers, [start for start, _ in runs[1:]], axis)
    ]
    return np.concatenate(parts, axis)


def _told(pair: Pair, cause: str, left: float, axis: int, level: Floats, runs: list[Run]) -> Suspect:
    def listed(numbers: Floats) -> str:
        return ", ".join(figure(float(number)) for number in numbers.reshape(-1))

    parts = [phrase("stretches", listed(level.take(start, axis)), start, end - 1) for start, end in runs]
    told: Fact = (*parts[:6], "...") if len(parts) > 6 else tuple(parts)
    return pair.suspect(cause, left, 0.75, None, axis=axis, numbers=told, parts=len(runs), part="")
