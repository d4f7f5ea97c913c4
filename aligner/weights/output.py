"""Writes a checkpoint piece by piece: into a file beside it first, which takes its name when all is there."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Any, Optional

import numpy as np

from aligner.dtypes import DTYPES
from aligner.errors import ConvertError
from aligner.weights import ckpt, pth_writing, safetensors
from aligner.weights.stored import Stored

PIECE = 1 << 22

FORMS = {".ckpt": "ckpt", ".pth": "pth", ".pt": "pth", ".bin": "pth", ".safetensors": "safetensors"}
"""Ending -> what is written."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Entry:
    """A tensor that is to be written: its name and shape there, and where its bytes are."""

    name: str
    shape: tuple[int, ...]
    stored: Stored

    @property
    def dtype(self) -> str:
        """It stays what it is."""
        return self.stored.dtype


def form_of(path: str) -> str:
    """What is to be written, by the ending.

    Raises:
        ConvertError: there is no such form.
    """
    form = FORMS.get(os.path.splitext(path)[1].lower())
    if form is None:
        raise ConvertError("convert-ending", path=path, known=" ".join(FORMS))
    return form


def knows(form: str, dtype: str) -> bool:
    """Whether tensors of this type can be written in this form."""
    if form == "ckpt":
        return ckpt.knows(dtype)
    return safetensors.knows(dtype) if form == "safetensors" else dtype in DTYPES


def check_place(path: str, source: str, force: bool) -> None:
    """See that a file may be written there.

    Raises:
        ConvertError: says why it may not.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise ConvertError("convert-no-folder", path=path, folder=folder)
    if os.path.isdir(path):
        raise ConvertError("convert-unwritten", path=path, reason=os.strerror(errno.EISDIR))
    if os.path.exists(path):
        inside = os.path.isdir(source) and os.path.samefile(folder, source)
        same = os.path.exists(source) and os.path.samefile(path, source)
        if inside or same:
            raise ConvertError("convert-same", path=path)
        if not force:
            raise ConvertError("convert-exists", path=path)


def write(path: str, form: str, words: str, entries: Sequence[Entry], progress: Optional[Progress] = None) -> None:
    """Write the file; nothing of it is seen under its name before it is whole.

    Raises:
        ConvertError: it cannot be written.
        CheckpointError, DumpError: a tensor cannot be read.
    """
    beside = os.path.join(os.path.dirname(os.path.abspath(path)), f".{os.path.basename(path)}.{os.getpid()}.tmp")
    told = _Told(sum(entry.stored.nbytes for entry in entries), progress)
    try:
        with open(beside, "xb") as out:
            _written(out, form, words, entries, told)
            out.flush()
            os.fsync(out.fileno())
        os.replace(beside, path)
    except OSError as error:
        raise ConvertError("convert-unwritten", path=path, reason=error.strerror or error) from error
    finally:
        with suppress(OSError):
            os.unlink(beside)


class _Told:
    """The bytes of tensors, piece by piece, counted as they go through."""

    def __init__(self, total: int, progress: Optional[Progress]) -> None:
        self._total, self._progress = total, progress
        self._done = 0
        self._buffer = np.empty(PIECE, np.uint8)

    def pieces(self, entry: Entry) -> Iterator[Any]:
        for piece in entry.stored.stream(self._buffer):
            data = piece.view(np.uint8)
            yield data.data
            self._done += data.size
            if self._progress is not None:
                self._progress(self._done, self._total)


def _written(out: IO[bytes], form: str, words: str, entries: Sequence[Entry], told: _Told) -> None:
    if form == "pth":
        pth_writing.write(out, entries, [told.pieces(entry) for entry in entries])
    elif form == "safetensors":
        out.write(safetensors.head([(e.name, e.dtype, e.shape) for e in entries], words))
        for entry in entries:
            for piece in told.pieces(entry):
                out.write(piece)
    else:
        for entry in entries:
            _write_values(out, entry, told)


def _write_values(out: IO[bytes], entry: Entry, told: _Told) -> None:
    """A tensor of a .ckpt: as many values as it takes, each with its part of the bytes."""
    pieces = told.pieces(entry)
    rest: Any = memoryview(b"")
    for head, size in ckpt.heads(entry.name, entry.dtype, entry.shape):
        out.write(head)
        while size:
            rest = rest if len(rest) else next(pieces)
            out.write(rest[:size])
            rest, size = rest[size:], size - len(rest[:size])
