"""Rows that one side takes out of a value before it works on them, where the port works on all: `x[mask]`, and a mask
behind it.

The reference's rows among zeros are what the port's layer is to get and to make; what it makes of the others is its own
affair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.formed import Formed
from aligner.dtypes import DTYPES
from aligner.record import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.reader import Dump, Entry

    Numbers = npt.NDArray[np.float64]

MOST = 1 << 14
"""Rows that are looked at."""

LARGEST = 1 << 22
"""Numbers of a value that is read for this."""

NEAR = 1e-3
"""Rows are each other's that differ by no more than this part."""

Rows = tuple[int, ...]


class Selected(Formed):
    """The reference's rows where the port has them, among as many as the port has."""

    def __init__(self, entry: Entry, rows: Rows, count: int) -> None:
        key = entry.key._replace(slot=f"{entry.key.slot}[rows]")
        super().__init__(key, entry, (count, *entry.shape[1:]), (entry.content, rows, count))
        self.entry, self.rows = entry, rows

    def raw(self) -> Array:
        """The exact bits."""
        value = np.zeros(self.shape, DTYPES[self.dtype].storage)
        value[list(self.rows)] = self.entry.raw()
        return value


class Rest(Formed):
    """The port's value with nothing but these rows."""

    def __init__(self, entry: Entry, rows: Rows) -> None:
        super().__init__(entry.key, entry, entry.shape, (entry.content, rows))
        self._entry, self._rows = entry, rows

    def raw(self) -> Array:
        """The exact bits."""
        return _only(self._entry.raw(), self._rows)


def due(entry: Any, array: Array) -> Optional[Array]:
    """What a value of the port's is to be: its own with the reference's rows, or these alone where there are no others,
    as with an edit the port may take them out. None where the reference's is no such value.
    """
    if not isinstance(entry, Selected):
        return None
    rows = entry.entry.raw()
    if array.shape == rows.shape or array.shape != entry.shape:
        return rows if array.shape == rows.shape else None
    value = array.astype(rows.dtype) if array.dtype != rows.dtype else array.copy()
    value[list(entry.rows)] = rows
    return value


def _only(array: Array, rows: Rows) -> Array:
    left = np.zeros_like(array)
    left[list(rows)] = array[list(rows)]
    return left


class Selections:
    """Which rows the port's values have of the reference's, as it was seen so far."""

    def __init__(self, reference: Dump) -> None:
        self._reference = reference
        self._known: dict[object, Rows] = {}
        self._masks: dict[tuple[int, int], list[Entry]] = {}

    def of(self, one: Entry, other: Entry) -> Optional[Rows]:
        """Those of one pair; None where it is none of this kind."""
        alike = one.dtype == other.dtype and len(one.shape) == len(other.shape) and one.shape[1:] == other.shape[1:]
        if (
            not alike
            or not one.shape
            or not 0 < one.shape[0] < other.shape[0] <= MOST
            or math.prod(other.shape) > LARGEST
        ):
            return None
        layer, sizes = one.key.layer, (one.key.step, one.shape[0], other.shape[0])
        rows = _found(one.load(), other.load())
        places = [(path, *sizes) for path in (layer, layer.rpartition(".")[0])]
        if rows is None:
            known = (self._known[place] for place in places if place in self._known)
            return next(known, None) or self._by_mask(*sizes)
        self._known.update(dict.fromkeys(places, rows))
        return rows

    def _by_mask(self, step: int, few: int, many: int) -> Optional[Rows]:
        """The rows that a value of so many numbers is no zero in."""
        if (step, many) not in self._masks:
            self._masks[step, many] = [
                entry
                for entry in self._reference.entries
                if entry.key.step == step and math.prod(entry.shape) == many and DTYPES[entry.dtype].exact
            ]
        for entry in self._masks[step, many]:
            rows = np.flatnonzero(entry.load().reshape(-1))
            if len(rows) == few:
                return tuple(map(int, rows))
        return None


def _found(few: Array, many: Array) -> Optional[Rows]:
    """Where the rows of the one lie in the other, in the same order; not where one is there once more."""
    ours, theirs = (np.nan_to_num(each.reshape(len(each), -1).astype(np.float64)) for each in (few, many))
    limits = NEAR * np.linalg.norm(ours, axis=1)
    rows: list[int] = []
    at = 0
    for row, limit in zip(ours, limits):
        while at < len(theirs) and np.linalg.norm(theirs[at] - row) > limit:
            at += 1
        if at == len(theirs):
            return None
        rows.append(at)
        at += 1
    known = {*rows}
    left = [number for number in range(len(theirs)) if number not in known]
    return None if any(_is_among(theirs[number], ours, limits) for number in left) else tuple(rows)


def _is_among(row: Numbers, rows: Numbers, limits: Numbers) -> bool:
    return bool((np.linalg.norm(rows - row, axis=1) <= limits).any())


def pairs(ours: Sequence[Entry], theirs: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """Values of one slot on either side that have other numbers of rows."""
    slots = {entry.key.slot: entry for entry in theirs}
    both = ((entry, slots[entry.key.slot]) for entry in ours if entry.key.slot in slots)
    return [
        (one, other) for one, other in both if one.shape[:1] != other.shape[:1] and one.shape[1:] == other.shape[1:]
    ]
