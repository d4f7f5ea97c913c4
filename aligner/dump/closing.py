"""What stands behind the data of a closed dump: its sections and the HDF5 objects, laid out as one run of bytes."""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from dataclasses import dataclass

from aligner.dump import hdf5, names, sections
from aligner.dump.sections import Content, Row
from aligner.dump.userblock import Section, UserBlock

FIXED = 1 << 15  # room for the groups' fixed parts and the sections' frames
LAST = 1 << 14  # room for what is told of a capture when it is over, which may be because the disk is full
PER_GROUP = 2560  # a step's and a phase's tree, symbol node and name heap, however few records
PER_LINE = 64  # what a layer, call or note may take besides its line in the journal


@dataclass(frozen=True)
class Closing:
    """The end of the file, the superblock, and the user block that says where things are."""

    tail: bytes
    superblock: bytes
    block: UserBlock


def room_of_record(dtype: str, rank: int) -> int:
    """The most that closing writes for one record besides its names: object header, symbol, tree, numbers."""
    return 256 + len(hdf5.types()[dtype]) + 32 * rank


def close(content: Content, token: str, start: int) -> Closing:
    """Lay out everything but the data; `start` is where the data end, a multiple of eight."""
    structure = hdf5.Structure(start)
    root: dict[bytes, int] = {}
    places: dict[str, Section] = {}
    for name, data in sections.encode(content).items():
        offset = structure.place(data) + hdf5.BASE
        places[name] = Section(offset, len(data), zlib.crc32(data))
        root[name.encode()] = structure.place(hdf5.dataset(hdf5.text_type(len(data)), (), offset, len(data), 1))
    root.update(_steps(structure, content.rows))
    root_group = structure.group(root)
    end = start + len(structure.content)
    superblock = hdf5.superblock(root_group, end)
    tail = bytes(structure.content)
    seal = Section(start, len(tail), zlib.crc32(tail, zlib.crc32(superblock)))
    return Closing(tail, superblock, UserBlock(token, True, end, places, seal))


def _steps(structure: hdf5.Structure, rows: list[Row]) -> dict[bytes, int]:
    """The groups of the steps with their phases and records; equal content is one object with several names."""
    links = Counter(_content(row) for row in rows)
    objects: dict[tuple[object, ...], int] = {}
    groups: dict[bytes, dict[bytes, dict[bytes, int]]] = defaultdict(lambda: defaultdict(dict))
    for row in rows:
        content = _content(row)
        if content not in objects:
            datatype = hdf5.types()[row.dtype]
            header = hdf5.dataset(datatype, row.shape, row.offset, row.size, links[content])
            objects[content] = structure.place(header)
        step, phase = names.group(row.key)
        groups[step][phase][names.dataset(row.key, row.order)] = objects[content]
    return {
        step: structure.group({phase: structure.group(members)[0] for phase, members in phases.items()})[0]
        for step, phases in groups.items()
    }


def _content(row: Row) -> tuple[object, ...]:
    """What two names of one object have in common; nothing can be shared where nothing is stored."""
    return (row.offset, row.dtype, row.shape) if row.size else (row.order,)
