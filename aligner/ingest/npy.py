"""One .npy file of a dump: a plain array with all of its bytes, or a reason why not. Nothing is unpickled."""

from __future__ import annotations

import ast
import hashlib
import os
import stat
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np

from aligner.dtypes import DTYPES, encode
from aligner.record import Array

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 1 << 14
PIECE = 1 << 20
FIXED = frozenset({"DefaultFormat", "NCHW", "ND", "NCDHW", "NHWC", "HWCN", "NCL", "NHW"})
"""Formats in which the bytes are an array as it is written; the others are the device's own tiles."""
WIDENED = {"bfloat16": "bfloat16"}
"""Types that MindSpore saves as float32, in MindSpore's word in small letters."""


@dataclass(frozen=True)
class Form:
    """What stands in the file's header."""

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    fortran: bool
    start: int
    narrow: bool = False
    """The data are float32 where the graph wants float16, and rounds to it next."""

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return self.dtype.itemsize * int(np.prod(self.shape, dtype=object))


def word(form: Form, named: str) -> str:
    """aligner's word for the type, by MindSpore's word in the file's name and what numpy reads.

    Raises:
        ValueError: there is none.
    """
    widened = WIDENED.get(named.lower())
    if widened is not None and form.dtype == np.float32:
        return widened
    found = "float16" if form.narrow else form.dtype.name
    if found not in DTYPES:
        raise ValueError(f"{form.dtype} ({named})")
    return found


def fingerprint(path: str) -> tuple[Form, bytes]:
    """The form and a checksum of the data, read piece by piece.

    Raises:
        ValueError: it is no whole plain array; the text says what is wrong.
        OSError: it cannot be read.
    """
    with _opened(path) as file:
        form = _form(file, path)
        # Equal values in two types have other bytes, and so they are two contents.
        digest = hashlib.blake2b(form.dtype.str.encode(), digest_size=16)
        left = form.size
        while left:
            piece = file.read(min(PIECE, left))
            if not piece:
                raise ValueError("it ends before its data do")
            digest.update(piece)
            left -= len(piece)
    return form, digest.digest()


def load(path: str, named: str) -> tuple[str, Array]:
    """The type's word and the array in the storage that aligner.dtypes names for it.

    Raises:
        ValueError: as `fingerprint`, or a type that a dump does not know.
        OSError: it cannot be read.
    """
    with _opened(path) as file:
        form = _form(file, path)
        dtype = word(form, named)
        flat = np.fromfile(file, form.dtype, form.size // form.dtype.itemsize)
    if flat.size * form.dtype.itemsize != form.size:
        raise ValueError("it ends before its data do")
    array = flat.reshape(form.shape, order="F" if form.fortran else "C")
    storage = DTYPES[dtype].storage
    stored = encode(array, dtype) if form.narrow or dtype in WIDENED else np.asarray(array, storage)
    return dtype, np.ascontiguousarray(stored).reshape(form.shape)  # a scalar stays one


def _opened(path: str) -> BinaryIO:
    """The file itself: no link, no pipe, no device."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise ValueError("it is no plain file")
    return file


def _form(file: BinaryIO, path: str) -> Form:
    start = file.read(8)
    if len(start) < 8 or not start.startswith(MAGIC) or start[6] not in (1, 2, 3):
        raise ValueError("it is no .npy file")
    wide = 2 if start[6] == 1 else 4
    length = int.from_bytes(file.read(wide), "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"its header has {length} bytes")
    header = file.read(length)
    form = _parsed(header, 8 + wide + length)
    found = os.fstat(file.fileno()).st_size - form.start
    if form.dtype == np.float16 and found == 2 * form.size and found:
        # A kernel of the CPU's without float16 computes in float32; the header has the type that the graph wants.
        form = replace(form, dtype=np.dtype(np.float32), narrow=True)
    if found != form.size:
        raise ValueError(f"it has {found} bytes of data where {form.dtype} {form.shape} has {form.size}")
    return form


def _parsed(header: bytes, start: int) -> Form:
    try:
        said = ast.literal_eval(header.decode("latin1").strip())
        descr, fortran, shape = said["descr"], said["fortran_order"], said["shape"]
        dtype = np.dtype(descr) if isinstance(descr, str) else np.dtype(object)
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise ValueError("its header is of another form") from error
    plain = isinstance(fortran, bool) and isinstance(shape, tuple)
    if not plain:
        raise ValueError("its header is of another form")
    if dtype.kind not in "biufc":  # "O" is a pickle
        raise ValueError(f"it holds {dtype}, not numbers")
    if len(shape) > 32 or not all(type(axis) is int and axis >= 0 for axis in shape):
        raise ValueError(f"its shape is {shape}"[:80])
    return Form(dtype, shape, fortran, start)
