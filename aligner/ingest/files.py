"""What lies in a folder that MINDSPORE_DUMP_CONFIG named: one .npy file for each value, and what tells of the graph.

    DIR/rank_0/NET/GRAPH/ITERATION/Conv2D.Default_conv1-Conv2d_Conv2D-op0.0.0.1795191669781915.output.0.DefaultFormat.Float32.npy
    DIR/rank_0/execution_order/ms_execution_order_graph_0.csv
    DIR/rank_0/graphs/ms_output_trace_code_graph_0.ir

Any of these folders may be handed over, down to one iteration. Nothing is followed that is a link.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Optional

from aligner.errors import IngestError
from aligner.ingest.holes import hollow

DEEPEST = 8
MOST_TEXT = 1 << 26
"""Bytes of a graph or an execution order that are read."""
VALUE = re.compile(
    r"(?P<type>[^.]+)\.(?P<name>.+)\.(?P<task>\d+)\.(?P<stream>\d+)\.(?P<time>\d{1,19})\."
    r"(?P<side>input|output)[._](?P<slot>\d{1,6})\.(?P<form>[^.]+)(\.(?P<dtype>[^.]+))?\.npy"
)
SERIAL = re.compile(r"(?P<type>[^.]+)\.(?P<name>.+)\.(?P<task>\d+)\.(?P<stream>\d+)\.(?P<time>\d{1,19})")
"""Without an ending: the form in which an asynchronous dump leaves the device."""
ORDER = re.compile(r"ms_execution_order_graph_\d+\.csv")
GRAPH = re.compile(r"ms_output_trace_code_graph_\d+\.ir")
RANK = re.compile(r"rank_(\d{1,6})")
PARAMETER = "Parameter"
"""The type under which weights and the net's inputs are written."""


@dataclass(frozen=True)
class ValueFile:
    """One value that an operator got (`given`) or made."""

    path: str
    type: str
    name: str
    """The operator's full name, with "_" for "/"."""
    time: int
    given: bool
    slot: int
    form: str
    dtype: str
    """MindSpore's word for the type, or "" where an older version left it out."""


@dataclass(frozen=True)
class Place:
    """Which graph of which net ran on which device."""

    rank: int
    net: str
    graph: str
    iteration: int


@dataclass
class Folder:
    """All that was found."""

    path: str
    values: dict[Place, list[ValueFile]] = field(default_factory=dict)
    orders: list[str] = field(default_factory=list)
    graphs: list[str] = field(default_factory=list)
    links: int = 0
    statistics: int = 0
    serials: int = 0
    strange: int = 0
    """Files ending with .npy whose name is of another form."""
    apparent: int = 0
    """Bytes of all values, and how many of them the disk holds."""
    stored: int = 0

    @property
    def ranks(self) -> list[int]:
        """The devices."""
        return sorted({place.rank for place in self.values})

    @property
    def nets(self) -> list[str]:
        """The nets' names, as the configuration file set them."""
        return sorted({place.net for place in self.values})


def survey(path: str) -> Folder:
    """Look through the folder.

    Raises:
        IngestError: there is no such folder, or nothing in it that could be read.
    """
    if not os.path.isdir(path):
        raise IngestError("ingest-no-folder", path=path)
    folder = Folder(path)
    try:
        for above, entry in _files(os.path.abspath(path), (), folder):
            _note(above, entry, folder)
    except OSError as error:
        reason = error.strerror or str(error)
        raise IngestError("ingest-unreadable", path=error.filename or path, reason=reason) from error
    if not folder.values:
        raise _nothing(folder)
    if hollow(folder.apparent, folder.stored):
        raise IngestError("ingest-hollow", path=path, apparent=folder.apparent, stored=folder.stored)
    return folder


def _files(path: str, above: tuple[str, ...], folder: Folder) -> Iterator[tuple[tuple[str, ...], os.DirEntry[str]]]:
    """The files below, each with the names of the folders around it."""
    above = above or tuple(path.split(os.sep))
    with os.scandir(path) as entries:
        found = sorted(entries, key=lambda entry: entry.name)
    for entry in found:
        if entry.is_symlink():
            folder.links += 1
        elif entry.is_dir(follow_symlinks=False):
            if len(above) < len(os.path.abspath(folder.path).split(os.sep)) + DEEPEST:
                yield from _files(entry.path, (*above, entry.name), folder)
        elif entry.is_file(follow_symlinks=False):
            yield above, entry


def _note(above: tuple[str, ...], entry: os.DirEntry[str], folder: Folder) -> None:
    name = entry.name
    if name.endswith(".npy"):
        place, value = _place(above), _value(entry)
        if value is None:
            folder.strange += 1
        elif place is not None:
            folder.values.setdefault(place, []).append(value)
            found = entry.stat(follow_symlinks=False)
            folder.apparent += found.st_size
            folder.stored += 512 * getattr(found, "st_blocks", 0)
    elif ORDER.fullmatch(name):
        folder.orders.append(entry.path)
    elif GRAPH.fullmatch(name):
        folder.graphs.append(entry.path)
    elif name == "statistic.csv":
        folder.statistics += 1
    elif SERIAL.fullmatch(name):
        folder.serials += 1


def _place(above: tuple[str, ...]) -> Optional[Place]:
    """rank, net, graph and iteration by the folders' names; None for what is no iteration ("constants")."""
    names = ("", "", "", *above)
    if not _is_number(names[-1]):
        return None
    rank = next((RANK.fullmatch(name) for name in reversed(names) if RANK.fullmatch(name)), None)
    graph = names[-2] if _is_number(names[-2]) else "0"
    return Place(int(rank[1]) if rank else 0, names[-3] or "net", graph, int(names[-1]))


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit() and len(name) <= 9


def _value(entry: os.DirEntry[str]) -> Optional[ValueFile]:
    found = VALUE.fullmatch(entry.name)
    if found is None:
        return None
    return ValueFile(
        entry.path,
        found["type"],
        found["name"],
        int(found["time"]),
        found["side"] == "input",
        int(found["slot"]),
        found["form"],
        found["dtype"] or "",
    )


def _nothing(folder: Folder) -> IngestError:
    """Why there is nothing to import."""
    if folder.statistics:
        return IngestError("ingest-statistics-only", path=folder.path)
    if folder.serials:
        return IngestError("ingest-serials-only", path=folder.path, count=folder.serials)
    return IngestError("ingest-empty", path=folder.path, links=folder.links, strange=folder.strange)


def read_text(path: str) -> str:
    """A text file's beginning; what is no UTF-8 is replaced."""
    with open(path, "rb") as file:
        return file.read(MOST_TEXT).decode("utf-8", "replace")
