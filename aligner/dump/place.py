"""May a dump be written there? Asked before anything runs for minutes, and by the writer itself; imports no numpy."""

from __future__ import annotations

import errno
import os
import stat
from typing import Union

from aligner.errors import OutputError


def check_place(path: Union[str, os.PathLike[str]], force: bool) -> None:
    """See that a new file may stand at `path`.

    Raises:
        OutputError: says why it may not.
    """
    name = os.fspath(path)
    if name.endswith(os.sep) and not os.path.isdir(name):
        raise OutputError("dump-name-folder", path=name)
    folder = os.path.dirname(os.path.abspath(name))
    try:
        os.lstat(f"{name}.journal.new")  # the longest name that is written
    except FileNotFoundError:
        pass
    except OSError as error:
        if os.path.isdir(folder):
            raise OutputError("dump-name", path=name, reason=os.strerror(error.errno or 0)) from error
    _check_standing(name, force)
    if not os.path.isdir(folder):
        raise OutputError("dump-no-folder", path=name, folder=folder)
    if not os.access(folder, os.W_OK):
        raise OutputError("dump-not-writable", path=name, folder=folder, reason=os.strerror(errno.EACCES))


def _check_standing(name: str, force: bool) -> None:
    """What stands there already may be in the way."""
    try:
        mode = os.lstat(name).st_mode
    except OSError:
        return
    if stat.S_ISDIR(mode) or os.path.isdir(name):
        raise OutputError("dump-is-folder", path=name.rstrip(os.sep) or name)
    if not force:
        raise OutputError("dump-exists", path=name)
    if not (stat.S_ISREG(mode) or stat.S_ISLNK(mode)):
        raise OutputError("dump-no-file", path=name)
