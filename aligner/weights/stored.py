"""A tensor that stays in its file until somebody asks: where its bytes are, and how to read them piece by piece."""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from aligner.dtypes import DTYPES, decode
from aligner.errors import CheckpointError, Reason
from aligner.record import Array

_UNIT = 16
"""Pieces are a multiple of this: whole elements of every type."""

MOST_AXES = 32
"""numpy has no more."""


class File:
    """A file opened for reading at any place."""

    def __init__(self, path: str) -> None:
        """Open it.

        Raises:
            CheckpointError: there is none, or it is no plain file.
        """
        self.path = path
        try:
            self._descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
        except OSError as error:
            raise CheckpointError("checkpoint-unreadable", path=path, reason=error.strerror or error) from error
        found = os.fstat(self._descriptor)
        if not stat.S_ISREG(found.st_mode):
            self.close()
            raise CheckpointError("checkpoint-unreadable", path=path, reason="why-no-file")
        self.size = found.st_size

    def fill(self, piece: Array, offset: int) -> None:
        """Read into a flat array of bytes.

        Raises:
            CheckpointError: the file ends before, or cannot be read.
        """
        done = 0
        while done < piece.size:
            try:
                count = os.preadv(self._descriptor, [piece[done:].data], offset + done)
            except OSError as error:
                raise CheckpointError(
                    "checkpoint-unreadable", path=self.path, reason=error.strerror or error
                ) from error
            if not count:
                raise CheckpointError("checkpoint-damaged", path=self.path, reason="why-cut-short")
            done += count

    def read(self, offset: int, size: int) -> bytes:
        """These bytes; fewer at the end of the file."""
        data = np.empty(max(min(size, self.size - offset), 0), np.uint8)
        self.fill(data, offset)
        return data.tobytes()

    def close(self) -> None:
        """Close it; tensors in it can no longer be read."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Closes(Protocol):
    """What is open and has to be closed."""

    def close(self) -> None:
        """Close it."""


class Stored(Protocol):
    """What comparing and converting need of a tensor; a record of a dump is such a one."""

    @property
    def dtype(self) -> str:
        """A key of aligner.dtypes.DTYPES."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's shape."""

    @property
    def nbytes(self) -> int:
        """The size of the raw bits."""

    def stream(self, buffer: Array, verify: bool = True) -> Iterator[Array]:
        """Successive pieces of the raw bits, flat and in storage type, in `buffer` (bytes, at least 16)."""

    def raw(self) -> Array:
        """The raw bits in storage type."""


@dataclass(frozen=True)
class Spans:
    """A tensor whose elements lie in runs of bytes, one after the other."""

    file: File
    dtype: str
    shape: tuple[int, ...]
    runs: Sequence[tuple[int, int]]
    """Offset and size of each."""

    @property
    def nbytes(self) -> int:
        """The size of the raw bits."""
        return size_of(self.dtype, self.shape)

    def stream(self, buffer: Array, verify: bool = True) -> Iterator[Array]:
        """Successive pieces; nothing in these files tells whether they are as they were written."""
        storage, step = DTYPES[self.dtype].storage, buffer.size - buffer.size % _UNIT
        for at in range(0, self.nbytes, step):
            piece = buffer[: min(step, self.nbytes - at)]
            self._fill(piece, at)
            yield piece.view(storage)

    def raw(self) -> Array:
        """The raw bits."""
        flat = np.empty(self.nbytes, np.uint8)
        self._fill(flat, 0)
        return flat.view(DTYPES[self.dtype].storage).reshape(self.shape)

    def _fill(self, piece: Array, at: int) -> None:
        """The bytes from `at` on, whichever runs they lie in."""
        done = 0
        for offset, size in self.runs:
            inside = at + done
            if inside < size:
                count = min(size - inside, piece.size - done)
                self.file.fill(piece[done : done + count], offset + inside)
                done += count
            at -= size
            if done == piece.size:
                return


@dataclass(frozen=True)
class Strided:
    """A tensor that is a view of a storage: turned, cut or repeated. It is made in memory when it is read."""

    window: Spans
    """The storage from the first element to the last, flat."""
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    """In elements."""

    @property
    def dtype(self) -> str:
        """The storage's."""
        return self.window.dtype

    @property
    def nbytes(self) -> int:
        """The size of the raw bits."""
        return size_of(self.dtype, self.shape)

    def stream(self, buffer: Array, verify: bool = True) -> Iterator[Array]:
        """Successive pieces of what `raw` gives."""
        flat = self.raw().reshape(-1)
        step = (buffer.size - buffer.size % _UNIT) // flat.itemsize
        for at in range(0, flat.size, step):
            piece = buffer[: min(step, flat.size - at) * flat.itemsize].view(flat.dtype)
            piece[...] = flat[at : at + piece.size]
            yield piece

    def raw(self) -> Array:
        """The raw bits, in the view's order."""
        flat = self.window.raw().reshape(-1)
        steps = tuple(stride * flat.itemsize for stride in self.strides)
        return np.ascontiguousarray(np.lib.stride_tricks.as_strided(flat, self.shape, steps))


@dataclass(frozen=True, eq=False)
class Weight:
    """A tensor of a checkpoint. `layer` and `role` are given where the file has canonical ones (a dump)."""

    name: str
    stored: Stored
    layer: str = ""
    role: str = ""
    kind: str = ""

    @property
    def dtype(self) -> str:
        """The word for its type."""
        return self.stored.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape."""
        return self.stored.shape

    def load(self) -> Array:
        """Its numbers: float32 for bfloat16 and float8."""
        return decode(self.stored.raw(), self.dtype)


@dataclass(frozen=True)
class Left:
    """An entry of a checkpoint that is no parameter, by the message that says why it is left out."""

    name: str
    why: str


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """What is in a file or folder. `form` is "pth", "ckpt", "safetensors", "dump"; `ordered`: as the net defines it."""

    path: str
    form: str
    weights: tuple[Weight, ...]
    left: tuple[Left, ...] = ()
    ordered: bool = True
    files: tuple[Closes, ...] = ()
    inside: str = ""
    """The key under which the parameters stood: "state_dict"."""

    @cached_property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(weight.stored.nbytes for weight in self.weights)

    def close(self) -> None:
        """Close its files."""
        for file in self.files:
            file.close()


def size_of(dtype: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor."""
    return int(DTYPES[dtype].storage.itemsize) * math.prod(shape)


def check_shape(shape: Sequence[object]) -> tuple[int, ...]:
    """The shape, if it is one.

    Raises:
        Reason: it is none.
    """
    sizes = tuple(size for size in shape if type(size) is int and 0 <= size < 1 << 48)
    if len(sizes) != len(shape) or len(sizes) > MOST_AXES:
        raise Reason("why-shape", str(list(shape))[:68])
    return sizes
