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
from aligner.errors import Reason
from aligner.ingest import holes
from aligner.record import Array

MAGIC = b"\x93NUMPY"
LONGEST_HEADER = 1 << 14
LARGEST_TURNED = 1 << 26
"""Bytes of an array in Fortran's order: it is turned in memory."""
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
                raise Reason("why-cut-short")
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
        flat = holes.read(file, form.start, form.size // form.dtype.itemsize, form.dtype)
    if flat.size * form.dtype.itemsize != form.size:
        raise Reason("why-cut-short")
    storage = DTYPES[dtype].storage
    if form.narrow or dtype in WIDENED or flat.dtype != storage:
        flat = _converted(flat, dtype)
    if form.fortran and flat.ndim and flat.any():
        return dtype, np.ascontiguousarray(flat.reshape(form.shape, order="F"))
    return dtype, flat.reshape(form.shape)


def _converted(flat: Array, dtype: str) -> Array:
    """The numbers in the type's storage, piece by piece; zeros are zeros in every type, and take no memory."""
    made = np.zeros(flat.shape, DTYPES[dtype].storage)
    for at in range(0, flat.size, PIECE):
        piece = flat[at : at + PIECE]
        if piece.view(np.uint8).any():  # minus zero is no zero
            made[at : at + PIECE] = encode(piece, dtype)
    return made


def _opened(path: str) -> BinaryIO:
    """The file itself: no link, no pipe, no device."""
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise Reason("why-no-file")
    return file


def _form(file: BinaryIO, path: str) -> Form:
    start = file.read(8)
    if len(start) < 8 or not start.startswith(MAGIC) or start[6] not in (1, 2, 3):
        raise Reason("why-no-npy")
    wide = 2 if start[6] == 1 else 4
    length = int.from_bytes(file.read(wide), "little")
    if length > LONGEST_HEADER:
        raise Reason("why-long-header", length)
    header = file.read(length)
    form = _parsed(header, 8 + wide + length)
    found = os.fstat(file.fileno()).st_size - form.start
    if form.dtype == np.float16 and found == 2 * form.size and found:
        # A kernel of the CPU's without float16 computes in float32; the header has the type that the graph wants.
        form = replace(form, dtype=np.dtype(np.float32), narrow=True)
    if found != form.size:
        raise Reason("why-other-size", found, form.dtype, form.shape, form.size)
    return form


def _parsed(header: bytes, start: int) -> Form:
    try:
        said = ast.literal_eval(header.decode("latin1").strip())
        descr, fortran, shape = said["descr"], said["fortran_order"], said["shape"]
        dtype = np.dtype(descr) if isinstance(descr, str) else np.dtype(object)
    except (SyntaxError, ValueError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise Reason("why-other-header") from error
    plain = isinstance(fortran, bool) and isinstance(shape, tuple)
    if not plain:
        raise Reason("why-other-header")
    if dtype.kind not in "biufc":  # "O" is a pickle
        raise Reason("why-no-numbers", dtype)
    if fortran and len(shape) > 1 and dtype.itemsize * int(np.prod(shape, dtype=object)) > LARGEST_TURNED:
        raise Reason("why-columns-first")
    if len(shape) > 32 or not all(type(axis) is int and axis >= 0 for axis in shape):
        raise Reason("why-shape", str(shape)[:68])
    return Form(dtype, shape, fortran, start)
