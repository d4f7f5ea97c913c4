"""The two files of a program: `<layer>.repro.py` and `<layer>.repro.npz`, under names that any disk takes.

Both are created, never overwritten and never written through a link: what lies in the folder may be somebody's work,
or somebody's trap.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from aligner.errors import UsageError
from aligner.programs.repro import Repro, arrays, built, script

LONGEST_NAME = 120
"""Bytes; most disks take 255."""


@dataclass(frozen=True)
class Written:
    """What was written for a layer."""

    layer: str
    script: Path
    complete: bool
    """Nothing needs to be filled in."""
    refused: bool
    """The dump does tell how the layer is built, and what it tells is no layer of the framework's."""
    reason: str


def write(repro: Repro, folder: Path) -> Written:
    """Write both files.

    Raises:
        UsageError: they are there already, the folder cannot be written, or the call cannot be made again.
    """
    text = script(repro)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError("repro-folder", folder=folder, reason=error.strerror or error) from error
    # A name with a dot in it can be no module: a layer called "token" must not be taken for Python's own.
    path = folder / f"{file_name(repro.name)}.repro.py"
    values = path.with_suffix(".npz")
    _create(values, lambda file: np.savez(file, **arrays(repro)))
    try:
        _create(path, lambda file: file.write(text.encode("utf-8")))
    except UsageError:
        values.unlink()
        raise
    known = bool(repro.operation) or built(repro) is not None
    return Written(repro.name, path, known, not known and bool(repro.python), "" if known else repro.reason or "-")


def _create(path: Path, fill: Callable[[BinaryIO], object]) -> None:
    """Make a new file, wholly or not at all.

    Raises:
        UsageError: something is there, a dangling link included; or the file cannot be written.
    """
    try:
        with path.open("xb") as file:
            try:
                fill(file)
            except BaseException:
                with suppress(OSError):
                    path.unlink()
                raise
    except FileExistsError as error:
        raise UsageError("repro-exists", script=path) from error
    except (OSError, UnicodeError) as error:  # UnicodeError: the locale has no such letters in names of files
        reason = getattr(error, "strerror", None) or error
        raise UsageError("repro-unwritten", script=path, reason=reason) from error


def file_name(layer: str) -> str:
    """The layer's path as a file's name; where that is not the path itself, with a mark by which two of them differ."""
    name = re.sub(r"[^\w.-]", "_", layer)
    cut = name.encode("utf-8", "replace")[-LONGEST_NAME:].decode("utf-8", "ignore").strip(".-")  # "-c" is an option
    if cut == layer or not layer:
        return cut or "net"
    return f"{cut}-{hashlib.sha256(layer.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
