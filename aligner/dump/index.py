"""The index of a dump as it is read: one list per column, checked as a whole, entries made when asked for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from aligner.dtypes import DTYPES
from aligner.dump.sections import RECORD_COLUMNS, VALUES, Row, demand, text
from aligner.record import Key, Phase

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
else:
    Numbers = Any

_MAX_RANK = 32
_MAX_SIDE = 1 << 40
_MAX_NUMBER = 1 << 62


@dataclass(frozen=True)
class Index:
    """What is known of each record, by column, in order."""

    steps: list[int]
    phases: list[Phase]
    layers: list[str]
    calls: list[int]
    slots: list[str]
    orders: list[int]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    offsets: list[int]
    sizes: list[int]
    checksums: list[int]
    forms: list[str]

    def key(self, row: int) -> Key:
        """The address of a record; made anew, since most are never asked for."""
        return Key(self.steps[row], self.phases[row], self.layers[row], self.calls[row], self.slots[row])

    def rows(self) -> list[Row]:
        """All records one by one."""
        rest = (self.orders, self.dtypes, self.shapes, self.offsets, self.sizes, self.checksums, self.forms)
        return [Row(self.key(row), *values) for row, values in enumerate(zip(*rest))]


def from_rows(rows: Sequence[Row], end: int) -> tuple[Index, int]:
    """The index of rows from a journal, and how many were left out because they do not fit the file.

    `rows` are in order; of two with one order number the first is kept.
    """
    good: list[Row] = []
    for row in rows:
        if _fits(row, end) and not (good and good[-1].order == row.order):
            good.append(row)
    flat = [(*row.key, *row[1:]) for row in good]
    columns: Any = zip(*flat) if flat else [()] * (len(Key._fields) + len(Row._fields) - 1)
    return Index(*map(list, columns)), len(rows) - len(good)


def _fits(row: Row, end: int) -> bool:
    try:
        wanted = _elements(row.shape) * DTYPES[row.dtype].storage.itemsize
    except (ValueError, KeyError):
        return False
    return row.offset + row.size <= end and (row.size == wanted or row.form != VALUES) and row.order < _MAX_NUMBER


def _elements(shape: Any) -> int:
    """The number of elements of a shape that numpy can hold."""
    demand(isinstance(shape, (list, tuple)) and len(shape) <= _MAX_RANK, "a shape is none")
    demand(all(type(side) is int and 0 <= side <= _MAX_SIDE for side in shape), "a shape is none")
    demand(math.prod(side for side in shape if side) < _MAX_NUMBER // 16, "a shape is too large")
    return math.prod(shape)


def decode(value: Any, start: int, end: int) -> Index:
    """The index from its JSON section; record data lie between `start` and `end`.

    Raises:
        ValueError: something in it cannot be.
    """
    try:
        return _decode(value["tables"], value["records"], start, end)
    except (KeyError, TypeError, IndexError, OverflowError) as error:
        raise ValueError(f"the index is damaged ({type(error).__name__}: {error})") from error


def _decode(tables: Any, records: Any, start: int, end: int) -> Index:
    phases = [Phase(word) for word in tables["phase"]]
    layers = [text(word) for word in tables["layer"]]
    slots = [text(word) for word in tables["slot"]]
    dtypes = [text(word) for word in tables["dtype"]]
    forms = [text(word) for word in tables["form"]]
    demand(all(word in DTYPES for word in dtypes), "a dtype is unknown")
    elements = [_elements(shape) for shape in tables["shape"]]
    shapes = [tuple(shape) for shape in tables["shape"]]
    column = {name: _numbers(records[name]) for name in RECORD_COLUMNS}
    demand(len({c.size for c in column.values()}) == 1, "the columns differ in length")
    for name, table in (
        ("phase", phases), ("layer", layers), ("slot", slots), ("dtype", dtypes), ("shape", shapes), ("form", forms),
    ):  # fmt: skip  # a table of pairs
        demand(bool((column[name] < len(table)).all()), f"a record names a {name} that is not there")
    _check_places(column, elements, dtypes, forms, start, end)
    demand(bool((np.diff(column["order"]) > 0).all()), "the records are not in order")

    def words(name: str, table: Sequence[Any]) -> list[Any]:
        return list(map(table.__getitem__, records[name]))

    return Index(
        records["step"],
        words("phase", phases),
        words("layer", layers),
        records["call"],
        words("slot", slots),
        records["order"],
        words("dtype", dtypes),
        words("shape", shapes),
        records["offset"],
        records["size"],
        records["checksum"],
        words("form", forms),
    )


def _numbers(column: Any) -> Numbers:
    """A column of the index as an array of numbers that are not negative."""
    demand(isinstance(column, list), "a column is none")
    if not column:
        return np.zeros(0, np.int64)
    numbers = np.array(column)
    demand(numbers.ndim == 1 and numbers.dtype.kind == "i", "a column holds something else than numbers")
    demand(bool((numbers >= 0).all()) and bool((numbers < _MAX_NUMBER).all()), "a number is out of bounds")
    return numbers


def _check_places(
    column: dict[str, Numbers], elements: list[int], dtypes: list[str], forms: list[str], start: int, end: int
) -> None:
    """Every record's bytes lie among the data, as many as its shape takes."""
    if not column["size"].size:
        return
    offset, size = column["offset"], column["size"]
    inside = (size == 0) | ((offset >= start) & (size <= end - offset))
    demand(bool(inside.all()), "a record lies outside the data")
    itemsizes = np.array([DTYPES[word].storage.itemsize for word in dtypes])
    wanted = np.array(elements)[column["shape"]] * itemsizes[column["dtype"]]
    values = np.array([word == VALUES for word in forms])[column["form"]]
    demand(bool(((wanted == size) | ~values).all()), "a record's size does not fit its shape")
