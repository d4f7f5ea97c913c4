"""The net's own outputs in another arrangement: several values of one side are one on the other.

A detector may hand out its scores and boxes level by level, or all in one table. Which number stands where is then for
the one who reads them to say; whether they are the same numbers can be seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from aligner.compare.formed import Formed
from aligner.compare.net import is_input
from aligner.compare.reformed import Part
from aligner.record import Array, Key, Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry

FEW = 32
"""Fewer numbers than these may be the same by chance."""

SORTED = "[sorted]"
"""Behind the name of the first of the values."""


class Sorted(Formed):
    """The numbers of several values, the smallest first: they are the same wherever they stand."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        key = entries[0].key._replace(slot=entries[0].key.slot + SORTED)
        size = sum(math.prod(entry.shape) for entry in entries)
        super().__init__(key, entries[0], (size,), tuple(entry.content for entry in entries))
        self._entries = entries

    def raw(self) -> Array:
        """The exact bits."""
        return in_order(np.concatenate([entry.raw().reshape(-1) for entry in self._entries]))


def without_places(entry: object) -> bool:
    """Whether the other side's value is to be set against this one in order of size."""
    return isinstance(entry, Sorted)


def in_order(array: Array) -> Array:
    """All numbers of a value, the smallest first."""
    return np.sort(array.reshape(-1))


def arranged(reference: Dump, port: Dump) -> list[Part]:
    """What stands for each other so: all outputs of the net, of which one side hands out a single one."""
    found = []
    ours, theirs = _outputs(reference), _outputs(port)
    for place, one in ours.items():
        other = theirs.get(place, [])
        sizes = [sum(math.prod(entry.shape) for entry in side) for side in (one, other)]
        alike = {entry.dtype for entry in (*one, *other)} <= {"float32"} and sizes[0] == sizes[1] >= FEW
        if alike and min(len(one), len(other)) == 1 < max(len(one), len(other)):
            keys = one[0].key, other[0].key
            more = [entry.key for entry in one[1:]], [entry.key for entry in other[1:]]
            found.append(Part(Sorted(one), Sorted(other), keys, more))
    return found


def _outputs(dump: Dump) -> Mapping[tuple[int, int], list[Entry]]:
    """By step and call."""
    found: dict[tuple[int, int], list[Entry]] = {}
    for entry in dump.of_layer("")[0]:
        key: Key = entry.key
        if key.phase is Phase.FORWARD and not is_input(key.slot):
            found.setdefault((key.step, key.call), []).append(entry)
    return found
