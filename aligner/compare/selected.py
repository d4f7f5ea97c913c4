"""Rows that one side takes out of a value before it works on them, where the port works on all: `x[mask]`, and a mask
behind it. A mask of several axes makes rows of what has them: they are counted through all of these.

The port's own value with the reference's rows is what its layer is to get and to make; what it makes of the others is
its own affair.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.formed import Formed
from aligner.compare.net import is_input
from aligner.dtypes import DTYPES
from aligner.record import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.reader import Entry

    Numbers = npt.NDArray[np.float64]

MOST = 1 << 12
"""Rows of a value, at most."""

SEARCHES, WORK = 256, 1 << 27
"""Values in which rows are looked for, and how many numbers are subtracted for one."""

LARGEST = 1 << 22
"""Numbers of a value that is read for this."""

NEAR = 1e-3
"""Rows are each other's that differ by no more than this part."""

Rows = tuple[int, ...]


class Selected(Formed):
    """The reference's rows where the port has them, in a value of the port's shape."""

    def __init__(self, entry: Entry, rows: Rows, shape: tuple[int, ...]) -> None:
        key = entry.key._replace(slot=f"{entry.key.slot}[rows]")
        super().__init__(key, entry, shape, (entry.content, rows, shape))
        self.entry, self.rows = entry, rows

    def raw(self) -> Array:
        """The exact bits."""
        value = np.zeros(self.shape, DTYPES[self.dtype].storage)
        self._in_rows(value)[list(self.rows)] = self.entry.raw()
        return value

    def _in_rows(self, array: Array) -> Array:
        return array.reshape(-1, *self.entry.shape[1:])

    def due(self, array: Array) -> Optional[Array]:
        """The port's own with the reference's rows, or these alone where there are no others, as with an edit the port
        may take them out."""
        rows = self.entry.raw()
        if array.shape == rows.shape or array.shape != self.shape:
            return rows if array.shape == rows.shape else None
        value = array.astype(rows.dtype) if array.dtype != rows.dtype else array.copy()
        self._in_rows(value)[list(self.rows)] = rows
        return value


class Rest(Formed):
    """The port's value with nothing but these rows, each of so many axes."""

    def __init__(self, entry: Entry, rows: Rows, axes: int) -> None:
        super().__init__(entry.key, entry, entry.shape, (entry.content, rows))
        self._entry, self._rows, self._axes = entry, rows, axes

    def raw(self) -> Array:
        """The exact bits."""
        array = self._entry.raw()
        rows = array.reshape(-1, *array.shape[array.ndim - self._axes :])
        left = np.zeros_like(rows)
        left[list(self._rows)] = rows[list(self._rows)]
        return left.reshape(array.shape)


class Selections:
    """Which rows the port's values have of the reference's, as it was seen so far, or as a mask of its tells."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self._sized: dict[tuple[int, tuple[int, ...]], list[Entry]] = {}
        """By step and shape."""
        for entry in entries:
            self._sized.setdefault((entry.key.step, entry.shape), []).append(entry)
        self._masks: dict[object, Optional[Rows]] = {}
        self._known: dict[object, Rows] = {}
        self._left = SEARCHES

    def of(self, one: Entry, other: Entry) -> Optional[Rows]:
        """Those of one pair; None where it is none of this kind. What is made of such rows has them where they were
        seen, though it may be wrong by then.
        """
        lead = _lead(one, other)
        many = math.prod(lead or ())
        if lead is None or one.dtype != other.dtype or not 0 < (few := one.shape[0]) < many <= MOST:
            return None
        if math.prod(other.shape) > LARGEST or (len(lead) > 1 and any(few in (size, many // size) for size in lead)):
            return None  # as many as an axis has: one turn of a loop
        layer, sizes = one.key.layer, (one.key.step, few, many)
        places = [(path, *sizes) for path in (layer, layer.rpartition(".")[0])]
        known = next((self._known[place] for place in places if place in self._known), None)
        if is_input(one.key.slot) and self._left > 0:
            ours, theirs = _numbers(one.load(), few), _numbers(other.load(), many)
            if known is None or not _are(ours, theirs[list(known)]):
                self._left -= 1
                known = _found(ours, theirs) or known
                if known is None and len(lead) > 1:
                    mask = (one.key.step, lead, few)
                    known = self._masks[mask] = self._masks[mask] if mask in self._masks else self._told(*mask)
                self._known.update(dict.fromkeys(places, known) if known is not None else {})
        return known

    def _told(self, step: int, lead: tuple[int, ...], few: int) -> Optional[Rows]:
        """The rows that a mask of the reference's has, where one is known that has so many."""
        for mask in (mask for shape in (lead, (*lead, 1)) for mask in self._sized.get((step, shape), ())):
            value = mask.load()
            if np.count_nonzero(value) == few and ((value == 0) | (value == 1)).all():
                return tuple(map(int, np.flatnonzero(value)))
        return None


def _lead(one: Entry, other: Entry) -> Optional[tuple[int, ...]]:
    """The axes of the other one that are the first one's rows; None where it has none such."""
    axes = len(other.shape) - len(one.shape) + 1
    alike = bool(one.shape) and axes > 0 and other.shape[axes:] == one.shape[1:]
    return other.shape[:axes] if alike else None


def _numbers(array: Array, rows: int) -> Numbers:
    return np.nan_to_num(array.reshape(rows, -1).astype(np.float64))


def _are(ours: Numbers, theirs: Numbers) -> bool:
    return bool((np.linalg.norm(ours - theirs, axis=1) <= NEAR * np.linalg.norm(ours, axis=1)).all())


def _found(ours: Numbers, theirs: Numbers) -> Optional[Rows]:
    """Where the rows of the one lie in the other, in the same order; not where one is there once more."""
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
    if len(left) * ours.size > WORK:
        return None
    return None if any(_is_among(theirs[number], ours, limits) for number in left) else tuple(rows)


def _is_among(row: Numbers, rows: Numbers, limits: Numbers) -> bool:
    return bool((np.linalg.norm(rows - row, axis=1) <= limits).any())


def pairs(ours: Sequence[Entry], theirs: Sequence[Entry]) -> list[tuple[Entry, Entry]]:
    """Values of one slot on either side that have other numbers of rows."""
    slots = {entry.key.slot: entry for entry in theirs}
    both = ((entry, slots[entry.key.slot]) for entry in ours if entry.key.slot in slots)
    return [(one, other) for one, other in both if _lead(one, other) not in (None, one.shape[:1])]
