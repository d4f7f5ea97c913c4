"""MindSpore's .ckpt: a protobuf, in which each value has a name, sizes, a type and bytes. Read by its wire format.

    message Checkpoint { repeated Value value = 1; }
    message Value { string tag = 1; TensorProto tensor = 2; MapTensorProto maptensor = 3; }
    message TensorProto { repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3; }

Of a tensor over 512 MB there are several values with one name, each with a part of the bytes. Behind it all may stand a
checksum: "crc_num" and ten bytes.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from aligner.dtypes import DTYPES
from aligner.errors import CheckpointError, Reason, because
from aligner.weights.stored import Checkpoint, File, Left, Spans, Weight, check_shape, size_of
from aligner.weights.unwrapping import without_training

TYPES: Mapping[str, str] = {
    **{f"{word}{bits}": f"{word.lower()}{bits}" for word in ("Int", "UInt") for bits in (8, 16, 32, 64)},
    **{f"Float{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "BFloat16": "bfloat16",
    "Bool": "bool",
}
"""MindSpore's words for types -> ours: those that `load_checkpoint` knows."""

_OURS: Mapping[str, str] = {word: name for name, word in TYPES.items()}

SLICE = 512 << 20
"""Bytes of a tensor in one value, as MindSpore has it."""

_CIPHER = 0x7F3A5ED8.to_bytes(4, "little")
_CRC, _CRC_SIZE = b"crc_num", 17
_HEAD = 1 << 16
"""Bytes of a value before its content that are read at once; names are short."""
_BYTES = 2
"""The wire type of a run of bytes."""
_PIECE = 1 << 20


def is_one(head: bytes) -> bool:
    """Whether a file that begins so may be one."""
    return head[:1] == b"\x0a" or head.startswith(_CIPHER)


def open_one(file: File) -> Checkpoint:
    """The tensors, in the order they were written.

    Raises:
        CheckpointError: it is encrypted, damaged, or no such file.
    """
    if file.read(0, 4) == _CIPHER:
        raise CheckpointError("checkpoint-encrypted", path=file.path)
    try:
        end = _end(file)
        weights, left = _weights(file, _values(file, end))
    except Reason as error:
        raise CheckpointError("checkpoint-damaged", path=file.path, reason=because(error)) from error
    kept, training = without_training(weights)
    return Checkpoint(file.path, "ckpt", kept, (*left, *training), True, (file,))


def _end(file: File) -> int:
    """Where the values end; a checksum behind them has to fit."""
    tail = file.read(max(file.size - _CRC_SIZE, 0), _CRC_SIZE)
    if not tail.startswith(_CRC):
        return file.size
    end, crc = file.size - _CRC_SIZE, 0
    for at in range(0, end, _PIECE):
        crc = zlib.crc32(file.read(at, min(_PIECE, end - at)), crc)
    if crc != int.from_bytes(tail[len(_CRC) :], "big"):
        raise Reason("why-checksum")
    return end


@dataclass
class _Value:
    """A value as it is being read."""

    name: str = ""
    kind: str = ""
    dims: tuple[int, ...] = ()
    run: Optional[tuple[int, int]] = None


class _Wire:
    """Fields of a message between two places of a file. Heads are read a page at a time, contents not at all."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._start, self._page = 0, b""

    def fields(self, at: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Number of each field, and where its bytes lie; of a number, its value and -1."""
        while at < end:
            key, at = self._number(at, end)
            field, wire = key >> 3, key & 7
            if wire == _BYTES:
                size, at = self._number(at, end)
                if at + size > end:
                    raise Reason("why-cut-short")
                yield field, at, at + size
                at += size
            elif wire == 0:
                value, at = self._number(at, end)
                yield field, value, -1
            else:
                raise Reason("why-no-protobuf", at)

    def text(self, at: int, end: int) -> str:
        """A short text."""
        if end - at > _HEAD:
            raise Reason("why-no-protobuf", at)
        try:
            return self._file.read(at, end - at).decode("utf-8")
        except UnicodeDecodeError as error:
            raise Reason("why-not-text") from error

    def _number(self, at: int, end: int) -> tuple[int, int]:
        """A number of seven bits a byte, and where it ends."""
        value = 0
        for place in range(10):
            if at >= end:
                raise Reason("why-cut-short")
            byte = self._byte(at)
            at += 1
            value |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                return value & (1 << 64) - 1, at
        raise Reason("why-no-protobuf", at)

    def _byte(self, at: int) -> int:
        if not self._start <= at < self._start + len(self._page):
            self._start, self._page = at, self._file.read(at, 4096)
        return self._page[at - self._start]


