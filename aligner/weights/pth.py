"""A .pth of torch's: a zip of one pickle and the bytes of each storage, stored as they are. Read without torch."""

from __future__ import annotations

import mmap
import struct
import zipfile
from collections.abc import Mapping
from typing import Any, Optional

from aligner.dtypes import DTYPES
from aligner.errors import CheckpointError, Reason, because
from aligner.weights import rebuilt
from aligner.weights.pickles import LARGEST, Machine
from aligner.weights.rebuilt import Opaque, Storage, Tensor
from aligner.weights.stored import Checkpoint, File, Left, Spans, Stored, Strided, Weight, size_of
from aligner.weights.unwrapping import Found, parameters

MAGIC = 0x1950A86A20F9469CFC6C
"""The first object of a .pth from before torch 1.6."""

_BROKEN = (
    *(zipfile.BadZipFile, NotImplementedError, EOFError, RuntimeError, ValueError, ArithmeticError, OSError),
    struct.error,
)
"""What Python's reader of archives raises where an archive is damaged."""

REPEATED = 64
"""How often a view may have an element of its storage: expanded tables are stored so, and so are bombs."""

Places = Mapping[str, tuple[int, int]]
"""Key of a storage -> offset and size of its bytes."""


def open_zip(file: File) -> Checkpoint:
    """A .pth as torch has written it since 1.6.

    Raises:
        CheckpointError: it is damaged, compressed, or names what is not on the list.
    """
    try:
        with zipfile.ZipFile(file.path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            root = _root(archive, members)
            data = _whole(archive, members[f"{root}data.pkl"])
        places = {
            name[len(root) + 5 :]: _place(file, info)
            for name, info in members.items()
            if name.startswith(f"{root}data/")
        }
        top, _ = Machine(data, 0, rebuilt.check, rebuilt.make, rebuilt.storage).run()
        return _checkpoint(file, parameters(top), places)
    except Reason as error:
        raise CheckpointError("checkpoint-damaged", path=file.path, reason=because(error)) from error
    except _BROKEN as error:
        raise CheckpointError("checkpoint-damaged", path=file.path, reason="why-bad-zip") from error


def _root(archive: zipfile.ZipFile, members: Mapping[str, zipfile.ZipInfo]) -> str:
    """The folder in the archive, of a kind that is read here."""
    found = [name[: -len("data.pkl")] for name in members if name.endswith("data.pkl") and name.count("/") <= 1]
    if len(found) != 1:
        raise Reason("why-no-pickle")
    if f"{found[0]}constants.pkl" in members:
        raise Reason("why-torchscript")
    order = members.get(f"{found[0]}byteorder")
    if order is not None and _whole(archive, order).strip() == b"big":
        raise Reason("why-big-endian")
    return found[0]


def _whole(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> bytes:
    if info.file_size > LARGEST or info.compress_type != zipfile.ZIP_STORED:
        raise Reason("why-zip-member", info.filename, info.file_size)
    return archive.read(info)


def _place(file: File, info: zipfile.ZipInfo) -> tuple[int, int]:
    """Where the bytes of a member lie: behind its own header, which has lengths of its own."""
    head = file.read(info.header_offset, 30)
    if info.compress_type != zipfile.ZIP_STORED or info.file_size != info.compress_size or info.flag_bits & 1:
        raise Reason("why-zip-member", info.filename, info.file_size)
    if len(head) < 30 or head[:4] != b"PK\x03\x04":
        raise Reason("why-bad-zip")
    start = info.header_offset + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    if start + info.file_size > file.size:
        raise Reason("why-cut-short")
    return start, info.file_size


def open_old(file: File) -> Checkpoint:
    """A .pth from before torch 1.6: pickles one after the other, then the storages.

    Raises:
        CheckpointError: it is damaged, another kind of pickle, or names what is not on the list.
    """
    try:
        with open(file.path, "rb") as handle, mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _old(file, data)
    except Reason as error:
        raise CheckpointError("checkpoint-damaged", path=file.path, reason=because(error)) from error


def _old(file: File, data: Any) -> Checkpoint:
    at, storages = 0, dict[str, Storage]()

    def kept(identity: Any) -> Storage:
        found = rebuilt.storage(identity)
        return storages.setdefault(found.key, found)

    found: list[Any] = []
    for number in range(5):  # the magic number, the version, the machine, the object, the keys in order
        value, at = Machine(data, at, rebuilt.check, rebuilt.make, kept).run()
        found.append(value)
        if number == 0 and value != MAGIC:
            raise Reason("why-plain-pickle")
    _, _, machine, top, keys = found
    if isinstance(machine, dict) and machine.get("little_endian") is False:
        raise Reason("why-big-endian")
    places: dict[str, tuple[int, int]] = {}
    for key in keys if isinstance(keys, list) else ():
        known = storages.get(str(key))
        if known is None:
            raise Reason("why-pickle-arguments", "storage")
        size = size_of(known.dtype, (known.count,))
        if file.read(at, 8) != known.count.to_bytes(8, "little") or at + 8 + size > file.size:
            raise Reason("why-cut-short")
        places[known.key] = at + 8, size
        at += 8 + size
    return _checkpoint(file, parameters(top), places)


def _checkpoint(file: File, found: Found, places: Places) -> Checkpoint:
    weights, left = [], list(found.left)
    for name, value in found.entries.items():
        stored = _stored(file, value, places) if isinstance(value, Tensor) else None
        if stored is not None:
            weights.append(Weight(name, stored))
        else:
            opaque = isinstance(value, (Opaque, Tensor))
            left.append(Left(name, "left-unreadable" if opaque else "left-no-tensor"))
    return Checkpoint(file.path, "pth", tuple(weights), tuple(left), True, (file,), found.inside)


def _stored(file: File, tensor: Tensor, places: Places) -> Optional[Stored]:
    """The tensor in the file; None for a type that is not known here."""
    if tensor.dtype not in DTYPES:
        return None
    item = DTYPES[tensor.dtype].storage.itemsize
    empty = 0 in tensor.shape
    last = 0 if empty else sum((size - 1) * step for size, step in zip(tensor.shape, tensor.strides)) + 1
    offset, size = places.get(tensor.storage.key, (0, 0 if empty else -1))
    if (tensor.start + last) * item > size and not empty:
        raise Reason("why-tensor-outside", tensor.storage.key)
    if _contiguous(tensor) or empty:
        count = size_of(tensor.dtype, tensor.shape)
        return Spans(file, tensor.dtype, tensor.shape, [(offset + tensor.start * item, count)])
    if size_of(tensor.dtype, tensor.shape) > REPEATED * max(size, 1 << 20):
        raise Reason("why-repeated", str(list(tensor.shape))[:68])
    window = Spans(file, tensor.dtype, (last,), [(offset + tensor.start * item, last * item)])
    return Strided(window, tensor.shape, tensor.strides)


def _contiguous(tensor: Tensor) -> bool:
    wanted = 1
    for size, step in zip(reversed(tensor.shape), reversed(tensor.strides)):
        if size != 1 and step != wanted:
            return False
        wanted *= size
    return True
