"""What was added to a value depends on two axes only and is the other way round: a grid with its axes exchanged."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from aligner.explain.patterns.pair import Pair
from aligner.explain.suspect import Suspect


def diagonal(pair: Pair) -> Iterator[Suspect]:
    """Only the diagonal of the last two axes is off, by one number: loops of a graph, added or not."""
    if pair.expected.ndim < 2 or pair.expected.shape[-1] != pair.expected.shape[-2] or not np.isfinite(pair.before):
        return
    apart = np.asarray(pair.expected - pair.actual, np.float64)
    size = pair.expected.shape[-1]
    numbers = np.diagonal(apart, axis1=-2, axis2=-1)
    number = float(numbers.flat[np.abs(numbers).argmax()])
    if size < 3 or not number or not np.isclose(numbers, (number,), rtol=1e-4).mean() > 0.4:
        return
    left = pair.proved(pair.actual + apart * np.eye(size), pair.expected)
    if left is not None:
        eye = f"{number:.4g} * eye({size})"
        codes = {"other": eye, "reference_code": f"... + {eye}", "port_code": "..."}
        yield pair.suspect("addend-missing" if number > 0 else "addend-extra", left, 0.9, None, **codes)


def suspects(pair: Pair) -> Iterator[Suspect]:
    """The difference is a number times the difference of two indices, on a part of one other axis or everywhere."""
    if not np.isfinite(pair.before) or pair.expected.ndim < 3:
        return
    apart = np.asarray(pair.actual - pair.expected, np.float64)
    for one, other in combinations(range(apart.ndim), 2):
        if min(apart.shape[one], apart.shape[other]) < 3:
            continue
        moved = np.moveaxis(apart, (one, other), (-2, -1))
        flat = moved.reshape(-1, *moved.shape[-2:])
        rows, columns = np.arange(flat.shape[1])[:, None], np.arange(flat.shape[2])[None]
        basis = (rows - columns).astype(np.float64)
        slopes = (flat * basis).sum(axis=(1, 2)) / np.square(basis).sum()
        predicted = np.moveaxis((slopes[:, None, None] * basis).reshape(moved.shape), (-2, -1), (one, other))
        size = np.abs(slopes)
        if not size.any():
            continue
        left = pair.proved(pair.actual - predicted, pair.expected)
        steps = np.unique(np.round(size[size > 1e-3 * size.max()] / size.max(), 3))
        if left is not None and len(steps) <= 4:
            slope = f"{slopes[size.argmax()]:.4g}"
            yield pair.suspect("meshgrid-indexing-default", left, 0.85, slope=slope, one=one, other_axis=other)
            return
