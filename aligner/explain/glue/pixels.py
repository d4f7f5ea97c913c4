"""An image brought to another range: what it is multiplied by and what is added, for each channel, on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.pair import Floats, Pair, thin
from aligner.explain.suspect import Suspect

CHANNELS = 4
"""An image has no more: grey, colours, colours with their cover."""

CLOSE = 1e-5
"""Numbers nearer than this, relatively, are one number."""

Line = tuple[Floats, Floats]
"""Factors and addends, one for each channel or one for all."""


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one, for what the parent was given and hands on as a * x + b."""
    if pair.expected.ndim not in (3, 4) or not np.isfinite(pair.before):
        return
    for piece in hand.pieces(lambda shape: shape == pair.expected.shape):
        if piece.rank != 0 or piece.array.dtype.kind not in "fu":
            continue
        for axis in (1, pair.expected.ndim - 1):
            if pair.expected.shape[axis] > CHANNELS:
                continue
            found = _compared(pair, piece, axis) or _other_colours(pair, piece, axis)
            if found is not None:
                yield found
                return


def _other_colours(pair: Pair, piece: Piece, axis: int) -> Optional[Suspect]:
    """One side has reversed the channels before they are brought to their range."""
    if pair.expected.shape[axis] < 3:
        return None
    turned = np.flip(piece.array, axis)
    for ours, theirs, names in (
        (turned, piece.array, ("flip({}, axis={})", "{}")),
        (piece.array, turned, ("{}", "flip({}, axis={})")),
    ):
        one, other = line(ours, pair.expected, axis, pair.limit), line(theirs, pair.actual, axis, pair.limit)
        if one is None or other is None:
            continue
        left = pair.proved(_applied(other, theirs, axis), pair.actual)
        if left is not None:
            name = f"[{piece.name}]"
            codes = [_spelled(found, text.format(name, axis)) for found, text in zip((one, other), names)]
            facts = {"reference_code": codes[0], "port_code": codes[1], "other": name}
            return pair.suspect("rgb-bgr", left, 0.92, None, axis=axis, **facts)
    return None


def _compared(pair: Pair, piece: Piece, axis: int) -> Optional[Suspect]:
    ours, theirs = (line(piece.array, side, axis, pair.limit) for side in (pair.expected, pair.actual))
    if ours is None or theirs is None or not (ours[1].any() or theirs[1].any()):
        return None  # a mere factor is told of as a factor
    if (ours[0] == 1.0).all() and (theirs[0] == 1.0).all():
        return None  # and what is merely added as an addend
    turned = (ours[0][::-1], ours[1][::-1])
    twice = (ours[0] * ours[0], ours[0] * ours[1] + ours[1])
    cause = "normalize-0-255-vs-0-1"
    if not _same(ours, turned) and _same(theirs, turned):
        cause = "normalize-constants-reversed"
    elif _same(theirs, twice):
        cause = "normalized-twice"
    left = pair.proved(_applied(theirs, piece.array, axis), pair.actual)
    if left is None:
        return None
    name = f"[{piece.name}]"
    codes = {"reference_code": _spelled(ours, name), "port_code": _spelled(theirs, name)}
    return pair.suspect(cause, left, 0.92, None, other=f"[{piece.name}]", axis=axis, **codes)


def line(given: Floats, made: Floats, axis: int, limit: float) -> Optional[Line]:
    """The line through each channel, if all elements are on it."""
    x, y = (np.moveaxis(side, axis, 0).reshape(side.shape[axis], -1) for side in (given, made))
    few = thin(x.shape, (0,))
    some = _fitted(np.asarray(x[few], np.float64), np.asarray(y[few], np.float64))
    if some is None or not _on(some, x[few], y[few], 10 * limit):
        return None
    line = _fitted(np.asarray(x, np.float64), np.asarray(y, np.float64))
    if line is None or not _on(line, x, y, limit):
        return None
    return (np.where(np.abs(line[0] - 1.0) < CLOSE, 1.0, line[0]), np.where(np.abs(line[1]) < CLOSE, 0.0, line[1]))


def _fitted(x: Floats, y: Floats) -> Optional[Line]:
    middle, height = x.mean(axis=1), y.mean(axis=1)
    square = np.square(x - middle[:, None]).sum(axis=1)
    if not (np.isfinite(square).all() and np.isfinite(height).all() and (square > 0).all()):
        return None
    factors = ((x - middle[:, None]) * (y - height[:, None])).sum(axis=1) / square
    return None if (np.abs(factors) < 1e-6).any() else (factors, height - factors * middle)


def _on(line: Line, x: Floats, y: Floats, limit: float) -> bool:
    made = line[0][:, None] * x + line[1][:, None]
    return float(np.linalg.norm(made - y)) <= limit * float(np.linalg.norm(y))


def _applied(line: Line, x: Floats, axis: int) -> Floats:
    shape = [-1 if a == axis else 1 for a in range(x.ndim)]
    return np.asarray(x * line[0].reshape(shape) + line[1].reshape(shape))


def _same(one: Line, other: Line) -> bool:
    return all(np.allclose(a, b, rtol=1e-4, atol=1e-4 * float(np.abs(b).max())) for a, b in zip(one, other))


def _spelled(line: Line, name: str) -> str:
    factors, addends = (listed(numbers) for numbers in line)
    product = name + ("" if factors == "1" else f" * {factors}")
    if addends.startswith("-"):
        return f"{product} - {addends[1:]}"
    return product + ("" if addends == "0" else f" + {addends}")


def listed(numbers: Floats) -> str:
    words = [f"{number:.4g}" for number in numbers]
    return words[0] if len(set(words)) == 1 else f"({', '.join(words)})"
