"""What rounding makes of sines and cosines of large whole numbers: their angles are right to a part of the number."""

from __future__ import annotations

from collections.abc import Mapping

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


def rounded(check: Check, made: Array, entries: Mapping[Key, Entry]) -> float:
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
