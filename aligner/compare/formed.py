"""What stands for a record of a dump and is made of others."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Optional

from aligner.dtypes import DTYPES, decode
from aligner.record import Array, Key

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


class Formed:
    """What reads like a record and is made of others' numbers, when it is asked for."""

    imported = False
    form = "values"

    def __init__(self, key: Key, source: Entry, shape: tuple[int, ...], content: object) -> None:
        self.key, self.order, self.dtype, self.shape = key, source.order, source.dtype, shape
        self.content: tuple[object, ...] = (source.dtype, content)
        self.place: tuple[object, ...] = self.content
        self.nbytes = math.prod(shape) * DTYPES[source.dtype].storage.itemsize

    def raw(self) -> Array:
        """The exact bits: what each kind of them is made of."""
        raise NotImplementedError

    def of(self, other: Entry) -> Optional[Formed]:
        """The same made of another call's value; None where that takes more than the value."""
        return None

    def due(self, array: Array) -> Optional[Array]:
        """What a value of the port's is to be, where that depends on what it is."""
        return None

    def load(self) -> Array:
        """The values as numbers."""
        return decode(self.raw(), self.dtype)

    def stream(self, buffer: Array, verify: bool = True) -> Iterator[Array]:
        """Successive pieces of the bits."""
        flat = self.raw().reshape(-1)
        step = (buffer.size - buffer.size % 16) // max(flat.itemsize, 1)
        for start in range(0, flat.size, step):
            yield flat[start : start + step]


def likewise(entry: Any, other: Any) -> Any:
    """Another call's value in the form in which this one stands for a value of the port's."""
    return (entry.of(other) if isinstance(entry, Formed) else None) or other


def due(entry: Any, array: Array) -> Optional[Array]:
    """What a value of the port's is to be, where some of it is its own affair."""
    return entry.due(array) if isinstance(entry, Formed) else None
