"""safetensors: eight bytes with the length of a JSON header, the header, then all tensors one after the other."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any, Optional

from aligner.errors import CheckpointError, Reason, because, form_of
from aligner.weights.stored import Checkpoint, File, Left, Spans, Weight, check_shape, size_of

LARGEST_HEADER = 100_000_000
"""As the format itself has it."""

TYPES: Mapping[str, str] = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "C64": "complex64",
    **{f"{letter}{bits}": f"{word}int{bits}" for letter, word in (("I", ""), ("U", "u")) for bits in (8, 16, 32, 64)},
    "BOOL": "bool",
}
"""The format's words for types -> ours."""

_OURS: Mapping[str, str] = {word: name for name, word in TYPES.items()}


def is_one(head: bytes, size: int) -> bool:
    """Whether a file that begins so may be one."""
    length = int.from_bytes(head[:8], "little")
    return len(head) > 8 and head[8:9] == b"{" and 2 <= length <= size - 8


def open_one(file: File) -> Checkpoint:
    """The tensors, in the order of their data.

    Raises:
        CheckpointError: the header is damaged, or its places are none.
    """
    try:
        (length,) = struct.unpack("<Q", file.read(0, 8))
        header = _header(file, length)
        entries = [_entry(file, name, said, 8 + length) for name, said in header.items() if name != "__metadata__"]
        _check(entries, 8 + length, file.size)
    except Reason as error:
        raise CheckpointError("checkpoint-damaged", path=file.path, reason=because(error)) from error
    entries.sort(key=lambda entry: entry[1])
    weights = tuple(weight for _, _, _, weight in entries if weight is not None)
    left = tuple(Left(name, "left-unreadable") for name, _, _, weight in entries if weight is None)
    return Checkpoint(file.path, "safetensors", weights, left, False, (file,))


_Entry = tuple[str, int, int, Optional[Weight]]


def _header(file: File, length: int) -> Mapping[str, Any]:
    if length > LARGEST_HEADER:
        raise Reason("why-long-header", length)
    try:
        found = json.loads(file.read(8, length).decode("utf-8"), object_pairs_hook=_table)
    except Reason:
        raise
    except (ValueError, RecursionError) as error:
        raise Reason("why-other-form", form_of(error)) from error
    if not isinstance(found, dict):
        raise Reason("why-other-header")
    return found


def _table(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Reason("why-names-twice")
    odd = [name for name in found if any(map(_is_half, name))]
    if odd:
        raise Reason("why-no-name", ascii(odd[0])[:68])
    return found


def _is_half(letter: str) -> bool:
    """Whether it is half of a character, which no file can hold."""
    return "\ud800" <= letter <= "\udfff"


def _entry(file: File, name: str, said: Any, base: int) -> _Entry:
    """Name, start and end in the file, and the tensor; None in its place for a type that is not known here."""
    try:
        word, shape, (start, stop) = said["dtype"], said["shape"], said["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise Reason("why-other-header") from error
    plain = isinstance(word, str) and isinstance(shape, list) and type(start) is int and type(stop) is int
    if not plain or not 0 <= start <= stop:
        raise Reason("why-other-header")
    dtype = TYPES.get(word)
    if dtype is None:
        return name, base + start, base + stop, None
    sizes = check_shape(shape)
    if size_of(dtype, sizes) != stop - start:
        raise Reason("why-other-size", stop - start, dtype, sizes, size_of(dtype, sizes))
    return name, base + start, base + stop, Weight(name, Spans(file, dtype, sizes, [(base + start, stop - start)]))


def _check(entries: Sequence[_Entry], start: int, end: int) -> None:
    """See that the tensors lie one after the other, none over another, up to the end of the file."""
    at = start
    for name, first, last, _ in sorted(entries, key=lambda entry: entry[1:3]):
        if first != at:
            raise Reason("why-tensor-place", name)
        at = last
    if at != end:
        raise Reason("why-cut-short" if at > end else "why-more-behind", *(() if at > end else (end - at,)))


def head(weights: Sequence[tuple[str, str, Sequence[int]]], words: str) -> bytes:
    """What stands before the data of tensors with these names, types and shapes, in this order.

    `words` says whose names they are, "torch" or "mindspore", as both frameworks' own writers do.
    """
    table: dict[str, Any] = {"__metadata__": {"format": "ms" if words == "mindspore" else "pt"}}
    at = 0
    for name, dtype, shape in weights:
        size = size_of(dtype, shape)
        table[name] = {"dtype": _OURS[dtype], "shape": list(shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(table, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def knows(dtype: str) -> bool:
    """Whether the format has this type."""
    return dtype in _OURS
