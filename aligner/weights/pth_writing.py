"""Writes a .pth that torch loads with `weights_only=True`: the pickle is put together by hand, without torch."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, Protocol

from aligner.weights.rebuilt import STORAGES
from aligner.weights.stored import size_of

CLASSES: Mapping[str, str] = {
    word: name for name, word in STORAGES.items() if not name.startswith("Q") and name != "UntypedStorage"
}
"""Type -> torch's class of storages of it; the others are untyped, with the type beside."""

ALIGNED = 64
"""Where data begin in the archive, so that torch may map them."""

ROOT = "archive"

_DATE = (1980, 1, 1, 0, 0, 0)
"""The same weights make the same file, whenever it is written."""


class Named(Protocol):
    """What a tensor is called, and its form."""

    @property
    def name(self) -> str:
        """The key in the table."""

    @property
    def dtype(self) -> str:
        """A key of aligner.dtypes.DTYPES."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape."""


def pickled(tensors: Sequence[Named]) -> bytes:
    """The pickle of an OrderedDict with these tensors; their storages are numbered in this order."""
    made = bytearray(b"\x80\x02ccollections\nOrderedDict\n)R(")
    for number, tensor in enumerate(tensors):
        made += _text(tensor.name)
        typed = tensor.dtype in CLASSES
        made += b"ctorch._utils\n_rebuild_tensor_v%d\n(" % (2 if typed else 3)
        made += b"(" + _text("storage")
        made += b"ctorch\n%s\n" % CLASSES[tensor.dtype].encode() if typed else b"ctorch.storage\nUntypedStorage\n"
        count = size_of("float16", tensor.shape) // 2 if typed else size_of(tensor.dtype, tensor.shape)
        made += _text(str(number)) + _text("cpu") + _number(count) + b"tQ" + _number(0)
        made += _tuple(tensor.shape) + _tuple(_strides(tensor.shape)) + b"\x89ccollections\nOrderedDict\n)R"
        made += b"" if typed else b"ctorch\n%s\n" % tensor.dtype.encode()
        made += b"tR"
    return bytes(made + b"u.")


def _text(text: str) -> bytes:
    data = text.encode("utf-8")
    return b"X" + struct.pack("<I", len(data)) + data


def _number(number: int) -> bytes:
    if number < 1 << 8:
        return b"K" + bytes([number])
    if number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    data = number.to_bytes(number.bit_length() // 8 + 1, "little")
    return b"\x8a" + bytes([len(data)]) + data


def _tuple(numbers: Sequence[int]) -> bytes:
    return b"(" + b"".join(map(_number, numbers)) + b"t"


def _strides(shape: Sequence[int]) -> list[int]:
    found, step = list[int](), 1
    for size in reversed(shape):
        found.insert(0, step)
        step *= max(size, 1)
    return found


def write(out: IO[bytes], tensors: Sequence[Named], pieces: Sequence[Iterator[Any]]) -> None:
    """Write the archive; `pieces` are the bytes of each tensor, one piece after the other."""
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, data in (("data.pkl", pickled(tensors)), ("byteorder", b"little"), ("version", b"3\n")):
            archive.writestr(zipfile.ZipInfo(f"{ROOT}/{name}", _DATE), data)
        for number, rows in enumerate(pieces):
            info = zipfile.ZipInfo(f"{ROOT}/data/{number}", _DATE)
            info.file_size = size_of(tensors[number].dtype, tensors[number].shape)
            info.extra = _padding(out.tell(), info)
            with archive.open(info, "w", force_zip64=info.file_size >= 1 << 31) as member:
                for piece in rows:
                    member.write(piece)


def _padding(at: int, info: zipfile.ZipInfo) -> bytes:
    """An extra field that moves the data to a multiple of 64, as torch's own writer does."""
    zip64 = 20 if info.file_size >= 1 << 31 else 0
    start = at + 30 + len(info.filename) + zip64 + 4
    gap = -start % ALIGNED
    return b"FB" + struct.pack("<H", gap) + b"Z" * gap
