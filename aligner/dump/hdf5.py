"""The HDF5 objects of a dump, encoded by hand: a superblock, groups, and contiguous datasets whose data lie already.

The file is written without the HDF5 library, because the library ends the process with a signal when the disk is
full, costs about 20 microseconds a dataset, and leaves nothing readable behind when the process is killed. What is
written here is the oldest and simplest form the format has (superblock 0, object headers 1, symbol tables; HDF5
File Format Specification, version 3.0, sections II-IV), which every HDF5 library since 1.0 reads.

All addresses inside are relative to the base address, the end of the user block. The objects of a file form one
run of bytes behind the data: datasets first, then each group, then the root group.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cache

BASE = 512  # size of the user block
SUPERBLOCK_SIZE = 96

_UNDEFINED = 0xFFFFFFFFFFFFFFFF
_LEAF_K = 4  # a symbol node holds up to 8 names: the library's own choice, small for groups with few records
_INTERNAL_K = 16  # a tree node holds up to 32 children
_SYMBOL = struct.Struct("<QQII16s")
_SNOD_SIZE = 8 + 2 * _LEAF_K * _SYMBOL.size
_NODE_SIZE = 24 + 2 * _INTERNAL_K * 16 + 8


def _message(kind: int, body: bytes) -> bytes:
    padded = body + bytes(-len(body) % 8)
    return struct.pack("<HHB3x", kind, len(padded), 0) + padded


def _header(messages: bytes, count: int, links: int) -> bytes:
    return struct.pack("<BxHII4x", 1, count, links, len(messages)) + messages


# --- Datatypes: class and version, class bits, size, then what the class needs.


def _integer(size: int, signed: bool) -> bytes:
    return struct.pack("<BBBBIHH", 0x10, 8 if signed else 0, 0, 0, size, 0, 8 * size)


def _float(size: int, exponent: int, mantissa: int, bias: int) -> bytes:
    bits = 8 * size
    return struct.pack("<BBBBIHHBBBBI", 0x11, 0x20, bits - 1, 0, size, 0, bits, mantissa, exponent, 0, mantissa, bias)


def _enumeration(base: bytes, names: Sequence[bytes]) -> bytes:
    padded = b"".join(name + bytes(8 - len(name) % 8) for name in names)
    return struct.pack("<BHBI", 0x18, len(names), 0, 1) + base + padded + bytes(range(len(names)))


def _complex(part: bytes, size: int) -> bytes:
    members = b"".join(
        name.ljust(8, b"\0") + struct.pack("<I28x", offset) + part for name, offset in ((b"r", 0), (b"i", size))
    )
    return struct.pack("<BHBI", 0x16, 2, 0, 2 * size) + members


def text_type(size: int) -> bytes:
    """A UTF-8 string of exactly `size` bytes."""
    return struct.pack("<BBBBI", 0x13, 0x11, 0, 0, size)


@cache
def types() -> Mapping[str, bytes]:
    """The HDF5 type of each word of aligner.dtypes; bool and complex as h5py writes them."""
    single, double = _float(4, 8, 23, 127), _float(8, 11, 52, 1023)
    found = {
        "float64": double,
        "float32": single,
        "float16": _float(2, 5, 10, 15),
        "bfloat16": _float(2, 8, 7, 127),
        "float8_e4m3fn": _float(1, 4, 3, 7),
        "float8_e5m2": _float(1, 5, 2, 15),
        "complex64": _complex(single, 4),
        "complex128": _complex(double, 8),
        "bool": _enumeration(_integer(1, True), (b"FALSE", b"TRUE")),
    }
    for size in (1, 2, 4, 8):
        found[f"int{8 * size}"] = _integer(size, True)
        found[f"uint{8 * size}"] = _integer(size, False)
    return found


@cache
def _dataset_start(datatype: bytes, shape: tuple[int, ...]) -> bytes:
    """The messages that do not depend on where the data lie: dataspace, datatype, fill value (never written)."""
    space = struct.pack(f"<BBBB4x{len(shape)}Q", 1, len(shape), 0, 0, *shape)
    fill = struct.pack("<BBBBI", 2, 1, 2, 1, 0)
    return _message(0x01, space) + _message(0x03, datatype) + _message(0x05, fill)


def dataset(datatype: bytes, shape: tuple[int, ...], offset: int, size: int, links: int) -> bytes:
    """The object header of a contiguous dataset whose data lie at `offset` of the file; `links`: names it has."""
    address = offset - BASE if size else _UNDEFINED
    layout = struct.pack("<BBQQ", 3, 1, address, size)
    return _header(_dataset_start(datatype, shape) + _message(0x08, layout), 4, links)


class Structure:
    """The run of bytes with all objects; objects are placed one behind the other, parts before wholes."""

    def __init__(self, start: int) -> None:
        """`start` is where in the file the run will stand, a multiple of eight."""
        self.start = start
        self.content = bytearray()

    def place(self, data: bytes) -> int:
        """Append an object and return its address."""
        self.content += bytes(-len(self.content) % 8)
        address = self.start - BASE + len(self.content)
        self.content += data
        return address

    def group(self, members: Mapping[bytes, int]) -> tuple[int, int, int]:
        """Place a group of named objects; returns the addresses of its header, tree and name heap."""
        names = sorted(members)
        heap = bytearray(8)  # offset 0 is the empty name, smaller than all
        offsets = []
        for name in names:
            offsets.append(len(heap))
            heap += name + bytes(8 - len(name) % 8)
        heap_address = self.place(b"")
        self.place(struct.pack("<4s4xQQQ", b"HEAP", len(heap), 1, heap_address + 32) + heap)
        tree = self._tree([(offset, members[name]) for offset, name in zip(offsets, names)])
        table = _message(0x11, struct.pack("<QQ", tree, heap_address))
        return self.place(_header(table, 1, 1)), tree, heap_address

    def _tree(self, entries: Sequence[tuple[int, int]]) -> int:
        """The search tree over (name offset, object address) in order of the names; returns its root's address."""
        children = []
        for at in range(0, len(entries), 2 * _LEAF_K):
            part = entries[at : at + 2 * _LEAF_K]
            node = struct.pack("<4sBBH", b"SNOD", 1, 0, len(part))
            node += b"".join(_SYMBOL.pack(name, address, 0, 0, b"") for name, address in part)
            children.append((self.place(node.ljust(_SNOD_SIZE, b"\0")), part[-1][0]))
        level = 0
        while True:
            children = self._level(children, level)
            if len(children) == 1:
                return children[0][0]
            level += 1

    def _level(self, children: Sequence[tuple[int, int]], level: int) -> list[tuple[int, int]]:
        """One level of tree nodes over children, each an address and the last name below it."""
        wide = 2 * _INTERNAL_K
        count = -(-len(children) // wide) or 1  # a group without members has one empty node
        first = self.place(b"")
        before, nodes = 0, []
        for i in range(count):
            part = children[i * wide : (i + 1) * wide]
            left = first + (i - 1) * _NODE_SIZE if i else _UNDEFINED
            right = first + (i + 1) * _NODE_SIZE if i + 1 < count else _UNDEFINED
            node = struct.pack("<4sBBHQQQ", b"TREE", 0, level, len(part), left, right, before)
            node += b"".join(struct.pack("<QQ", address, last) for address, last in part)
            before = part[-1][1] if part else 0
            nodes.append((self.place(node.ljust(_NODE_SIZE, b"\0")), before))
        return nodes


def superblock(root: tuple[int, int, int], end: int) -> bytes:
    """The file's entry point, for the user block's end; `end` is the size of the file."""
    header, tree, heap = root
    start = struct.pack("<8sBBBBBBBBHHI", b"\x89HDF\r\n\x1a\n", 0, 0, 0, 0, 0, 8, 8, 0, _LEAF_K, _INTERNAL_K, 0)
    addresses = struct.pack("<QQQQ", BASE, _UNDEFINED, end, _UNDEFINED)
    return start + addresses + _SYMBOL.pack(0, header, 1, 0, struct.pack("<QQ", tree, heap))
