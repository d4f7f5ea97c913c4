"""Several values that lie one after the other along an axis of a single one, as records of either side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aligner.compare.formed import Formed
from aligner.record import Array

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


Shape = tuple[int, ...]


@dataclass(frozen=True)
class Along:
    """Where the values lie in the one value: so much of the axis each, which may be none of theirs."""

    axis: int
    sizes: tuple[int, ...]
    own: bool = False

    def joined(self, values: Sequence[Array]) -> Array:
        """The one value."""
        return np.stack(values, self.axis) if self.own else np.concatenate(values, self.axis)

    def single(self, value: Array, number: int) -> Array:
        """One of the values."""
        stop = sum(self.sizes[: number + 1])
        part = value.take(range(stop - self.sizes[number], stop), self.axis)
        return part.squeeze(self.axis) if self.own else part


def stacks(part: Shape, count: int, shape: Shape) -> list[Along]:
    """The axes of its own along which so many values of one shape may lie in a single one."""
    return [
        Along(axis, (1,) * count, True)
        for axis, size in enumerate(shape)
        if size == count and shape[:axis] + shape[axis + 1 :] == part
    ]


def apart(way: Along, values: Sequence[Entry], whole: Entry) -> float:
    """How far the values, laid so, are from the single one."""
    joined = way.joined([entry.load() for entry in values])
    with np.errstate(invalid="ignore"):  # masks hide by infinite numbers on both sides
        return float(np.abs(joined.astype(np.float64) - whole.load().astype(np.float64)).mean())


class Row(Formed):
    """The values as one."""

    def __init__(self, entries: Sequence[Entry], along: Along, shape: tuple[int, ...]) -> None:
        first = entries[0]
        key = first.key._replace(slot=f"{first.key.slot}[#0-{len(entries) - 1}]")
        super().__init__(key, first, shape, (along, *(entry.content for entry in entries)))
        self.entries, self.along = entries, along

    def raw(self) -> Array:
        """The exact bits."""
        return np.ascontiguousarray(self.along.joined([entry.raw() for entry in self.entries]))


class Single(Formed):
    """One of the values of the one value."""

    def __init__(self, entry: Entry, along: Along, number: int, shape: tuple[int, ...]) -> None:
        key = entry.key._replace(slot=f"{entry.key.slot}[#{number}]")
        super().__init__(key, entry, shape, (along, number, entry.content))
        self.entry, self.along, self.number = entry, along, number

    def raw(self) -> Array:
        """The exact bits."""
        return np.ascontiguousarray(self.along.single(self.entry.raw(), self.number))