def _values(file: File, end: int) -> Iterator[_Value]:
    """The values one after the other; `kind` "" for what is no tensor."""
    wire = _Wire(file)
    for field, start, stop in wire.fields(0, end):
        if field != 1 or stop < 0:
            raise Reason("why-no-protobuf", start)
        value = _Value()
        for inner, first, last in wire.fields(start, stop):
            if inner == 1 and last >= 0:
                value.name = wire.text(first, last)
            elif inner == 2 and last >= 0:
                _read_tensor(wire, value, first, last)
        yield value


def _read_tensor(wire: _Wire, value: _Value, start: int, stop: int) -> None:
    dims: list[int] = []
    for field, first, last in wire.fields(start, stop):
        if field == 1 and last < 0:
            dims.append(first)
        elif field == 1:  # packed, as protobuf's third version writes them
            dims += [number for _, number in _packed(wire, first, last)]
        elif field == 2 and last >= 0:
            value.kind = wire.text(first, last)
        elif field == 3 and last >= 0:
            value.run = first, last - first
    value.dims = check_shape(dims)


def _packed(wire: _Wire, at: int, end: int) -> Iterator[tuple[int, int]]:
    while at < end:
        number, at = wire._number(at, end)
        yield at, number


def _weights(file: File, values: Iterator[_Value]) -> tuple[list[Weight], list[Left]]:
    """Tensors, of as many values as have their name one after the other; and what is none."""
    weights: list[Weight] = []
    left: list[Left] = []
    row: list[_Value] = []
    names: set[str] = set()
    for value in (*values, None):
        if row and (value is None or value.name != row[0].name):
            _add(file, row, weights, left)
            if row[0].name in names:
                raise Reason("why-names-twice")
            names.add(row[0].name)
            row = []
        row += [value] if value is not None else []
    return weights, left


def _add(file: File, row: Sequence[_Value], weights: list[Weight], left: list[Left]) -> None:
    first = row[0]
    dtype = TYPES.get(first.kind)
    if dtype is None:
        left.append(Left(first.name, "left-no-tensor" if first.kind in ("", "str") else "left-unreadable"))
        return
    if any((value.kind, value.dims) != (first.kind, first.dims) for value in row):
        raise Reason("why-parts-differ", first.name)
    runs = [value.run or (0, 0) for value in row]
    found = sum(size for _, size in runs)
    item = DTYPES[dtype].storage.itemsize
    shape = () if first.dims == (0,) and found == item else first.dims
    if size_of(dtype, shape) != found:
        raise Reason("why-other-size", found, dtype, shape, size_of(dtype, shape))
    weights.append(Weight(first.name, Spans(file, dtype, shape, runs)))


def knows(dtype: str) -> bool:
    """Whether MindSpore loads tensors of this type."""
    return dtype in _OURS


def heads(name: str, dtype: str, shape: Sequence[int]) -> list[tuple[bytes, int]]:
    """For each value that a tensor becomes, what stands before its content, and how long the content is."""
    total = size_of(dtype, shape)
    sizes = [min(SLICE, total - at) for at in range(0, total, SLICE)] or [0]
    return [(_head(name, dtype, shape, size), size) for size in sizes]


def _head(name: str, dtype: str, shape: Sequence[int], size: int) -> bytes:
    tag, word = name.encode("utf-8"), _OURS[dtype].encode("ascii")
    dims = b"".join(b"\x08" + _varint(axis) for axis in shape)
    before = dims + b"\x12" + _varint(len(word)) + word + b"\x1a" + _varint(size)
    tensor = b"\x12" + _varint(len(before) + size) + before
    inner = b"\x0a" + _varint(len(tag)) + tag + tensor
    return b"\x0a" + _varint(len(inner) + size) + inner


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*found, number])
