"""Room on the disk, taken before it is needed, so that a dump can always be closed.

A full disk must not cost what was captured. The file is therefore kept longer than its data by what closing it
will write; a record is accepted only when there is still room for that behind it.
"""

from __future__ import annotations

import errno
import os

FULL = frozenset({errno.ENOSPC, errno.EFBIG, errno.EDQUOT})
_STEP = 1 << 20
_ZEROS = 1 << 16


class Reserve:
    """How far the file behind a descriptor has been allocated."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._end = 0

    def reach_behind(self, end: int, room: int) -> None:
        """Data were written up to `end`: make sure that `room` bytes behind them can be written.

        Raises:
            OSError: there is no such room; what was allocated before stays so.
        """
        if end + room <= self._end:
            return
        start = max(self._end, end)
        try:
            self._allocate(start, end + room + _STEP)
        except OSError as error:
            if error.errno not in FULL:
                raise
            self._allocate(start, end + room)  # nearly full: take no more than what is asked for

    def give_back(self) -> None:
        """Let go of what a write that failed may have taken from a disk that is full."""
        os.ftruncate(self._descriptor, self._end)

    def _allocate(self, start: int, end: int) -> None:
        try:
            os.posix_fallocate(self._descriptor, start, end - start)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                raise
            self._write_zeros(start, end)
        except AttributeError:  # macOS has no such call
            self._write_zeros(start, end)
        self._end = end

    def _write_zeros(self, at: int, end: int) -> None:
        zeros = bytes(_ZEROS)
        while at < end:
            at += os.pwrite(self._descriptor, zeros[: end - at], at)
