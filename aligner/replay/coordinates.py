"""What rounding makes of values that come of large numbers: they are right to a part of the number.

Sines and cosines of whole numbers, and pictures that were made larger or smaller: where a pixel lies is a number up to
the picture's side, and the framework's own operation rounds it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Optional

import numpy as np

from aligner.compare.checks import Check
from aligner.compare.net import is_input
from aligner.dtypes import DTYPES
from aligner.dump.entry import Entry
from aligner.record import Array, Key

EPS = DTYPES["float32"].eps or 0.0
CLOSE = 1e-3
"""The squares of a sine and a cosine of one angle are 1 together, up to this."""
LEAST = 4
"""Channels that such a table has."""


RESIZING = ("interpolate", "upsample", "resize", "grid_sample")
"""Parts of the names of operations that read a picture at places of their own."""


def of_pixels(made: Array, ran: Optional[Iterable[str]]) -> float:
    """Relative L2 that may be between two pictures, one of which the reference has made by such an operation (`ran`).

    A place is off by the last bit of the side, and the picture by that part of what lies between two pixels.
    """
    if made.ndim < 4 or made.dtype.kind != "f" or not any(word in name for name in ran or () for word in RESIZING):
        return 0.0
    picture = made.astype(np.float64)
    steps = [np.diff(picture, axis=axis) for axis in (-1, -2)]
    size = float(np.sqrt(np.square(picture).mean()))
    between = max(float(np.sqrt(np.square(step).mean())) if step.size else 0.0 for step in steps)
    return EPS * max(made.shape[-2:]) * between / size if size and np.isfinite(size) else 0.0


def of_angles(check: Check, made: Array, entries: Mapping[Key, Entry]) -> float:
    """Relative L2 that may be between two tables of places or time steps; 0 where the value is no such table.

    No noise tells of it, for a whole number bears none. An angle is off by the last bit of the largest.
    """
    if check.where == "inputs" or not on_circles(made):
        return 0.0
    sizes = [
        float(np.abs(entry.load().astype(np.float64)).max(initial=0.0))
        for entry in entries.values()
        if _whole(entry) and _handed(entry, check)
    ]
    return EPS * max([*sizes, *map(float, made.shape)])


def _whole(entry: Entry) -> bool:
    return DTYPES[entry.dtype].exact and entry.dtype != "bool"


def _handed(entry: Entry, check: Check) -> bool:
    """Whether the code had it in hand: an argument of its layer or of the net."""
    key = entry.key
    return key.layer in ("", check.owner) and key.step == check.key.step and is_input(key.slot)


def on_circles(made: Array) -> bool:
    """Whether a value's channels are sines and cosines of one angle each, half by half or pair by pair."""
    if made.ndim < 2 or made.shape[-1] < LEAST or made.shape[-1] % 2 or made.dtype.kind != "f":
        return False
    half = made.shape[-1] // 2
    squares = np.square(made.astype(np.float64))
    pairs = (squares[..., :half] + squares[..., half:], squares[..., ::2] + squares[..., 1::2])
    return any(bool((np.abs(lengths - 1.0) <= CLOSE).all()) for lengths in pairs)
