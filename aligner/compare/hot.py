"""Choices that one side tells by numbers, and the other by a one among zeros."""

from __future__ import annotations

from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.formed import Formed
from aligner.compare.held import held
from aligner.dtypes import DTYPES, encode
from aligner.record import Array

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

LEAST = 4
"""Choices by which it is told: fewer may be so by chance."""


class Hot(Formed):
    """The reference's numbers as ones among zeros, along the port's axis."""

    def __init__(self, entry: Entry, axis: int, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__(entry.key, entry, shape, (entry.content, axis, dtype))
        self.entry, self._axis, self.dtype = entry, axis, dtype

    def raw(self) -> Array:
        """The exact bits."""
        count = self.shape[self._axis]
        chosen = np.expand_dims(held(self.entry).load(), self._axis)
        places = np.arange(count).reshape([count if at == self._axis else 1 for at in range(len(self.shape))])
        return encode((chosen == places).astype(np.float32), self.dtype)


class Chosen(Formed):
    """The reference's ones among zeros as the numbers of their places."""

    def __init__(self, entry: Entry, axis: int, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__(entry.key, entry, shape, (entry.content, axis, dtype))
        self.entry, self._axis, self.dtype = entry, axis, dtype

    def raw(self) -> Array:
        """The exact bits."""
        return encode(np.asarray(held(self.entry).load().argmax(self._axis)), self.dtype)


def hot(mine: Entry, its: Entry) -> Optional[Formed]:
    """The reference's choices as the port tells them, where the one tells by numbers what the other does by ones."""
    if DTYPES[its.dtype].decode is not None and its.dtype != "bfloat16":
        return None  # nothing is computed in such a type
    for one, other, kind in ((mine, its, Hot), (its, mine, Chosen)):
        axis = _axis(one, other)
        if axis is not None:
            return kind(mine, axis, its.shape, its.dtype)
    return None


def _axis(numbers: Entry, ones: Entry) -> Optional[int]:
    """Along which axis there is one among zeros for each of these whole numbers."""
    if not DTYPES[numbers.dtype].exact or numbers.dtype == "bool" or len(ones.shape) != len(numbers.shape) + 1:
        return None
    axes = [at for at in range(len(ones.shape)) if ones.shape[:at] + ones.shape[at + 1 :] == numbers.shape]
    chosen = held(numbers).load() if axes else np.empty(0)
    if chosen.size < LEAST:
        return None
    values = held(ones).load()
    plain = bool(((values == 0) | (values == 1)).all())
    fits = (at for at in reversed(axes) if chosen.min() >= 0 and chosen.max() < ones.shape[at] > 1)
    return next((at for at in fits if plain and (values.sum(at) == 1).all()), None)
