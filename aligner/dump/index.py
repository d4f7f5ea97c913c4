"""The index of a dump as it is read: one list per column, checked as a whole, entries made when asked for."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.dtypes import DTYPES
from aligner.dump.sections import LARGEST, RECORD_COLUMNS, VALUES, Row, demand, path, phase_from, text
from aligner.errors import Reason, form_of
from aligner.record import Key, Phase

if TYPE_CHECKING:
    import numpy.typing as npt

    Numbers = npt.NDArray[np.int64]
else:
    Numbers = Any

_MAX_RANK = 32
_MAX_SIDE = 1 << 40


@dataclass(frozen=True)
class Index:
    """What is known of each record, by column, in order."""

    steps: Sequence[int]
    phases: Sequence[Phase]
    layers: Sequence[str]
    calls: Sequence[int]
    slots: Sequence[str]
    orders: Sequence[int]
    dtypes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    offsets: Sequence[int]
    sizes: Sequence[int]
    checksums: Sequence[int]
    forms: Sequence[str]

    made: dict[int, Key] = field(default_factory=dict)
    """Addresses that were asked for: of a dump that is opened few, of one that is compared each a dozen times."""

    def key(self, row: int) -> Key:
        """The address of a record."""
        key = self.made.get(row)
        if key is None:
            key = Key(self.steps[row], self.phases[row], self.layers[row], self.calls[row], self.slots[row])
            self.made[row] = key
        return key

    def first_outputs(self) -> dict[str, int]:
        """The first output of each layer that ran, by row."""
        found: dict[str, int] = {}
        for row, (phase, layer, slot) in enumerate(zip(self.phases, self.layers, self.slots)):
            if phase is Phase.FORWARD and layer not in found and slot.startswith("output"):
                found[layer] = row
        return found

    def rows(self) -> list[Row]:
        """All records one by one."""
        rest = (self.orders, self.dtypes, self.shapes, self.offsets, self.sizes, self.checksums, self.forms)
        return [Row(self.key(row), *values) for row, values in enumerate(zip(*rest))]


def from_rows(rows: Sequence[Row], start: int, end: int) -> tuple[Index, int]:
    """The index of rows from a journal, and how many were left out because they do not fit the file.

    `rows` are in order; of two with one order number the first is kept.
    """
    good: list[Row] = []
    for row in _disjoint([row for row in rows if _fits(row, start, end)]):
        if not (good and good[-1].order == row.order):
            good.append(row)
    flat = [(*row.key, *row[1:]) for row in good]
    columns: Any = [list(column) for column in zip(*flat)] or [[]] * (len(Key._fields) + len(Row._fields) - 1)
    return Index(*columns), len(rows) - len(good)


def _fits(row: Row, start: int, end: int) -> bool:
    try:
        wanted = _elements(row.shape) * DTYPES[row.dtype].storage.itemsize
    except (ValueError, KeyError):
        return False
    inside = not row.size or (row.offset >= start and row.offset + row.size <= end)
    return inside and (row.size == wanted or row.form != VALUES)


def _disjoint(rows: Sequence[Row]) -> Iterator[Row]:
    """Those that share all of their bytes with another one, or none."""
    taken: set[int] = set()
    last: Optional[Row] = None
    held = [number for number, row in enumerate(rows) if row.size and row.form == VALUES]
    for number in sorted(held, key=lambda number: rows[number].offset):
        row = rows[number]
        if last is None or row.offset >= last.offset + last.size or row[2:] == last[2:]:
            taken.add(number)
            last = row
    return (row for number, row in enumerate(rows) if number in taken or not row.size or row.form != VALUES)


def _elements(shape: Any) -> int:
    """The number of elements of a shape that numpy can hold."""
    demand(isinstance(shape, (list, tuple)) and len(shape) <= _MAX_RANK, "why-no-shape")
    demand(all(type(side) is int and 0 <= side <= _MAX_SIDE for side in shape), "why-no-shape")
    demand(math.prod(side for side in shape if side) < LARGEST // 16, "why-large-shape")
    return math.prod(shape)


def decode(value: Any, start: int, end: int) -> Index:
    """The index from its JSON section, which is used up; record data lie between `start` and `end`.

    Raises:
        Reason: something in it cannot be.
    """
    try:
        return _decode(value["tables"], value["records"], start, end)
    except (KeyError, TypeError, IndexError, OverflowError) as error:
        raise Reason("why-bad-index", form_of(error)) from error


def _decode(tables: Any, records: Any, start: int, end: int) -> Index:
    demand(isinstance(tables, dict) and isinstance(records, dict), "why-index-tables")
    phases = [phase_from(word) for word in tables["phase"]]
    layers = [path(word) for word in tables["layer"]]
    slots = [text(word) for word in tables["slot"]]
    dtypes = [text(word) for word in tables["dtype"]]
    forms = [text(word) for word in tables["form"]]
    demand(all(word in DTYPES for word in dtypes), "why-no-dtype")
    elements = [_elements(shape) for shape in tables["shape"]]
    shapes = [tuple(shape) for shape in tables["shape"]]
    column = {name: _numbers(records.pop(name)) for name in RECORD_COLUMNS}  # what JSON gave takes five times as much
    demand(len({c.size for c in column.values()}) == 1, "why-index-lengths")
    for name, table in (
        ("phase", phases), ("layer", layers), ("slot", slots), ("dtype", dtypes), ("shape", shapes), ("form", forms),
    ):  # fmt: skip  # a table of pairs
        demand(bool((column[name] < len(table)).all()), "why-not-there", name)
    _check_places(column, elements, dtypes, forms, start, end)
    demand(bool((np.diff(column["order"]) > 0).all()), "why-record-order")

    def words(name: str, table: Sequence[Any]) -> list[Any]:
        return list(map(table.__getitem__, column.pop(name).tolist()))

    def numbers(name: str) -> array[int]:
        return array("q", column.pop(name).tobytes())

    return Index(
        numbers("step"),
        words("phase", phases),
        words("layer", layers),
        numbers("call"),
        words("slot", slots),
        numbers("order"),
        words("dtype", dtypes),
        words("shape", shapes),
        numbers("offset"),
        numbers("size"),
        numbers("checksum"),
        words("form", forms),
    )


def _numbers(column: Any) -> Numbers:
    """A column of the index as an array of numbers that are not negative."""
    demand(isinstance(column, (list, np.ndarray)), "why-index-column")
    if not len(column):
        return np.zeros(0, np.int64)
    numbers = np.asarray(column)
    demand(numbers.ndim == 1 and numbers.dtype.kind == "i", "why-index-numbers")
    demand(bool((numbers >= 0).all()) and bool((numbers < LARGEST).all()), "why-number-bounds")
    return numbers


def _check_places(
    column: dict[str, Numbers], elements: list[int], dtypes: list[str], forms: list[str], start: int, end: int
) -> None:
    """Every record's bytes lie among the data, as many as its shape takes."""
    if not column["size"].size:
        return
    offset, size = column["offset"], column["size"]
    inside = (size == 0) | ((offset >= start) & (size <= end - offset))
    demand(bool(inside.all()), "why-record-outside")
    itemsizes = np.array([DTYPES[word].storage.itemsize for word in dtypes])
    wanted = np.array(elements)[column["shape"]] * itemsizes[column["dtype"]]
    values = np.array([word == VALUES for word in forms])[column["form"]]
    demand(bool(((wanted == size) | ~values).all()), "why-record-size")
    _check_sharing(column, np.flatnonzero(values & (size > 0)))


def _check_sharing(column: dict[str, Numbers], rows: Numbers) -> None:
    """Two records are names of one array, or have no byte in common: what all records hold is no more than the file."""
    rows = rows[np.argsort(column["offset"][rows], kind="stable")]
    before, after = rows[:-1], rows[1:]
    offset, size = column["offset"], column["size"]
    apart = offset[after] >= offset[before] + size[before]
    alike = np.ones(apart.shape, bool)
    for name in ("offset", "size", "dtype", "shape", "checksum"):
        alike &= column[name][before] == column[name][after]
    demand(bool((apart | alike).all()), "why-record-sharing")
