"""What simple code makes of one value in hand, in the shape that is wanted: parts, other axes, means, norms."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, permutations
from typing import Any, Optional

import numpy as np

from aligner.explain.glue.hand import Piece
from aligner.explain.inquiry import spend
from aligner.explain.patterns.pair import Floats

Shape = tuple[int, ...]

MAX_AXES = 5
WIDE = 1 << 17
"""Elements up to which norms are held in float64."""
EPS = 1e-5


@dataclass(frozen=True, eq=False)
class View:
    """A value in hand after one simple operation; `array` broadcasts to the wanted shape."""

    piece: Piece
    how: str
    """The operation's name, "" for the value itself."""
    detail: str
    """Its axis or place: what may be wrong about it."""
    text: str
    """As code."""
    array: Floats

    @property
    def plain(self) -> bool:
        """Whether it is the value itself, perhaps broadcast."""
        return self.how == ""


@lru_cache(maxsize=4096)
def aligned(shape: Shape, wanted: Shape) -> tuple[Shape, ...]:
    """The shape with axes of one put in so that it broadcasts to the wanted one: every way, numpy's first."""
    sizes = tuple(size for size in shape if size != 1)
    if len(sizes) > len(wanted):
        return ()
    right = (1,) * (len(wanted) - len(shape)) + shape if len(shape) <= len(wanted) else None
    places = sorted(combinations(range(len(wanted)), len(sizes)), reverse=True)
    ways = [tuple(sizes[at.index(i)] if i in at else 1 for i in range(len(wanted))) for at in places]
    offered = dict.fromkeys([right, *ways] if right is not None else ways)
    return tuple(way for way in offered if all(a in (1, b) for a, b in zip(way, wanted)))


def plain(piece: Piece, wanted: Shape) -> Iterator[View]:
    """The value itself, broadcast."""
    text = f"[{piece.name}]"
    for number, shape in enumerate(aligned(piece.array.shape, wanted)):
        detail = "" if number == 0 else f"along {tuple(i for i, n in enumerate(shape) if n > 1)}"
        yield View(piece, "", detail, text, piece.array.reshape(shape))


def squeezed(piece: Piece, wanted: Shape) -> Piece:
    """The piece without axes of one, where it has the wanted shape then."""
    if piece.array.shape != wanted and _squeezed(piece.array.shape) == _squeezed(wanted):
        return replace(piece, array=piece.array.reshape(wanted))
    return piece


def divisible(shape: Shape, wanted: Shape) -> bool:
    """Whether a part of a value may be, or be spread over, the wanted shape."""
    if len(shape) > len(wanted):
        return False
    ends = wanted[len(wanted) - len(shape) :]
    longer = [n > m for n, m in zip(shape, ends) if n not in (1, m)]
    return bool(longer) and all(longer)


