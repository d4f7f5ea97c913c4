"""What a convolution or a pooling is given, where one side pads it before and the other one in the layer.

The reference's value with zeros around it, or without those that it has, is what the port's layer is to get.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.formed import Formed
from aligner.record import Array

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry
    from aligner.record import LayerSpec

Numbers = tuple[tuple[int, int], ...]
"""Zeros before and behind, of each axis."""

Pads = Sequence[tuple[int, int]]
"""The same, as a layer adds them."""

KINDS = ("Conv", "MaxPool", "AvgPool")
"""How the kinds of layers are called that may pad by themselves."""

MODES = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
"""What stands around the value, where that is no zeros, as numpy calls it."""

WIDEST = 64
"""Zeros of both ends that are looked at."""


class Padded(Formed):
    """A value with so many zeros, or others of its own, around it, or without them."""

    def __init__(self, entry: Entry, zeros: Numbers, more: bool, mode: str = "constant") -> None:
        key = entry.key._replace(slot=f"{entry.key.slot}[{'padded' if more else 'unpadded'}]")
        sign = 1 if more else -1
        shape = tuple(size + sign * (before + behind) for size, (before, behind) in zip(entry.shape, zeros))
        super().__init__(key, entry, shape, (entry.content, zeros, more, mode))
        self.entry, self._zeros, self._more, self._mode = entry, zeros, more, mode

    def raw(self) -> Array:
        """The exact bits."""
        value = self.entry.raw()
        if self._more:
            whole: Array = np.pad(value, self._zeros, self._mode)  # type: ignore[call-overload]  # one of MODES
            return whole
        return np.ascontiguousarray(value[inside(value, self._zeros)])


def inside(value: Array, zeros: Numbers) -> tuple[slice, ...]:
    """Where the rest lies."""
    return tuple(slice(before, size - behind) for size, (before, behind) in zip(value.shape, zeros))


def padded(one: Entry, other: Entry, dumps: Sequence[Dump]) -> Optional[Padded]:
    """What the port's layer is to get in the place of the reference's value `one`; None where that is no such value."""
    layers = [dump.layers.get(entry.key.layer) for dump, entry in zip(dumps, (one, other))]
    specs = [layer.spec for layer in layers if layer is not None]
    apart = [b - a for a, b in zip(one.shape, other.shape)]
    if len(one.shape) != len(other.shape) or not any(apart) or any(apart[:2]) or one.dtype != other.dtype:
        return None
    if len(specs) == 2 and specs[0].attributes.get("padding_mode") in MODES:
        return _of_its_own(one, specs)
    if min(apart) < 0 < max(apart) or sum(map(abs, apart)) > WIDEST or len(specs) < 2 or not all(map(_pads, specs)):
        return None
    pads = [_numbers(spec, len(apart)) for spec in specs]
    if max(apart) > 0:
        return _with_zeros(one, other, apart, pads)
    return _without(one, [-size for size in apart], pads)


def _pads(spec: LayerSpec) -> bool:
    return spec.kind.startswith(KINDS) and spec.attributes.get("padding_mode", "zeros") == "zeros"


def _of_its_own(one: Entry, specs: Sequence[LayerSpec]) -> Optional[Padded]:
    """What the reference's layer pads by values of its own: the port's layers cannot, and are given them."""
    pads = [_numbers(spec, len(one.shape)) for spec in specs]
    fits = all(max(pair) < size for pair, size in zip(pads[0] or (), one.shape))
    if not fits or pads[0] is None or pads[1] is None or any(map(any, pads[1])):
        return None
    return Padded(one, tuple(pads[0]), True, MODES[str(specs[0].attributes["padding_mode"])])


def _without(one: Entry, fewer: Sequence[int], pads: Sequence[Optional[Pads]]) -> Optional[Padded]:
    """The port's layer pads more by itself: the zeros that the reference's value has."""
    zeros = tuple((size // 2, size - size // 2) for size in fewer)
    if pads[0] is not None and pads[1] is not None:
        more = tuple((b[0] - a[0], b[1] - a[1]) for a, b in zip(pads[0], pads[1]))
        zeros = more if [sum(pair) for pair in more] == [*fewer] else zeros
    if min(map(min, zeros)) < 0:
        return None
    value = one.load()
    border = np.ones(value.shape, np.bool_)
    border[inside(value, zeros)] = False
    return None if value[border].any() else Padded(one, zeros, False)


def _with_zeros(one: Entry, other: Entry, more: Sequence[int], pads: Sequence[Optional[Pads]]) -> Optional[Padded]:
    """The port's value has the zeros: of the ways in which they may lie, the one in which the rest is nearest. In front
    there are to be as many as the reference's layer adds; where it adds more behind, they are cut off again.
    """
    value, found = (entry.load() for entry in (one, other))
    ways: list[tuple[float, Numbers]] = []
    for zeros in _ways(more):
        within = inside(found, zeros)
        border = np.ones(found.shape, np.bool_)
        border[within] = False
        if not found[border].any():
            apart = np.subtract(found[within], value, dtype=np.float64)
            ways.append((float(np.abs(apart).sum()), zeros))
    if not ways or pads[0] is None or pads[1] is None:
        return None
    zeros = min(ways)[1]
    before = [first[0] - second[0] for first, second in zip(pads[0], pads[1])]
    return Padded(one, zeros, True) if before == [pair[0] for pair in zeros] else None


def _ways(more: Sequence[int]) -> Iterator[Numbers]:
    each = [[(before, size - before) for before in {0, size // 2, size - size // 2, size}] for size in more]
    yield from product(*each)


def _numbers(spec: LayerSpec, axes: int) -> Optional[Pads]:
    """Zeros before and behind of each axis that a layer adds; None where it is not written in numbers."""
    said: Any = spec.attributes.get("padding")
    pairs = said if isinstance(said, tuple) and len(said) == axes - 2 else ()
    known = bool(pairs) and all(isinstance(pair, tuple) and [type(one) for one in pair] == [int, int] for pair in pairs)
    return [(0, 0), (0, 0), *pairs] if known else None
