"""Scores and weights that a mask hides: which places, on which side, and whether by the softmax's scale alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.case import HUGE
from aligner.explain.patterns.functions import softmax
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.patterns.scales import name_of
from aligner.explain.suspect import Suspect


def suspects(pair: Pair) -> Iterator[Suspect]:
    """At most one: of scores with hidden places, else of weights that sum to one."""
    if pair.expected.ndim < 2:
        return
    found = _scores(pair) or _weights(pair)
    if found is not None:
        yield found


def _scores(pair: Pair) -> Optional[Suspect]:
    ours, theirs = (side <= -HUGE for side in (pair.expected, pair.actual))
    if not (ours.any() or theirs.any()) or ours.all() or (ours == theirs).all():
        return None
    seen = ~(ours | theirs)
    if not seen.any() and not (ours ^ theirs).all():
        return None
    left = _apart(pair.actual[seen], pair.expected[seen]) if seen.any() else 0.0
    return _told(pair, ours, theirs, left, "scores") if left <= pair.limit else None


def _apart(found: Floats, wanted: Floats) -> float:
    size = float(np.linalg.norm(wanted.astype(np.float64)))
    return float(np.linalg.norm((found - wanted).astype(np.float64))) / size if size else 0.0


def _told(pair: Pair, ours: Floats, theirs: Floats, left: float, what: str) -> Suspect:
    """The cause, from the places that each side hides."""
    shares = [f"{100 * hidden.mean():.3g} %" for hidden in (ours, theirs)]
    facts = {"setting": "mask", "reference_value": shares[0], "port_value": shares[1]}
    codes = [f"masked({what}, {share})" for share in shares]
    facts.update(reference_code=codes[0], port_code=codes[1], other=codes[0], instead=codes[1])
    diagonals = _diagonal(ours), _diagonal(theirs)
    if not theirs.any():
        cause = "causal-mask-missing" if diagonals[0] is not None else "mask-missing"
    elif not ours.any():
        cause = "mask-extra"
    elif (ours ^ theirs).all():
        cause = "mask-inverted"
    elif None not in diagonals:
        cause = "causal-mask-diagonal"
        facts.update(reference_value=f"triu {diagonals[0]}", port_value=f"triu {diagonals[1]}")
    else:
        cause = "mask-differs"
    return pair.suspect(cause, left, 0.85, None, **facts)


def _diagonal(hidden: Floats) -> Optional[int]:
    """The diagonal from which on a mask hides what is above."""
    rows, columns = hidden.shape[-2:]
    for diagonal in (1, 0, 2, -1):
        if rows == columns > 2 and (hidden == np.triu(np.ones((rows, columns), bool), diagonal)).all():
            return diagonal
    return None


def _weights(pair: Pair) -> Optional[Suspect]:
    axis = _axis(pair.expected)
    if axis is None:
        return None
    other = _axis(pair.actual)
    with np.errstate(all="ignore"):
        ours, theirs = pair.expected == 0, pair.actual == 0
        if other == axis and (ours != theirs).any():
            return _hidden(pair, ours, theirs, axis)
        if other == axis:
            return _temperature(pair, axis)
    return None


def _axis(value: Floats) -> Optional[int]:
    """The axis along which a value sums to one, the last first."""
    if not np.isfinite(value).all() or float(value.min()) < 0.0:
        return None
    for axis in (-1, -2, *range(value.ndim - 2)):
        if value.shape[axis] > 1 and np.abs(value.sum(axis=axis, dtype=np.float64) - 1.0).max() < 1e-3:
            return int(axis % value.ndim)
    return None


def _hidden(pair: Pair, ours: Floats, theirs: Floats, axis: int) -> Optional[Suspect]:
    """Renormalised over what the stricter side sees, the two sides agree."""
    for wanted, found, hidden in ((pair.expected, pair.actual, ours), (pair.actual, pair.expected, theirs)):
        if hidden.any():
            kept = np.where(hidden, 0.0, found)
            whole = kept.sum(axis=axis, keepdims=True)
            left = pair.proved(kept / np.where(whole == 0, 1.0, whole), wanted)
            if left is not None:
                return _told(pair, ours, theirs, left, "weights")
    return None


def _temperature(pair: Pair, axis: int) -> Optional[Suspect]:
    """Logarithms that are a multiple of each other, up to a number for each row: scores on another scale."""
    seen = (pair.expected > 1e-30) & (pair.actual > 1e-30)
    if not seen.all():
        return None
    ours, theirs = (np.log(np.asarray(side, np.float64)) for side in (pair.expected, pair.actual))
    ours, theirs = (x - x.mean(axis=axis, keepdims=True) for x in (ours, theirs))
    weight = float(np.square(ours).sum())
    ratio = float((ours * theirs).sum()) / weight if weight else 0.0
    if abs(ratio) < 1e-6 or abs(ratio - 1.0) < 1e-4:
        return None
    left = pair.proved(softmax(ratio * ours, axis), pair.actual)
    if left is None:
        return None
    sizes = (*pair.expected.shape, *range(2, 257))
    named = name_of(ratio, pair.expected.shape) or name_of(ratio, sizes)
    told = f"{ratio:.6g}" + (f" = {named}" if named else "")
    cause = "attention-scale-missing" if pair.expected.ndim == 4 else "softmax-scale"
    return pair.suspect(cause, left, 0.85, None, ratio=told, scale=told)
