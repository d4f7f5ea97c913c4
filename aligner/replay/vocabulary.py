"""In which words a layer of the port takes a mask: an earlier call has told what true means to it.

An additive mask that hides nothing is all zeros, as is one of true and false that hides all: by their numbers alone the
two would be equal.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Union

import numpy as np

from aligner.compare.held import Held, held
from aligner.compare.worded import Worded, hidden
from aligner.dtypes import DTYPES, decode
from aligner.record import Array, Key
from aligner.replay import prints
from aligner.replay.masks import say_the_same, spread_out

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


class Vocabulary:
    """Of the arguments of a port."""

    def __init__(self) -> None:
        self.spread: set[Key] = set()
        """Masks that stand for the reference's value by value, and say it more often, or less."""
        self.words: dict[Key, tuple[prints.Print, prints.Print]] = {}
        """What tells a mask in other words from others: the reference's and the port's."""
        self.understood: set[object] = set()
        """Of these the ones that mean the same: so the words do, or somebody made the right thing of them."""
        self._hides: dict[tuple[str, str], tuple[tuple[int, int], bool]] = {}
        """Which call of a layer has told, and whether true hides, by layer and slot."""
        self.known: dict[Key, Worded] = {}
        """The reference's masks in these words, by the port's address."""

    def note(self, port: Key, wanted: Held, array: Array, dtype: str) -> None:
        """Note in which words the port has a mask."""
        self.words[port] = words = prints.taken(wanted.raw()), prints.taken(array)
        if spread_out(wanted, array, dtype):
            self.spread.add(port)
        if words not in self.understood and say_the_same(wanted, array, dtype):
            self.understood.add(words)

    def learn(self, port: Key, wanted: Held, array: Array, dtype: str) -> None:
        """The reference adds a mask, and the port has one of true and false that says the same, or the opposite."""
        if not _is_said(wanted, array, dtype):
            return
        hides = hidden(wanted).reshape(-1)
        own = decode(array, dtype).reshape(-1).astype(bool)
        if hides.any() and not hides.all() and (np.array_equal(own, hides) or np.array_equal(own, ~hides)):
            known = (port.step, port.call), bool(own[0] == hides[0])
            self._hides[port.layer, port.slot] = min(known, self._hides.get((port.layer, port.slot), known))

    def said(self, port: Key, entry: Entry, found: Held) -> Entry:
        """The reference's mask in the words of an earlier call; as it is where they are not known, or it is none."""
        told, hides = self._hides.get((port.layer, port.slot), ((port.step, port.call), False))
        if told >= (port.step, port.call) or not _is_said(entry, found.raw(), found.dtype):
            return entry
        mask = held(entry)
        if (mask.load()[~hidden(mask)] != 0).any():
            return entry
        self.known[port] = Worded(entry, hides, found.shape)
        return self.known[port]  # type: ignore[return-value]  # it reads like a record


def _is_said(wanted: Union[Held, Entry], array: Array, dtype: str) -> bool:
    return dtype == "bool" and not DTYPES[wanted.dtype].exact and math.prod(wanted.shape) == array.size > 0
