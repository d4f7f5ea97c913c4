"""Makes a complete HDF5 file of a dump whose capture was killed: what its journal tells is added behind the data.

The data stay where they are. Being killed here as well does no harm: the journal goes last.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Union

from aligner.dump import journal
from aligner.dump.data import DataFile
from aligner.dump.hdf5 import BASE, SUPERBLOCK_SIZE
from aligner.dump.reader import open_dump
from aligner.dump.sections import Content
from aligner.dump.writer import finish, reported


def recover(path: Union[str, os.PathLike[str]]) -> int:
    """Close a dump that was never closed; its header says `"recovered": true` from then on.

    Returns:
        The number of records in it. A dump that was closed properly is left as it is.

    Raises:
        DumpError: it cannot be read, is still being written, or the disk is full.
    """
    path = Path(path)
    with open_dump(path) as dump:
        if not dump.recovered:
            return len(dump.entries)
    with reported(path, len(dump.entries)), journal.held(path):
        return _close(path)


def _close(path: Path) -> int:
    """Close the dump; what it holds is looked at only now, when nobody writes it any more."""
    with open_dump(path) as dump:
        rows = dump.rows()
        if not dump.recovered:  # its writer has closed it just now, or somebody else who recovers it
            return len(rows)
        header = {**dump.header, "recovered": True}
        content = Content(header, dict(dump.layers), rows, list(dump.calls), list(dump.notes), dump.findings)
        token = dump.token
    end = max((row.offset + row.size for row in rows), default=0)
    file = DataFile(path, max(end, BASE + SUPERBLOCK_SIZE), new=False)
    try:
        finish(file, content, token)
    finally:
        file.close()
    with suppress(OSError):  # nobody reads it any more: the dump says that it is closed
        journal.path_of(path).unlink()
    return len(rows)
