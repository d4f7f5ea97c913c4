"""An operator of a compiled graph that is shown the very memory of its input.

MindSpore's operator for a Python function ("pyfunc") keeps a copy of its input at each place where it stands, from the
compilation on: with all layers of a net recorded, more than the dump. Its operator for a function of a shared library
("aot") hands over addresses and keeps nothing. So a library is made here that has no code, only a name: it stands for
a function of this process, by its address, which the dynamic linker takes as it is.

    library(name, address)    the bytes of such a file
    operator(receive)         the operator; None where that cannot be had
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from math import prod
from pathlib import Path
from typing import Any, Callable, Optional

import mindspore
import numpy as np
from mindspore import dtype as mstype
from mindspore import ops

from aligner.record import Array

# Numbers of processors in ELF files.
PROCESSORS = {"x86_64": 62, "aarch64": 183}
# A folder or file outside of which MindSpore takes no libraries, if it is set.
ALLOWED = "MS_CUSTOM_AOT_WHITE_LIST"
# How MindSpore calls: how many tensors, where they are, their numbers of axes, shapes, dtypes, and two things more.
FUNCTION = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.POINTER(ctypes.c_int),
    ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)),
    ctypes.POINTER(ctypes.c_char_p),
    ctypes.c_void_p,
    ctypes.c_void_p,
)
_NUMBERS = count(1)
_LENT: list[Any] = []
"""Functions and libraries that compiled graphs may call as long as the process lives."""


def operator(receive: Callable[[Array], None]) -> Optional[Any]:
    """An operator that shows `receive` its input: only until it returns, the memory is the graph's."""
    if mindspore.get_context("device_target") != "CPU" or platform.machine() not in PROCESSORS:
        return None
    function = FUNCTION(
        lambda _count, places, ranks, shapes, dtypes, *_: _shown(receive, places, ranks, shapes, dtypes)
    )
    address = ctypes.cast(function, ctypes.c_void_p).value or 0
    name = f"aligner_{next(_NUMBERS)}"
    try:
        file = Path(_folder().name) / f"{name}.so"
        file.write_bytes(library(name, address))
        loaded = ctypes.CDLL(str(file))
        found = ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value
        if found != address:  # a linker from before 2018 adds where the file lies to what is no place in it
            return None
        with _allowed(file.parent):
            made = ops.Custom(
                f"{file}:{name}", out_shape=lambda shape: (1,), out_dtype=lambda dtype: mstype.uint8, func_type="aot"
            )
    except (OSError, AttributeError, TypeError):  # no room for a file, or no library is taken from there
        return None
    _LENT.extend((function, loaded))
    return made


def _shown(receive: Callable[[Array], None], places: Any, ranks: Any, shapes: Any, dtypes: Any) -> int:
    """What is not 0 ends the run."""
    try:
        shape = tuple(shapes[0][: ranks[0]])
        dtype = np.dtype(dtypes[0].decode())
        memory = (ctypes.c_char * (prod(shape) * dtype.itemsize)).from_address(places[0])
        array = np.frombuffer(memory, dtype).reshape(shape)
        array.flags.writeable = False
        receive(array)
    except Exception:  # it must not go up through MindSpore's code
        return 1
    return 0


@cache
def _folder() -> Any:
    """Where the libraries lie as long as the process lives: each place in a graph opens them anew."""
    return tempfile.TemporaryDirectory(prefix="aligner-taps-")


@contextmanager
def _allowed(folder: Path) -> Iterator[None]:
    """Say that libraries may lie there, unless the user has said where they may lie."""
    if ALLOWED in os.environ:
        yield
        return
    os.environ[ALLOWED] = str(folder)
    try:
        yield
    finally:
        del os.environ[ALLOWED]


def library(name: str, address: int) -> bytes:
    """A shared library (ELF, 64 bits) whose only name stands for an address, wherever the file is loaded."""
    header, segment, segments = 64, 56, 3
    symbols = struct.pack("<IBBHQQ", 0, 0, 0, 0, 0, 0)
    symbols += struct.pack("<IBBHQQ", 1, GLOBAL_FUNCTION, 0, ABSOLUTE, address, 0)
    table = struct.pack("<6I", 1, 2, 1, 0, 0, 0)  # of hashes: one bucket, two names, the bucket's first is the second
    names = b"\0" + name.encode() + b"\0"
    at_symbols = header + segment * segments
    at_table = at_symbols + len(symbols)
    at_names = at_table + len(table)
    at_dynamic = -(-(at_names + len(names)) // 8) * 8
    pairs = (HASH, at_table, STRTAB, at_names, SYMTAB, at_symbols, STRSZ, len(names), SYMENT, 24, 0, 0)
    dynamic = struct.pack(f"<{len(pairs)}Q", *pairs)
    size = at_dynamic + len(dynamic)
    start = b"\x7fELF" + bytes((2, 1, 1)) + bytes(9)
    start += struct.pack("<HHIQQQI", SHARED, PROCESSORS[platform.machine()], 1, 0, header, 0, 0)
    start += struct.pack("<HHHHHH", header, segment, segments, 64, 0, 0)
    for kind, begin, length, align in (
        (LOAD, 0, size, 1 << 16),
        (DYNAMIC, at_dynamic, len(dynamic), 8),
        (STACK, 0, 0, 16),
    ):
        start += struct.pack("<IIQQQQQQ", kind, READ_WRITE, begin, begin, begin, length, length, align)
    return (start + symbols + table + names).ljust(at_dynamic, b"\0") + dynamic


# Words of the ELF format.
SHARED, READ_WRITE, GLOBAL_FUNCTION, ABSOLUTE = 3, 6, 0x12, 0xFFF1
LOAD, DYNAMIC, STACK = 1, 2, 0x6474E551
HASH, STRTAB, SYMTAB, STRSZ, SYMENT = 4, 5, 6, 10, 11
