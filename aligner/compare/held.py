"""A tensor in memory that reads like a record of a dump, so that it is measured in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Optional

from aligner.dtypes import decode
from aligner.record import Array, Key

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


class Held:
    """The part of an Entry that measuring needs. `array` holds the exact bits, as an adapter gives them."""

    imported = False
    """Its shape is the layer's own (see Entry.imported)."""

    def __init__(self, key: Key, order: int, dtype: str, array: Array) -> None:
        self.key, self.order, self.dtype = key, order, dtype
        self.shape: tuple[int, ...] = tuple(array.shape)
        self.nbytes = int(array.nbytes)
        self._array = array

    def raw(self) -> Array:
        """The exact bits."""
        return self._array

    def load(self) -> Array:
        """The values as numbers."""
        return decode(self._array, self.dtype)

    def stream(self, buffer: Array, verify: bool = True) -> Iterator[Array]:
        """Successive pieces of the bits; they need not be copied, being in memory already."""
        flat = self._array.reshape(-1)
        step = (buffer.size - buffer.size % 16) // max(flat.itemsize, 1)
        for start in range(0, flat.size, step):
            yield flat[start : start + step]


def held(entry: Entry, shape: Optional[tuple[int, ...]] = None) -> Held:
    """What a record holds, read at once; in another shape."""
    raw = entry.raw()
    return Held(entry.key, entry.order, entry.dtype, raw if shape is None else raw.reshape(shape))