def parts(piece: Piece, wanted: Shape) -> Iterator[View]:
    """Pieces of it along one axis: chunks, every n-th, the first or last ones, the middle."""
    array, text = piece.array, f"[{piece.name}]"
    if array.ndim > len(wanted):
        return
    array = array.reshape((1,) * (len(wanted) - array.ndim) + array.shape)
    off = [axis for axis in range(array.ndim) if array.shape[axis] not in (1, wanted[axis])]
    if not off or any(array.shape[axis] < wanted[axis] for axis in off):
        return
    if len(off) == 1:
        yield from _chunks(piece, array, off[0], wanted[off[0]])
    for how, starts in _starts(array.shape, wanted, off):
        index = tuple(
            slice(starts[axis], starts[axis] + wanted[axis]) if axis in off else slice(None)
            for axis in range(array.ndim)
        )
        yield View(piece, "slice", how, f"{text}[{_spelled(index)}]", array[index])
    if all(-(-array.shape[axis] // 2) == wanted[axis] for axis in off):
        for first in (0, 1):
            index = tuple(slice(first, None, 2) if axis in off else slice(None) for axis in range(array.ndim))
            if array[index].shape == tuple(wanted[a] if a in off else array.shape[a] for a in range(array.ndim)):
                yield View(piece, "stride", str(first), f"{text}[{_spelled(index)}]", array[index])


def _chunks(piece: Piece, array: Floats, axis: int, size: int) -> Iterator[View]:
    text = f"[{piece.name}]"
    count, left = divmod(array.shape[axis], size)
    if left or count > 8:
        return
    for number in range(count):
        index = (slice(None),) * axis + (slice(number * size, (number + 1) * size),)
        yield View(piece, "chunk", f"{number} of {count}", f"{text}[{_spelled(index)}]", array[index])
    for number in range(count):
        index = (slice(None),) * axis + (slice(number, None, count),)
        yield View(piece, "every", f"{number} of {count}", f"{text}[{_spelled(index)}]", array[index])


def _starts(shape: Shape, wanted: Shape, off: list[int]) -> Iterator[tuple[str, dict[int, int]]]:
    spare = {axis: shape[axis] - wanted[axis] for axis in off}
    yield "first", dict.fromkeys(off, 0)
    yield "last", spare
    for shift in (1, 2):
        if all(shift < n for n in spare.values()):
            yield f"from {shift}", dict.fromkeys(off, shift)
    middle = {axis: n // 2 for axis, n in spare.items()}
    if any(n > 1 for n in spare.values()):
        yield "middle", middle
        if any(n % 2 for n in spare.values()):
            yield "middle, rounded up", {axis: -(-n // 2) for axis, n in spare.items()}


def _spelled(index: tuple[slice, ...]) -> str:
    def one(part: slice) -> str:
        ends = [("" if end is None else str(end)) for end in (part.start, part.stop)]
        return ":".join(ends) + (f":{part.step}" if part.step is not None else "")

    return ", ".join(one(part) for part in index)


def turned(piece: Piece, wanted: Shape) -> Iterator[View]:
    """The same numbers in another order: axes permuted, or read off in another order into another shape."""
    array, text = piece.array, f"[{piece.name}]"
    if array.size != math.prod(wanted) or not 2 <= array.ndim <= MAX_AXES:
        return
    if array.shape != wanted and _squeezed(array.shape) != _squeezed(wanted):
        yield View(piece, "reshape", "", f"{text}.reshape{_tuple(wanted)}", array.reshape(wanted))
    for order in permutations(range(array.ndim)):
        if order == tuple(range(array.ndim)):
            continue
        turn = array.transpose(order)
        words = f"{text}.transpose{order}"
        if turn.shape == wanted:
            yield View(piece, "transpose", str(order), words, turn)
        elif array.ndim <= 4 and array.ndim != len(wanted) and order[0] == 0:
            yield View(
                piece, "turned and reshaped", str(order), f"{words}.reshape{_tuple(wanted)}", turn.reshape(wanted)
            )


def _squeezed(shape: Shape) -> Shape:
    return tuple(size for size in shape if size != 1)


def _tuple(shape: Shape) -> str:
    return str(tuple(int(size) for size in shape))


def reduced(piece: Piece, wanted: Shape) -> Iterator[View]:
    """Means, sums, extremes and ends over one or more axes."""
    array = piece.array
    if array.ndim > MAX_AXES or array.ndim < 1 or array.dtype.kind == "b":
        return
    for count in range(1, min(3, array.ndim) + 1):
        for axes in combinations(range(array.ndim), count):
            rest = tuple(size for axis, size in enumerate(array.shape) if axis not in axes)
            kept = tuple(1 if axis in axes else size for axis, size in enumerate(array.shape))
            if all(array.shape[axis] == 1 for axis in axes):
                continue
            shape = fit(kept, rest, wanted)
            if shape is not None:
                yield from _over(piece, axes, shape)


def fit(kept: Shape, rest: Shape, wanted: Shape) -> Optional[Shape]:
    """The shape in which a reduced value stands for the whole of the wanted one."""
    if math.prod(rest) != math.prod(wanted):
        return None
    if kept == wanted or rest == wanted:
        return wanted
    return wanted if _squeezed(rest) == _squeezed(wanted) else None


def _over(piece: Piece, axes: tuple[int, ...], shape: Shape) -> Iterator[View]:
    spend(20 * piece.array.size)
    array = piece.array.astype(np.float64)
    where = str(axes[0] if len(axes) == 1 else axes)
    count = int(np.prod([array.shape[axis] for axis in axes]))
    results: dict[str, Any] = {
        "mean": array.mean(axis=axes),
        "max": array.max(axis=axes),
        "sum": array.sum(axis=axes),
        "min": array.min(axis=axes),
        "norm": np.sqrt(np.square(array).sum(axis=axes)),
        "norm1": np.abs(array).sum(axis=axes),
    }
    if count > 1:
        results["std"] = array.std(axis=axes, ddof=1)
        results["var"] = array.var(axis=axes, ddof=1)
        results["std_n"] = array.std(axis=axes)
        results["var_n"] = array.var(axis=axes)
    if count > 2 and count % 2 == 0:
        results["median"], results["numpy median"] = _medians(array, axes)
    if len(axes) == 1:
        results["first"] = array.take(0, axis=axes[0])
        results["last"] = array.take(-1, axis=axes[0])
        results["second"] = array.take(min(1, count - 1), axis=axes[0])
        results["last but one"] = array.take(max(-2, -count), axis=axes[0])
    for how, result in results.items():
        name = _NAMES.get(how, how)
        yield View(piece, how, f"axis {where}", f"{name}([{piece.name}], axis={where})", result.reshape(shape))


_NAMES = {"numpy median": "numpy.median", "last but one": "last_but_one"}
"""As code."""


def _medians(array: Floats, axes: tuple[int, ...]) -> tuple[Floats, Floats]:
    """Of an even count the lower of the two in the middle, as torch takes it, and their mean."""
    kept = [size for axis, size in enumerate(array.shape) if axis not in axes]
    rows = np.moveaxis(array, axes, range(-len(axes), 0)).reshape(*kept, -1)
    middle = rows.shape[-1] // 2
    rows = np.partition(rows, (middle - 1, middle), axis=-1)
    return rows[..., middle - 1], 0.5 * (rows[..., middle - 1] + rows[..., middle])


def normed(piece: Piece, wanted: Shape) -> Iterator[View]:
    """Norms and softmax along an axis, flips and shifts: the shape stays."""
    if piece.array.shape != wanted or piece.array.dtype.kind not in "f" or not 1 <= len(wanted) <= MAX_AXES:
        return
    spend(30 * piece.array.size)
    array = np.clip(np.nan_to_num(piece.array.astype(np.float64)), -1e30, 1e30)
    for axis in reversed(range(array.ndim)):
        if array.shape[axis] == 1 or (axis == 0 and array.ndim > 2):
            continue
        for how, result in _along(array, axis).items():
            result = result.astype(np.float32) if result.size > WIDE else result  # a dozen of them are held
            yield View(piece, how, f"axis {axis}", f"{how}([{piece.name}], axis={axis})", result)


def _along(array: Floats, axis: int) -> dict[str, Floats]:
    highest = array.max(axis=axis, keepdims=True)
    power = np.exp(array - highest)
    total = power.sum(axis=axis, keepdims=True)
    mean = array.mean(axis=axis, keepdims=True)
    centred = array - mean
    square = np.square(centred).mean(axis=axis, keepdims=True)
    n = array.shape[axis]
    unbiased = square * (n / (n - 1.0))
    length = np.sqrt(np.square(array).sum(axis=axis, keepdims=True))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        whole = array.sum(axis=axis, keepdims=True)
        return {
            "softmax": power / total,
            "log_softmax": array - highest - np.log(total),
            "l2_normalize": array / np.maximum(length, 1e-12),
            "standardize": centred / np.sqrt(square + EPS),
            "standardize_by_std": centred / (np.sqrt(unbiased) + 1e-6),
            "standardize_by_std_n": centred / (np.sqrt(square) + 1e-6),
            "centre": centred,
            "rms_norm": array / np.sqrt(np.square(array).mean(axis=axis, keepdims=True) + 1e-6),
            "share": array / np.where(whole == 0, np.inf, whole),
            "cumsum": np.cumsum(array, axis=axis),
            "flip": np.flip(array, axis),
            "roll(1)": np.roll(array, 1, axis),
            "roll(-1)": np.roll(array, -1, axis),
        }
