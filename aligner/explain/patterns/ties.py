"""Indices that differ where the values they stand for are equal, and counts that a short type cannot hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Optional

import numpy as np

from aligner.explain.case import Case
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

Named = tuple[str, Floats]
"""A value that was in hand, and its name."""

WIDTHS = {"int8": (8, True), "uint8": (8, False), "int16": (16, True)}
"""Bits, and whether one is the sign."""

STOPS = {2048: "float16", 256: "bfloat16"}
"""Adding one to it makes no other number in that type."""

RARE = 0.5
"""Where more of all values than this are equal, any index points at the same (a mask, padding)."""

FROM = 64
"""A count that stops below this may be anything."""


def suspects(scene: Scene) -> Iterator[Suspect]:
    """For a layer that makes whole numbers of what it was given."""
    if counts(scene.case):
        yield from told(scene.pair, [(f"input.{number}", array) for number, array in enumerate(scene.inputs)])


def counts(case: Case) -> bool:
    """Whether both sides are whole numbers by type: indices or counts, and no masks."""
    sides = (case.expected, case.actual)
    return all(side is not None and "int" in side.dtype for side in sides)


def told(pair: Pair, held: Iterable[Named]) -> Iterator[Suspect]:
    """At most one, of a value made of those in hand."""
    if not pair.alike:
        return
    found = _ties(pair, held) or _narrow(pair)
    if found is not None:
        yield found


def _ties(pair: Pair, held: Iterable[Named]) -> Optional[Suspect]:
    """Both sides' indices point at the same values: along one axis, or into the whole."""
    one, other = (np.asarray(side, np.int64) for side in (pair.expected, pair.actual))
    if min(int(one.min()), int(other.min())) < 0:
        return None
    for name, array in held:
        for axis in _axes(array.shape, one.shape):
            size = array.shape[axis]
            if max(int(one.max()), int(other.max())) >= size or size < 2:
                continue
            if one.ndim == array.ndim and not (_once(one, axis) and _once(other, axis)):
                continue
            ours, theirs = (_at(array, index, axis) for index in (one, other))
            if np.array_equal(ours, theirs) and (array == np.take(ours, [0], axis)).mean() <= RARE:
                count = int((one != other).sum())
                return pair.suspect(
                    "topk-ties", 0.0, 0.9, other=f"[{name}]", axis=axis, count=count, total=int(one.size)
                )
    return None


def _axes(shape: tuple[int, ...], wanted: tuple[int, ...]) -> Iterator[int]:
    """Axes along which indices of this shape may point: as many of them, fewer, or one that is left out."""
    for axis in reversed(range(len(shape))):
        rest = shape[:axis] + shape[axis + 1 :]
        kept = len(wanted) == len(shape) and wanted[:axis] + wanted[axis + 1 :] == rest
        if kept or (wanted == rest and rest):
            yield axis


def _once(index: Floats, axis: int) -> bool:
    """Whether no place is picked twice, as neither a sort nor a top-k does: else these are other whole numbers."""
    return bool((np.diff(np.sort(index, axis), axis=axis) != 0).all())


def _at(array: Floats, index: Floats, axis: int) -> Floats:
    """What the indices point at, with all axes of the array."""
    whole = index if index.ndim == array.ndim else np.expand_dims(index, axis)
    return np.take_along_axis(array, whole, axis)


def _narrow(pair: Pair) -> Optional[Suspect]:
    """Counts that wrap around, or stop, at the largest number of a short type."""
    one, other = (np.asarray(side, np.int64) for side in (pair.expected, pair.actual))
    wrong = one != other
    if not wrong.any() or int(np.abs(one).max()) < FROM:
        return None
    for shift in (0, -1, 1, 2, -2):
        for word, (bits, signed) in WIDTHS.items():
            low = -(1 << (bits - 1)) if signed else 0
            high = low + (1 << bits) - 1
            if np.array_equal((one - shift - low) % (1 << bits) + low + shift, other):
                return _counted(pair, word, high, wrong)
            if np.array_equal(np.clip(one - shift, low, high) + shift, other):
                return _counted(pair, word, high, wrong)
        for stop, word in STOPS.items():
            if np.array_equal(np.minimum(one - shift, stop) + shift, other):
                return _counted(pair, word, stop, wrong)
    return None


def _counted(pair: Pair, word: str, largest: int, wrong: Floats) -> Suspect:
    facts: dict[str, Scalar] = {"dtype": word, "largest": largest, "count": int(wrong.sum()), "total": int(wrong.size)}
    return pair.suspect("cumsum-dtype", 0.0, 0.9, None, **facts)
