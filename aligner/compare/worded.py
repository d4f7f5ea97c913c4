"""A mask of the reference's in the port's words: true and false for what is added to scores."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from aligner.compare.formed import Formed
from aligner.compare.held import Held, held
from aligner.compare.reading import HIDDEN
from aligner.record import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.reader import Entry


class Worded(Formed):
    """An additive mask of the reference's as one of true and false."""

    def __init__(self, entry: Entry, hides: bool, shape: tuple[int, ...]) -> None:
        super().__init__(entry.key, entry, shape, (entry.content, hides))
        self._entry, self._hides, self.dtype = entry, hides, "bool"
        self.nbytes = math.prod(shape)

    def raw(self) -> Array:
        """The exact bits."""
        found = hidden(held(self._entry))
        return np.ascontiguousarray((found if self._hides else ~found).reshape(self.shape))


class Axed(Formed):
    """A mask of two values as one of true and false with its axes in another order."""

    def __init__(self, entry: Entry, axes: tuple[int, ...], greater: bool, shape: tuple[int, ...]) -> None:
        super().__init__(entry.key, entry, shape, (entry.content, axes, greater))
        self.entry, self.axes, self._greater, self.dtype = entry, axes, greater, "bool"
        self.nbytes = math.prod(shape)

    def raw(self) -> Array:
        """The exact bits: whether it is the greater of the two, or the less."""
        values = held(self.entry).load()
        found = (values == values.max()) == self._greater
        return np.ascontiguousarray(found.transpose(self.axes).reshape(self.shape))


def hidden(mask: Held) -> npt.NDArray[np.bool_]:
    """Where an additive mask hides."""
    return np.asarray(mask.load(), np.float64) <= -HIDDEN
