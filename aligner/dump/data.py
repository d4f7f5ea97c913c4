"""The bytes of records on disk: written once at the end of the file, compared, and read back in pieces."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Union

import numpy as np

from aligner.dtypes import DTYPES
from aligner.dump import locks
from aligner.dump.checksum import Checksum
from aligner.dump.reserve import Reserve
from aligner.errors import Reason
from aligner.record import Array

PIECE = 1 << 20  # bytes at a time: written and summed while they are in the processor's cache
PAGE = 4096


def flat_bytes(array: Array, dtype: str) -> Array:
    """The array's bits in storage type as flat bytes; copied only if it is not contiguous or big-endian.

    Raises:
        Reason: the array is not what `dtype` is stored as.
    """
    if dtype not in DTYPES:
        raise Reason("why-unknown-dtype", repr(dtype))
    storage = DTYPES[dtype].storage
    if array.dtype != storage:
        if array.dtype.newbyteorder("<") != storage:
            raise Reason("why-other-storage", array.dtype, repr(dtype), storage)
        array = array.astype(storage)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8)


class DataFile:
    """The file of a dump that is being written."""

    def __init__(self, path: Path, start: int, *, new: bool = True) -> None:
        """Create the file, or open one that is there; records are added from `start` on."""
        self.end = start
        flags = os.O_CREAT | os.O_EXCL if new else 0
        self._descriptor = os.open(path, os.O_RDWR | flags | getattr(os, "O_CLOEXEC", 0), 0o666)
        self._reserve = Reserve(self._descriptor)

    def put(self, offset: int, data: Union[bytes, memoryview]) -> None:
        """Write all of `data` at `offset`."""
        count = os.pwrite(self._descriptor, data, offset)
        while count < len(data):  # a signal came, or the disk is nearly full; the next write says which
            data, offset = memoryview(data)[count:], offset + count
            count = os.pwrite(self._descriptor, data, offset)

    def append(self, flat: Array, known: int, room: int) -> tuple[int, int]:
        """Write a record's bytes behind the last one's and keep `room` bytes behind them.

        Args:
            flat: the bytes.
            known: their checksum, or -1 to work it out on the way.
            room: what closing the dump will need.

        Returns:
            Where the bytes lie, and their checksum.

        Raises:
            OSError: the disk is full; nothing that was written before is touched.
        """
        align = PAGE if flat.size >= PIECE else 8
        offset = -(-self.end // align) * align
        end = offset + flat.size
        self._reserve.reach(end + room)
        if known >= 0:
            self.put(offset, flat.data)
        else:
            known = self._pieces(flat, offset)
        self.end = end
        return offset, known

    def _pieces(self, flat: Array, offset: int) -> int:
        total = Checksum()
        for at in range(0, flat.size, PIECE):
            piece = flat[at : at + PIECE]
            total.update(piece)
            self.put(offset + at, piece.data)
        return total.value()

    def keep(self, room: int) -> None:
        """Make sure of `room` bytes behind the data."""
        self._reserve.reach(self.end + room)

    def holds(self, flat: Array, offset: int) -> bool:
        """Whether exactly these bytes lie at `offset`."""
        buffer = np.empty(min(flat.size, PIECE), np.uint8)
        for at in range(0, flat.size, PIECE):
            piece = flat[at : at + PIECE]
            read = os.preadv(self._descriptor, [buffer[: piece.size].data], offset + at)
            if read != piece.size or not _alike(buffer[:read], piece):
                return False
        return True

    def stands_at(self, path: Path) -> bool:
        """Whether the file is still the one that `path` names."""
        return locks.stands_at(self._descriptor, path)

    def cut(self, size: int) -> None:
        """End the file here."""
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        """Give the file back to the system; harmless when it was already."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def _alike(one: Array, other: Array) -> bool:
    """Whether two flat arrays of the same number of bytes are equal: as words, which takes half the time."""
    whole = one.size & ~7
    words = np.array_equal(one[:whole].view(np.uint64), other[:whole].view(np.uint64))
    return words and np.array_equal(one[whole:], other[whole:])
