"""A value divided by a length of its own: by which one, on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.functions import Function
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect

NEAR = 4
"""Values in hand that are looked at."""

LARGEST = 1 << 22

LENGTHS: Mapping[str, tuple[Function, Function]] = {
    "sqrt(sum({} ** 2{}))": (np.square, np.sqrt),
    "sum(abs({}){})": (np.abs, np.abs),
    "sum({} ** 2{})": (np.square, np.abs),
    "sum({}{})": (np.asarray, np.asarray),
}
"""Each as code: what is summed up, and what is taken of the sum. The mean stands beside the sum, the largest apart."""

SQUARE, ROOT = "sum({} ** 2{})", "sqrt(sum({} ** 2{}))"

Length = tuple[str, bool, tuple[int, ...]]
"""Its code, whether it is of a mean, and its axes."""


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one."""
    shape = pair.expected.shape
    if len(shape) < 2 or pair.expected.size > LARGEST or not np.isfinite(pair.before):
        return
    alike = [p for p in hand.pieces(lambda s: s == shape) if p.array.dtype.kind == "f" and p.rank in (0, 1, 3)]
    for piece in alike[:NEAR]:
        ours = _divided(pair, piece, pair.expected)
        theirs = ours and _divided(pair, piece, pair.actual)
        if ours and theirs and ours[:2] != theirs[:2]:
            made = piece.array / _length(np.asarray(piece.array, np.float64), theirs)
            left = pair.proved(made, pair.actual)
            if left is not None:
                yield _told(pair, piece, ours, theirs, left)
                return


def _divided(pair: Pair, piece: Piece, whole: Floats) -> Optional[Length]:
    """The length that the value was divided by to give this."""
    x, made = np.asarray(piece.array, np.float64), np.asarray(whole, np.float64)
    for count in (1, 2, 3):
        for axes in combinations(range(x.ndim), count):
            few = tuple(slice(None) if a in axes else slice(n // 2, n // 2 + 1) for a, n in enumerate(x.shape))
            if _divisor(x[few], made[few], axes, 10 * pair.limit) is None:
                continue
            divisor = _divisor(x, made, axes, pair.limit)
            if divisor is None:
                continue
            for code in (*LENGTHS, "max(abs({}){})"):
                for mean in (False, True) if code in LENGTHS else (False,):
                    if np.allclose(_length(x, (code, mean, axes)), divisor, rtol=10 * pair.limit, atol=0.0):
                        return code, mean, axes
    return None


def _divisor(x: Floats, made: Floats, axes: tuple[int, ...], limit: float) -> Optional[Floats]:
    """One number for each slice, where that is what it was divided by; None where it was not, or where all is zero."""
    square = np.square(made).sum(axis=axes, keepdims=True)
    if np.prod([x.shape[a] for a in axes]) < 2 or not (square > 0).all():
        return None
    divisor = (x * made).sum(axis=axes, keepdims=True) / square
    return divisor if distance(divisor * made, x) <= limit else None


def _length(x: Floats, length: Length) -> Floats:
    code, mean, axes = length
    if code not in LENGTHS:
        return np.asarray(np.abs(x).max(axis=axes, keepdims=True))
    inner, outer = LENGTHS[code]
    of = inner(x)
    return np.asarray(outer(of.mean(axis=axes, keepdims=True) if mean else of.sum(axis=axes, keepdims=True)))


def _spelled(piece: Piece, length: Length) -> str:
    code, mean, axes = length
    text = code.format(f"[{piece.name}]", f", axis={axes[0] if len(axes) == 1 else axes}")
    return text.replace("sum(", "mean(") if mean else text


def _told(pair: Pair, piece: Piece, ours: Length, theirs: Length, left: float) -> Suspect:
    one, other = _spelled(piece, ours), _spelled(piece, theirs)
    cause = "root-missing" if (ours[0], theirs[0]) == (ROOT, SQUARE) and ours[1] == theirs[1] else "norm-order"
    codes = {"reference_code": f"[{piece.name}] / {one}", "port_code": f"[{piece.name}] / {other}"}
    return pair.suspect(cause, left, 0.92, None, other=one, instead=other, **codes)
