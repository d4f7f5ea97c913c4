"""Scores and weights that a mask hides: which places, on which side, and whether by the softmax's scale alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.case import HUGE, Case, distance
from aligner.explain.patterns.functions import softmax
from aligner.explain.patterns.limits import LARGEST, grid
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.patterns.scales import name_of
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect

SCORES = 0.1
"""How large scores may be beside the number that hides them."""

LEAST = 4
"""Elements of a row that nobody takes for zero by chance."""

SHORTS = ("float16", "bfloat16")
ROUGH = {"float16": 2e-3, "bfloat16": 1.6e-2}
"""What computing in a short type leaves besides rounding to it once."""


def suspects(pair: Pair) -> Iterator[Suspect]:
    """At most one: of scores with hidden places, else of weights that sum to one."""
    if pair.expected.ndim < 2:
        return
    found = _scores(pair) or _weights(pair)
    if found is not None:
        yield found


def rows(pair: Pair) -> Iterator[Suspect]:
    """Whole rows that are zero in the reference only, or on one side each, where all else agrees."""
    expected, actual = pair.expected, pair.actual
    if expected.ndim < 2 or expected.shape[-1] < LEAST:
        return
    if not (np.isfinite(expected).all() and np.isfinite(actual).all()):
        return
    ours, theirs = (~side.any(axis=-1) for side in (expected, actual))
    seen = ~(ours | theirs)
    if not (ours & ~theirs).any() or not (seen.any() or (ours ^ theirs).all()):
        return
    left = _apart(actual[seen], expected[seen]) if seen.any() else 0.0
    varied = np.ptp(actual[ours & ~theirs], axis=-1) > 0
    if left > pair.limit or not varied.all():
        return
    cause = "mask-missing" if not theirs.any() else "mask-inverted" if (ours ^ theirs).all() else "mask-differs"
    told = [phrase("zero-rows", int(zero.sum()), zero.size) for zero in (ours, theirs)]
    facts: dict[str, Fact] = {"setting": "mask", "reference_value": told[0], "port_value": told[1]}
    facts.update(reference_code=told[0], port_code=told[1], other=told[0], instead=told[1])
    yield pair.suspect(cause, left, 0.85, None, **facts)


def fills(case: Case, pair: Pair) -> Iterator[Suspect]:
    """The same places are hidden by other numbers, which matters in rows that are hidden as a whole."""
    if not pair.alike or pair.expected.ndim < 2 or case.actual is None:
        return
    ours, theirs = (side <= -HUGE for side in (pair.expected, pair.actual))
    if not ours.any() or not (ours == theirs).all() or not _blind(ours):
        return
    if not (_one_number(pair.expected[ours]) and _one_number(pair.actual[ours])):
        return
    fill = [float(np.median(side[ours])) for side in (pair.expected, pair.actual)]
    if np.isclose(fill[0], fill[1], rtol=0.5):
        return
    word = "" if ours.all() else _short(pair, ~ours, case.actual.dtype)
    if word is None:
        return
    told = [f"{number:.6g}" for number in fill]
    codes = {f"{side}_code": f"masked(scores, {number})" for side, number in zip(("reference", "port"), told)}
    facts = {"setting": "fill", "reference_value": told[0], "port_value": told[1], **codes}
    facts.update(other=codes["reference_code"], instead=codes["port_code"], dtype=word or case.actual.dtype)
    overflow = fill[1] <= -LARGEST and facts["dtype"] == "float16" and fill[0] > -np.inf
    cause = "attention-fill-fp16-overflow" if overflow else "attention-mask-fill-1e4"
    left = distance(pair.actual[~ours], grid(pair.expected, word)[~ours] if word else pair.expected[~ours])
    yield pair.suspect(cause, left, 0.95, None, **facts)


def _blind(hidden: Floats) -> bool:
    """Whether some row has nothing to be seen."""
    return hidden.shape[-1] > 1 and bool(hidden.all(axis=-1).any())


def _one_number(hidden: Floats) -> bool:
    """Whether all is hidden by one number, perhaps with the score still in it."""
    return bool(np.isneginf(hidden).all() or float(np.ptp(hidden)) <= SCORES * abs(float(np.median(hidden))))


def _short(pair: Pair, seen: Floats, dtype: str) -> Optional[str]:
    """The type that what is seen was rounded to: "" for none, None where it is off otherwise."""
    wanted, found = pair.expected[seen], pair.actual[seen]
    if distance(found, wanted) <= pair.limit:
        return dtype if dtype == "float16" else ""
    return next((word for word in SHORTS if distance(found, grid(wanted, word)) <= ROUGH[word]), None)


def _scores(pair: Pair) -> Optional[Suspect]:
    ours, theirs = (side <= -HUGE for side in (pair.expected, pair.actual))
    if ours.any() != theirs.any() and _says(pair.actual if ours.any() else pair.expected):
        return _in_words(pair, ours, theirs)
    if not (ours.any() or theirs.any()) or ours.all() or (ours == theirs).all():
        return None
    seen = ~(ours | theirs)
    if not seen.any() and not (ours ^ theirs).all():
        return None
    left = _apart(pair.actual[seen], pair.expected[seen]) if seen.any() else 0.0
    return _told(pair, ours, theirs, left, "scores") if left <= pair.limit else None


def _says(mask: Floats) -> bool:
    """Whether it says by 0 and 1 what is hidden, or what is seen."""
    return bool(((mask == 0) | (mask == 1)).all()) and 0.0 < float(mask.mean()) < 1.0


def _in_words(pair: Pair, ours: Floats, theirs: Floats) -> Optional[Suspect]:
    """One side's mask is added to the scores, the other's says what to do: in the sense that is nearer."""
    added, hidden = (pair.expected, ours) if ours.any() else (pair.actual, theirs)
    says = (pair.actual if ours.any() else pair.expected) == 1
    meant = min((says, ~says), key=lambda side: int((side ^ hidden).sum()))
    if (added[~hidden] != 0).any() or (meant == hidden).all():
        return None
    first, second = (hidden, meant) if ours.any() else (meant, hidden)
    return _told(pair, first, second, 0.0, "scores")


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
        facts.update(reference_value=f"triu(diagonal={diagonals[0]})", port_value=f"triu(diagonal={diagonals[1]})")
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
