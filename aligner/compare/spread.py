"""A record in a shape that numpy's broadcasting would give it: (7, 4) where the other side passes (2, 7, 4)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional, Union

import numpy as np

from aligner.dtypes import decode
from aligner.record import Array

if TYPE_CHECKING:
    from aligner.compare.held import Held
    from aligner.dump.reader import Entry

    Record = Union[Entry, Held]

LARGEST = 64 << 20
"""Bytes; what would be larger than this is not spread out, since it stands in memory as a whole."""


def squeezed(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without axes of size one, which change neither the values nor their order."""
    return tuple(size for size in shape if size != 1)


def common_shape(one: Record, other: Record) -> Optional[tuple[int, ...]]:
    """The shape that both have where one of them is repeated along axes; None if there is none, or a giant one."""
    try:
        shape = np.broadcast(*(np.broadcast_to(np.empty(()), e.shape) for e in (one, other))).shape
    except ValueError:
        return None
    if shape not in (one.shape, other.shape):
        return None  # both would have to be repeated: no argument is meant so
    item = max(e.nbytes // max(1, math.prod(e.shape)) for e in (one, other))
    return shape if math.prod(shape) * item <= LARGEST else None


class Spread:
    """The part of an Entry that measuring needs, of an entry that is repeated along axes."""

    def __init__(self, entry: Entry, shape: tuple[int, ...]) -> None:
        self.dtype, self.shape = entry.dtype, shape
        self._array = np.ascontiguousarray(np.broadcast_to(entry.raw(), shape))
        self.nbytes = self._array.nbytes

    def load(self) -> Array:
        """The values as numbers."""
        return decode(self._array, self.dtype)

    def stream(self, buffer: Array, verify: bool = True) -> Iterator[Array]:
        """Pieces as Entry.stream gives them; the checksum was verified when the entry was read."""
        flat = self._array.reshape(-1)
        step = (buffer.size - buffer.size % 16) // flat.itemsize
        for start in range(0, flat.size, step):
            piece = flat[start : start + step]
            view = buffer[: piece.nbytes].view(flat.dtype)
            view[...] = piece
            yield view
