"""Losses of which one side takes the mean in the layer, and the other one in the code around it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.formed import Formed
from aligner.compare.held import held
from aligner.dtypes import decode, encode
from aligner.record import Array, LayerSpec

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

WAYS: Mapping[str, Callable[..., Array]] = {"mean": np.mean, "sum": np.sum}


class Reduced(Formed):
    """The reference's single losses as the one number that the port's layer makes of them."""

    def __init__(self, entry: Entry, way: str, shape: tuple[int, ...]) -> None:
        super().__init__(entry.key, entry, shape, (entry.content, way))
        self.entry, self.way = entry, way

    def raw(self) -> Array:
        """The exact bits."""
        return encode(WAYS[self.way](held(self.entry).load(), keepdims=True).reshape(self.shape), self.dtype)

    def of(self, other: Entry) -> Formed:
        """Another call's losses in the same way."""
        return Reduced(other, self.way, self.shape)


class Scaled(Formed):
    """The reference's one number as the port's single losses, of which the code around is to make it."""

    def __init__(self, entry: Entry, way: str, shape: tuple[int, ...]) -> None:
        super().__init__(entry.key, entry, shape, (entry.content, way))
        self.entry, self._way = entry, way

    def raw(self) -> Array:
        """The exact bits, where nothing is known of the port's."""
        return self.due(np.ones(self.shape, dtype=held(self.entry).raw().dtype))

    def due(self, array: Array) -> Array:
        """The port's, and as much larger or smaller as all of it is to be."""
        value, wanted = decode(array, self.dtype), float(held(self.entry).load().reshape(-1)[0])
        made = float(WAYS[self._way](value))
        right = math.isclose(made, wanted, rel_tol=1e-6)
        return array if right or not made else encode(value * np.asarray(wanted / made, value.dtype), self.dtype)


def reduced(mine: Entry, its: Entry, specs: tuple[LayerSpec, LayerSpec]) -> Optional[Formed]:
    """The reference's loss as the port has it, where one of them alone is a single number."""
    one, other = (str(spec.attributes.get("reduction")) for spec in specs)
    if not specs[0].kind.endswith("Loss") or specs[0].kind != specs[1].kind or mine.dtype != its.dtype:
        return None
    sizes = [math.prod(entry.shape) for entry in (mine, its)]
    if one == "none" and other in WAYS and sizes[0] > sizes[1] == 1:
        return Reduced(mine, other, its.shape)
    if other == "none" and one in WAYS and sizes[1] > sizes[0] == 1:
        return Scaled(mine, one, its.shape)
    return None
