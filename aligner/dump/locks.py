"""Locks on files that end with the process that took them.

A lock belongs to the open file, which a forked child has, too: it would last until the child has ended as well. So a
child closes the file as soon as it begins (one that C code forks off does not: see owner.py), and the lock is given
back by name where it is not needed any more.
"""

from __future__ import annotations

import fcntl
import os
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Optional

PATIENCE = 3.0
"""Seconds that a dump's beginning waits for another one."""
_PAUSE = 0.01


def lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> Optional[bool]:
    """Take a lock on an open file: False if another open file has it, None where locks are not to be had."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a network file system without locks
        return None
    return True


def stands_at(descriptor: int, path: Path) -> bool:
    """Whether an open file is the one that `path` names."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        return False
    return os.path.samestat(found, os.fstat(descriptor))


class Locked:
    """An open file with a lock on it, this process's own."""

    def __init__(self, path: Path, flags: int) -> None:
        """Open the file; `taken` is False if another has its lock."""
        self.descriptor = os.open(path, flags | os.O_CLOEXEC, 0o666)
        self._process = os.getpid()
        self.taken = lock(self.descriptor) is not False
        _ours().add(self)

    def close(self) -> None:
        """Give the lock back and close the file; harmless when it was already."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        if self._process == os.getpid():  # a child's copy is the same lock
            with suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@cache
def _ours() -> weakref.WeakSet[Locked]:
    """All of this process; a fork's copies are closed."""
    found: weakref.WeakSet[Locked] = weakref.WeakSet()

    def forked() -> None:
        for one in list(found):
            one.close()

    os.register_at_fork(after_in_child=forked)
    return found


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Nobody else begins a dump at `path`, or recovers the one there, meanwhile.

    Raises:
        BlockingIOError: somebody else does, and does not end.
    """
    guard = path.with_name(path.name + ".lock")
    ends = time.monotonic() + PATIENCE
    while True:
        held = Locked(guard, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        if held.taken and stands_at(held.descriptor, guard):  # else the one before us has just taken it away
            break
        taken = held.taken
        held.close()
        if not taken:
            if time.monotonic() > ends:
                raise BlockingIOError(guard)
            time.sleep(_PAUSE)
    try:
        yield
    finally:
        with suppress(OSError):  # an empty file that stays does no harm
            guard.unlink()
        held.close()
