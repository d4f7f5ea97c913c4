"""Opening the file of a dump: whether it is there, is a file, and is as large as it says."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from aligner.dump import journal
from aligner.errors import DumpError

SPARE = 4 << 30
MOST = 100
"""Bytes of a file, beyond the spare ones, to each byte that the disk holds: no net's values compress like this."""


def descriptor_of(path: Path) -> int:
    """A descriptor of the file.

    Raises:
        DumpError: there is none, or it is not a file.
    """
    if path.is_dir():
        raise DumpError("dump-is-folder", path=path)
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError as error:
        beside = journal.path_of(path)
        if beside.exists():
            raise DumpError("dump-journal-alone", path=path, journal=beside.name) from error
        raise DumpError("dump-missing", path=path) from error
    except OSError as error:
        raise DumpError("dump-unreadable", path=path, reason=error.strerror or error) from error
    return descriptor


def size_of(descriptor: int, path: Path) -> int:
    """The file's size.

    Raises:
        DumpError: a few bytes claim to be many gigabytes, of which nobody would see the end.
    """
    found = os.fstat(descriptor)
    stored = 512 * getattr(found, "st_blocks", 0)  # 0 where the disk does not tell
    if stored and found.st_size > SPARE + MOST * stored:
        raise DumpError("dump-hollow", path=path, size=found.st_size, stored=stored)
    return found.st_size


def standing(path: Path) -> list[Optional[tuple[int, int, int]]]:
    """Which files stand there now, the dump and its journal."""
    found: list[Optional[tuple[int, int, int]]] = []
    for one in (path, journal.path_of(path)):
        try:
            seen = one.stat()
        except OSError:
            found.append(None)
        else:
            found.append((seen.st_dev, seen.st_ino, seen.st_ctime_ns))
    return found
