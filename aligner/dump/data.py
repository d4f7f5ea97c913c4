"""The bytes of records on disk: written once at the end of the file, compared, and read back in pieces."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from aligner.dump.checksum import Checksum
from aligner.dump.reserve import Reserve
from aligner.dtypes import DTYPES
from aligner.record import Array

PIECE = 1 << 20  # bytes at a time: written and summed while they are in the processor's cache
PAGE = 4096
CREATE = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)


def flat_bytes(array: Array, dtype: str) -> Array:
    """The array's bits in storage type as flat bytes; copied only if it is not contiguous or big-endian.

    Raises:
        ValueError: the array is not what `dtype` is stored as.
    """
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r}")
    storage = DTYPES[dtype].storage
    if array.dtype != storage:
        if array.dtype.newbyteorder("<") != storage:
            raise ValueError(f"array of {array.dtype} for {dtype!r}, which is stored as {storage}")
        array = array.astype(storage)
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    return array.reshape(-1).view(np.uint8)


class DataFile:
    """The file of a dump that is being written."""

    def __init__(self, path: Path, start: int) -> None:
        self.end = start
        self._descriptor = os.open(path, CREATE, 0o666)
        self._reserve = Reserve(self._descriptor)

    def put(self, offset: int, data: bytes) -> None:
        """Write all of `data` at `offset`."""
        view = memoryview(data)
        while view.nbytes:
            count = os.pwrite(self._descriptor, view, offset)
            view, offset = view[count:], offset + count

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
        try:
            if flat.size <= PIECE and known >= 0:
                count = os.pwrite(self._descriptor, flat, offset)
                if count < flat.size:
                    self._pieces(flat[count:], offset + count)
            else:
                known = self._pieces(flat, offset)
            self._reserve.reach_behind(end, room)
        except OSError:
            self._reserve.give_back()
            raise
        self.end = end
        return offset, known

    def _pieces(self, flat: Array, offset: int) -> int:
        total = Checksum()
        for at in range(0, flat.size, PIECE):
            piece = flat[at : at + PIECE]
            total.update(piece)
            done = 0
            while done < piece.size:
                done += os.pwrite(self._descriptor, piece[done:], offset + at + done)
        return total.value()

    def keep(self, room: int) -> None:
        """Make sure of `room` bytes behind the data."""
        self._reserve.reach_behind(self.end, room)

    def holds(self, flat: Array, offset: int) -> bool:
        """Whether exactly these bytes lie at `offset`."""
        buffer = np.empty(min(flat.size, PIECE), np.uint8)
        for at in range(0, flat.size, PIECE):
            piece = flat[at : at + PIECE]
            read = os.preadv(self._descriptor, [buffer[: piece.size]], offset + at)
            if read != piece.size or not np.array_equal(buffer[:read], piece):
                return False
        return True

    def cut(self, size: int) -> None:
        """End the file here."""
        os.ftruncate(self._descriptor, size)

    def close(self) -> None:
        """Give the file back to the system; harmless when it was already."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
