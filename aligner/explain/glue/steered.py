"""What code makes of a value in hand that changes its length: padding, and means that a mask or weights steer."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import product

import numpy as np

from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.glue.views import Shape, View, aligned, fit
from aligner.explain.patterns.functions import sigmoid, softmax
from aligner.explain.patterns.pair import Floats

MODES = ("constant", "edge", "reflect", "symmetric", "wrap")
"""Ways to pad, as numpy calls them."""

WIDEST = 64


def padded(piece: Piece, wanted: Shape) -> Iterator[View]:
    """The value with something around it along one or more axes."""
    array = piece.array
    if array.ndim != len(wanted) or array.dtype.kind != "f":
        return
    spare = [n - m for n, m in zip(wanted, array.shape)]
    if min(spare) < 0 or not 0 < max(spare) <= WIDEST:
        return
    ways = [
        ((0, 0),) if not n else tuple(dict.fromkeys([(n, 0), (0, n), (n // 2, n - n // 2), (n - n // 2, n // 2)]))
        for n in spare
    ]
    for widths in list(product(*ways))[:16]:
        for mode in MODES:
            try:
                made = _padded(array, widths, mode)
            except ValueError:
                continue
            text = f"pad([{piece.name}], {widths}, {mode})"
            yield View(piece, "pad", f"{widths} {mode}", text, made)


def _padded(array: Floats, widths: tuple[tuple[int, int], ...], mode: str) -> Floats:
    if mode != "constant":
        return np.pad(array, widths, mode=mode)  # type: ignore[call-overload,no-any-return]  # one of numpy's words
    made = np.zeros([before + n + after for n, (before, after) in zip(array.shape, widths)], array.dtype)
    made[tuple(slice(before, before + n) for n, (before, _) in zip(array.shape, widths))] = array
    return made


def indexed(piece: Piece, wanted: Shape) -> Iterator[View]:
    """One of the few slices along an axis."""
    array = piece.array
    for axis, size in enumerate(array.shape):
        rest = tuple(n for other, n in enumerate(array.shape) if other != axis)
        if not 2 <= size <= 8 or rest != wanted:
            continue
        for index in range(size):
            text = f"[{piece.name}][{':, ' * axis}{index}]"
            yield View(piece, "index", f"{index} of axis {axis}", text, array.take(index, axis=axis))


def weighted(piece: Piece, weight: Piece, wanted: Shape) -> Iterator[View]:
    """Means of a value over one axis that count only what a mask leaves in."""
    array, held = piece.array, weight.array.astype(np.float64)
    for axis in range(array.ndim):
        kept = tuple(1 if i == axis else n for i, n in enumerate(array.shape))
        shape = fit(kept, tuple(n for i, n in enumerate(array.shape) if i != axis), wanted)
        if shape is None or array.shape[axis] == 1:
            continue
        for way in aligned(held.shape, array.shape):
            if way[axis] == 1:
                continue
            for how, counted in (("mean where", held != 0), ("mean where not", held == 0)):
                w = counted.reshape(way).astype(np.float64)
                total = np.maximum((array * w).sum(axis=axis) * 0 + w.sum(axis=axis), 1e-9)
                text = f"{how.replace(' ', '_')}([{piece.name}], [{weight.name}], axis={axis})"
                summed = (array * w).sum(axis=axis)
                yield View(piece, how, f"axis {axis}", text, (summed / total).reshape(shape))
                highest = np.where(w > 0, array, -np.inf).max(axis=axis)
                if np.isfinite(highest).all():
                    yield View(piece, "max" + how[4:], f"axis {axis}", "max" + text[4:], highest.reshape(shape))
                yield View(piece, "sum" + how[4:], f"axis {axis}", "sum" + text[4:], summed.reshape(shape))


def pooled(piece: Piece, score: Piece, masks: Sequence[Piece], wanted: Shape) -> Iterator[View]:
    """Sums over one axis with weights from scores: softmax along that or another axis, sigmoid, or as they are."""
    array = piece.array
    for axis in range(array.ndim):
        kept = tuple(1 if i == axis else n for i, n in enumerate(array.shape))
        shape = fit(kept, tuple(n for i, n in enumerate(array.shape) if i != axis), wanted)
        if shape is None or array.shape[axis] == 1:
            continue
        for way in aligned(score.array.shape, array.shape):
            if way[axis] == 1:
                continue
            scores = score.array.astype(np.float64).reshape(way)
            for how, weights in [*_weights(scores).items(), *_masked(scores, masks, axis)]:
                text = f"sum({_spelled(how, score.name)} * [{piece.name}], axis={axis})"
                yield View(
                    piece, f"sum by {how}", f"axis {axis}", text, (array * weights).sum(axis=axis).reshape(shape)
                )


def _masked(scores: Floats, masks: Sequence[Piece], axis: int) -> Iterator[tuple[str, Floats]]:
    """Softmax of scores under each mask; the mask too late, and over another axis."""
    for mask in masks[:2]:
        for way in aligned(mask.array.shape, scores.shape):
            if way[axis] == 1:
                continue
            seen = (mask.array != 0).reshape(way)
            name = f"[{mask.name}]"
            for other in [axis, *(a for a, n in enumerate(scores.shape) if n > 1 and a != axis)]:
                yield f"softmax over axis {other} where {name}", softmax(np.where(seen, scores, -1e9), other)
            yield f"softmax over axis {axis} where not {name}", softmax(np.where(seen, -1e9, scores), axis)
            yield f"softmax over axis {axis} kept where {name}", np.where(seen, softmax(scores, axis), 0.0)


_SOFTMAX = re.compile(r"softmax over axis (\d+)(?: of| (where not|where|kept where) (.*))")


def _spelled(how: str, score: str) -> str:
    """The weights that are made of scores in this way, as code."""
    softmax_ = _SOFTMAX.fullmatch(how)
    if softmax_ is None:
        return f"{how}([{score}])"
    axis, which, mask = softmax_.groups()
    return (
        f"softmax{'_' + which.replace(' ', '_') if which else ''}([{score}]{', ' + mask if mask else ''}, axis={axis})"
    )


def hidden(piece: Piece, mask: Piece, wanted: Shape) -> Iterator[View]:
    """Softmax over what a mask leaves in."""
    if piece.array.shape != wanted or piece.array.dtype.kind != "f":
        return
    scores = piece.array.astype(np.float64)
    for way in aligned(mask.array.shape, wanted):
        for how, seen in (("softmax where", mask.array != 0), ("softmax where not", mask.array == 0)):
            for axis in reversed(range(scores.ndim)):
                made = softmax(np.where(seen.reshape(way), scores, -1e9), axis)
                text = f"{how.replace(' ', '_')}([{piece.name}], [{mask.name}], axis={axis})"
                yield View(piece, how, f"axis {axis}", text, made)
                if how == "softmax where":
                    late = np.where(seen.reshape(way), softmax(scores, axis), 0.0)
                    yield View(piece, "softmax kept where", f"axis {axis}", text.replace("where", "kept_where"), late)


def _weights(scores: Floats) -> dict[str, Floats]:
    found = {"weights": scores, "sigmoid": sigmoid(scores)}
    for axis, size in enumerate(scores.shape):
        if size > 1:
            found[f"softmax over axis {axis} of"] = softmax(scores, axis)
    return found


def masks(hand: Hand) -> list[Piece]:
    """Values in hand that take two values only, and indices some of which are zero: what marks padding."""
    found = []
    for piece in hand.pieces(lambda shape: 1 <= len(shape) <= 4 and math.prod(shape) <= 1 << 20):
        flat = piece.array.reshape(-1)[:4096]
        padding = piece.array.dtype.kind in "iu" and bool((flat == 0).any()) and bool((flat != 0).any())
        if padding or (flat.size > 2 and np.unique(flat[:64]).size <= 2 and np.unique(flat).size == 2):
            found.append(piece)
        if len(found) == 4:
            break
    return found
