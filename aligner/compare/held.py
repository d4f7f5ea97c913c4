"""A tensor in memory that reads like a record of a dump, so that it is measured in the same way."""

from __future__ import annotations

from collections.abc import Iterator

from aligner.dtypes import decode
from aligner.record import Array, Key


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
