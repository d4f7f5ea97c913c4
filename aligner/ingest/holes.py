"""Files with holes: what was never written takes no room on the disk, reads as zeros, and need not take memory either.

A few bytes can be a file of terabytes. A true dump has holes as well, where a tensor of zeros was copied by rsync -S or
lies on a disk that compresses.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from aligner.record import Array

SPARE = 4 << 30
MOST = 100
"""Apparent bytes to each byte on the disk, beyond the spare ones: weights and activations do not compress like this."""
PIECE = 1 << 20


def hollow(apparent: int, stored: int) -> bool:
    """Whether files of so many bytes are mostly holes; 0 stored bytes are said by disks that do not tell."""
    return stored > 0 and apparent > SPARE + MOST * stored


def read(file: BinaryIO, start: int, count: int, dtype: np.dtype[np.generic]) -> Array:
    """`count` elements at `start`; memory is taken for what the file holds, not for its holes.

    Raises:
        ValueError: the file ends before.
        OSError: it cannot be read.
    """
    flat = np.zeros(count, dtype)  # pages that nobody writes are no memory
    data = flat.view(np.uint8).data
    for begin, end in _stored(file.fileno(), start, start + data.nbytes):
        at = begin
        while at < end:
            done = os.preadv(file.fileno(), [data[at - start : min(end, at + PIECE) - start]], at)
            if not done:
                raise ValueError("it ends before its data do")
            at += done
    return flat


def _stored(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The runs of bytes that the file holds."""
    seek_data, seek_hole = getattr(os, "SEEK_DATA", None), getattr(os, "SEEK_HOLE", None)
    at = start
    while at < end:
        stop = end
        if seek_data is not None and seek_hole is not None:
            try:
                at = os.lseek(descriptor, at, seek_data)
                stop = min(end, os.lseek(descriptor, at, seek_hole))
            except OSError as error:
                if error.errno == errno.ENXIO:  # nothing but holes from here on
                    return
                stop = end  # a disk that does not tell
        if at < stop:
            yield at, stop
        at = max(stop, at + 1)
