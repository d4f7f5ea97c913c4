"""Patches of a map as rows: whether the channels or the places of the window come first, on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import isqrt
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.hand import Hand
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect

NEAR = 4
"""Maps in hand that may have been cut into patches."""

LARGEST = 1 << 22


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one: both sides hold the same patches, each in its own order."""
    shape = pair.expected.shape
    if len(shape) != 3 or pair.expected.size > LARGEST or not np.isfinite(pair.before):
        return
    maps = [p for p in hand.pieces(lambda s: len(s) == 4 and s[0] == shape[0]) if p.array.dtype.kind == "f"][:NEAR]
    for piece, axis in product(maps, (1, 2)):
        channels = piece.array.shape[1]
        window = isqrt(shape[axis] // channels)
        if window < 2 or channels < 2 or window * window * channels != shape[axis]:
            continue
        for stride, before in product(range(1, window + 1), range(window // 2 + 1)):
            rows = _rows(piece.array, window, stride, before)
            if rows is None or rows.shape[-1] != shape[3 - axis]:
                continue
            ours, theirs = (_order(rows, side if axis == 1 else side.swapaxes(1, 2), pair) for side in _sides(pair))
            if ours and theirs and ours[0] != theirs[0]:
                codes = [
                    f"unfold([{piece.name}], {window}, stride={stride}, padding={before})[{way}]"
                    for way, _ in (ours, theirs)
                ]
                facts = {"other": codes[0], "instead": codes[1], "reference_code": codes[0], "port_code": codes[1]}
                yield pair.suspect("unfold-nn-class-order", theirs[1], 0.92, None, **facts)
                return


def _sides(pair: Pair) -> tuple[Floats, Floats]:
    return pair.expected, pair.actual


def _rows(array: Floats, window: int, stride: int, before: int) -> Optional[Floats]:
    """(batch, channels, window, window, places)."""
    x = np.pad(array, ((0, 0), (0, 0), (before, before), (before, before)))
    sizes = [(n - window) // stride + 1 for n in x.shape[2:]]
    if min(sizes) < 1 or x.shape[0] * x.shape[1] * window**2 * sizes[0] * sizes[1] > LARGEST:
        return None
    parts = [
        x[:, :, i : i + stride * sizes[0] : stride, j : j + stride * sizes[1] : stride][:, :, : sizes[0], : sizes[1]]
        for i, j in product(range(window), range(window))
    ]
    return np.asarray(np.stack(parts, 2).reshape(*x.shape[:2], window, window, -1))


def _order(rows: Floats, side: Floats, pair: Pair) -> Optional[tuple[str, float]]:
    """In which order the side holds the patches, and what that leaves."""
    for way, order in (("channels_first", (0, 1, 2, 3, 4)), ("window_first", (0, 2, 3, 1, 4))):
        left = distance(rows.transpose(order).reshape(side.shape), side)
        if left <= pair.limit:
            return way, left
    return None
