"""Values of two kinds only, one before the other along an axis: a mask, and where it ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.patterns.pair import Floats, Pair, spots
from aligner.explain.phrase import phrase
from aligner.explain.suspect import Suspect
from aligner.record import Scalar


def suspects(pair: Pair) -> Iterator[Suspect]:
    """At most one: the mask is turned round, or ends one element later or earlier; else that it ends elsewhere."""
    if not pair.alike or pair.expected.ndim < 1 or pair.expected.size < 4:
        return
    kinds = _kinds(pair)
    if kinds is None:
        return
    one, other = (side == kinds[1] for side in (pair.expected, pair.actual))
    if (one == ~other).all():
        codes = {"instead": "~mask", "reference_code": "mask", "port_code": "~mask"}
        yield pair.suspect("mask-inverted", 0.0, 0.92, None, **codes)
        return
    if one.ndim > 1 and one.shape[-1] == one.shape[-2] and (one.swapaxes(-1, -2) == other).all():
        order = (*range(one.ndim - 2), one.ndim - 1, one.ndim - 2)
        told = {"axes": str(order), "shape": str(one.shape), "factors": str(one.shape), "port_shape": str(one.shape)}
        yield pair.suspect("axes-permuted", 0.0, 0.92, None, **told)
        return
    for axis in range(pair.expected.ndim - 1, -1, -1):
        if one.shape[axis] > 1 and _stepped(one, axis) and _stepped(other, axis):
            yield _told(pair, one, other, axis)
            return


def _kinds(pair: Pair) -> Optional[tuple[float, float]]:
    """The two values that both sides hold and nothing else, the lower first."""
    few = spots(pair.expected.size)
    found = np.unique(np.concatenate([side.reshape(-1)[few] for side in (pair.expected, pair.actual)]))
    if len(found) != 2 or np.isnan(found).any():
        return None
    if not all(bool(np.isin(side, found).all()) for side in (pair.expected, pair.actual)):
        return None
    return found[0], found[1]


def _stepped(side: Floats, axis: int) -> bool:
    """Whether all rows hold the one value and then the other, and all in the same way."""
    steps = np.diff(side.astype(np.int8), axis=axis)
    changes = (steps != 0).sum(axis=axis)
    one_way = bool((steps >= 0).all()) or bool((steps <= 0).all())
    return one_way and bool((changes <= 1).all() and changes.any())


def _diagonal(off: Floats) -> Optional[int]:
    """Which diagonal of the last two axes differs, and nothing else: 0 is the one in the middle."""
    size = off.shape[-1]
    if off.shape[-2] != size:
        return None
    return next((at for at in (0, 1, -1) if (off == np.eye(size, k=at, dtype=bool)).all()), None)


def _told(pair: Pair, one: Floats, other: Floats, axis: int) -> Suspect:
    counts = [side.sum(axis=axis) for side in (one, other)]
    off, edge = counts[0] != counts[1], (counts[0] == one.shape[axis]) | (counts[0] == 0)
    apart = np.unique((counts[1] - counts[0])[off])
    row = int(np.flatnonzero(off.reshape(-1))[0])
    lengths = {"length": int(counts[0].reshape(-1)[row]), "port_length": int(counts[1].reshape(-1)[row])}
    facts: dict[str, Scalar] = {**lengths, "axis": axis, "rows": int(off.sum()), "all": int(off.size)}
    if len(apart) != 1 or abs(apart[0]) != 1 or (~off & ~edge).any():
        return pair.suspect("mask-length", None, 0.6, None, **facts)  # that it is so needs no proof, and tells no cause
    diagonal = _diagonal(one != other) if one.ndim > 1 else None
    if diagonal is not None:
        sides = (phrase("with-diagonal", diagonal), phrase("without-diagonal", diagonal))
        ours, theirs = sides if counts[0].sum() > counts[1].sum() else sides[::-1]
        values = {"reference_value": ours, "port_value": theirs, "reference_code": ours, "port_code": theirs}
        return pair.suspect("causal-mask-diagonal", 0.0, 0.92, None, **values)
    return pair.suspect("mask-off-by-one", 0.0, 0.92, None, **facts)
