"""Global response normalisation written by hand: x scaled by the share that its norm has in the mean of all norms."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from typing import NamedTuple, Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect

LARGEST = 1 << 20

Axes = tuple[int, ...]


class Share(NamedTuple):
    """Over which axes the norm goes, over which one the mean of the norms, and what is added to that mean."""

    norm: Axes
    mean: int
    eps: float


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one, for a value made of an input of its shape and of a scale and a shift."""
    shape = pair.expected.shape
    if len(shape) not in (3, 4) or pair.expected.size > LARGEST or not np.isfinite(pair.before):
        return
    width = [p for p in hand.pieces(lambda s: int(np.prod(s)) in (shape[-1], shape[1])) if p.rank == 2]
    given = [p for p in hand.pieces(lambda s: s == shape) if p.rank in (0, 3)]
    for piece in given[:2]:
        for scale, shift in ((a, b) for a in width[:3] for b in width[:3] if a is not b):
            found = _compared(pair, piece, scale, shift)
            if found is not None:
                yield found
                return


def _compared(pair: Pair, piece: Piece, scale: Piece, shift: Piece) -> Optional[Suspect]:
    x, gamma, beta = (np.asarray(p.array, np.float64) for p in (piece, scale, shift))
    if not (_fits(gamma, x) and _fits(beta, x)):
        return None
    wanted, found = ((np.asarray(side, np.float64) - beta - x) for side in (pair.expected, pair.actual))
    ours = _share(gamma * x, x, wanted, pair.limit)
    theirs = None if ours is None else _share(gamma * x, x, found, pair.limit)
    if ours is None or theirs is None:
        return None
    left = pair.proved(gamma * x * _made(x, theirs) + beta + x, pair.actual)
    if left is None or ours == theirs:
        return None
    codes = {"reference_code": _spelled(piece, ours), "port_code": _spelled(piece, theirs)}
    if ours[:2] == theirs[:2]:
        told = {
            name: f"{share.eps:.2g}" if share.eps else "≈ 0" for name, share in (("port", theirs), ("reference", ours))
        }
        return pair.suspect(
            "eps-differs", left, 0.9, None, port_value=told["port"], reference_value=told["reference"], **codes
        )
    facts = {"other": codes["reference_code"], "instead": codes["port_code"]}
    return pair.suspect("reduction-axis", left, 0.9, None, **facts, **codes)


def _fits(held: Floats, x: Floats) -> bool:
    return held.ndim <= x.ndim and all(n in (1, m) for n, m in zip(held.shape[::-1], x.shape[::-1]))


def _share(scaled: Floats, x: Floats, wanted: Floats, limit: float) -> Optional[Share]:
    """What the values were scaled with, read as a share."""
    for count in (1, 2):
        for axes in combinations(range(1, x.ndim), count):
            few = tuple(slice(None) if a in axes else slice(n // 2, n // 2 + 1) for a, n in enumerate(x.shape))
            if _factors(scaled[few], wanted[few], axes, 100 * limit) is None:
                continue
            factors = _factors(scaled, wanted, axes, 10 * limit)
            if factors is None:
                continue
            norm = np.sqrt(np.square(x).sum(axis=axes, keepdims=True))
            for axis in range(x.ndim):
                if norm.shape[axis] == 1:
                    continue
                eps = float(np.median(norm / factors - norm.mean(axis=axis, keepdims=True)))
                eps = 0.0 if abs(eps) < 1e-4 * float(norm.mean()) else float(f"{eps:.3g}")
                share = Share(axes, axis, eps)
                if eps >= 0.0 and distance(_made(x, share), factors) <= 10 * limit:
                    return share
    return None


def _factors(scaled: Floats, wanted: Floats, axes: Axes, limit: float) -> Optional[Floats]:
    """One number for each slice, where the wanted values are the scaled ones times it."""
    below = np.square(scaled).sum(axis=axes, keepdims=True)
    if not (below > 0).all():
        return None
    factors = (scaled * wanted).sum(axis=axes, keepdims=True) / below
    return factors if distance(factors * scaled, wanted) <= limit else None


def _made(x: Floats, share: Share) -> Floats:
    norm = np.sqrt(np.square(x).sum(axis=share.norm, keepdims=True))
    return np.asarray(norm / (norm.mean(axis=share.mean, keepdims=True) + share.eps))


def _spelled(piece: Piece, share: Share) -> str:
    norm = f"norm([{piece.name}], axis={share.norm if len(share.norm) > 1 else share.norm[0]})"
    eps = f" + {share.eps:.2g}" if share.eps else ""
    return f"{norm} / (mean({norm}, axis={share.mean}){eps})"
