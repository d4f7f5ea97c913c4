"""Whether two masks say the same, in whatever words: additive, or true and false, once, or again for each query."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.held import Held
from aligner.compare.masking import FEW, mask_like
from aligner.compare.reading import HIDDEN
from aligner.dtypes import DTYPES, decode, encode
from aligner.record import Array
from aligner.replay.forms import squeezed

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.reader import Entry

    Truths = npt.NDArray[np.bool_]
    Numbers = npt.NDArray[Any]

HALF = 0.5
"""The share of a mask above which it is read the right way round."""

TWO = 2
"""Values of a mask that says what is seen and what not."""

SURE = 3
"""Axes longer than one by which it is known what is masked, though one of one stands behind them; of two it is not
known whether they hide keys or queries."""


def spread_out(wanted: Held, array: Array, dtype: str) -> bool:
    """Whether they stand for each other value by value, and one says it more often than the other.

    Which value means what is another question.
    """
    if squeezed(wanted.shape) == squeezed(array.shape):
        return False
    cores = _cores(_numbers(wanted.load()), _numbers(decode(array, dtype)))
    if cores is None:
        return False
    pairs = [np.unique(np.nan_to_num(core), return_inverse=True) for core in cores]
    sizes = [values.size for values, _ in pairs]
    both = np.unique(pairs[0][1].reshape(-1) * sizes[1] + pairs[1][1].reshape(-1)).size
    return bool(both == sizes[0] == sizes[1] <= FEW)


def say_the_same(wanted: Held, array: Array, dtype: str) -> bool:
    """Whether the port's mask is right for everybody who knows its words.

    Of two that say true and false the same words are asked for: which of them hides is not written anywhere. Where one
    is additive, what it hides is; and the other one hides no row as a whole, read the right way round, unless the
    reference's does.
    """
    one, other = _numbers(wanted.load()), _numbers(decode(array, dtype))
    if not one.size or not other.size:
        return False
    if is_additive(one) or is_additive(other):
        whole = bool((np.atleast_1d(one) <= -HIDDEN).all(axis=-1).any())
        pairs = [(first, second) for first in _hidden(one, whole) for second in _hidden(other, whole)]
    else:
        pairs = [(one, other)]
    return any((cores := _cores(*pair)) is not None and np.array_equal(*cores) for pair in pairs)


def as_mask(wanted: Held, found: Held, own: Optional[Entry]) -> Optional[float]:
    """How far a value is off in other words than the reference's, or than the port's `own`; None for one in these."""
    exact = DTYPES[found.dtype].exact
    if own is not None and DTYPES[own.dtype].exact != exact:
        return math.inf  # a mask in other words than it has now: the layer may not take it so
    if DTYPES[wanted.dtype].exact == exact:
        return None
    if own is not None and is_additive(own.load()) and not is_additive(decode(found.raw(), found.dtype)):
        return math.inf
    if mask_like(wanted) and say_the_same(wanted, found.raw(), found.dtype):  # scores may hide as well
        return 0.0
    if own is not None and wanted.dtype == "bool" and is_additive(own.load()):
        return 0.0 if hides_as_before(wanted, own.load(), decode(found.raw(), found.dtype)) else math.inf
    return None


def hides_as_before(wanted: Held, own: Array, found: Array) -> bool:
    """Whether an additive mask hides what the reference's says, read the way round in which most of `own` is right."""
    before, now = (_cores(wanted.load(), _numbers(mask) <= -HIDDEN) for mask in (own, found))
    if before is None or now is None:
        return False
    hides = np.mean(before[0] == before[1]) > HALF
    return bool(np.array_equal(now[0] if hides else ~now[0], now[1]))


def says_otherwise(wanted: Array, found: Array) -> bool:
    """Whether most of a mask of true and false is the other way round: in other words, or by mistake."""
    return wanted.shape == found.shape and bool(np.mean(wanted != found) > HALF)


def in_its_words(wanted: Array, found: Array) -> Array:
    """A mask of true and false the way round in which most of another one says the same."""
    return np.logical_not(wanted) if says_otherwise(wanted, found) else wanted


def as_added(wanted: Held, found: Held) -> Held:
    """A mask of true and false in the words of the port's own, which hides by what is added: the way round in which
    most of that says the same. As it is where it is no such mask, or the other is none.
    """
    if wanted.dtype != "bool" or DTYPES[found.dtype].exact or not is_additive(found.load()):
        return wanted
    own, told = _numbers(found.load()), wanted.load()
    values = np.unique(own)
    with suppress(ValueError):  # they cannot stand for each other
        hides = np.mean((own <= -HIDDEN) == told) > HALF
        if values.size == TWO and values[1] == 0:
            added = np.where(told if hides else ~told, values[0], values[1])
            return Held(wanted.key, wanted.order, found.dtype, encode(added, found.dtype))
    return wanted


def is_additive(mask: Array) -> bool:
    """Whether it hides by what is added to scores."""
    return bool((_numbers(mask) <= -HIDDEN).any())


def _numbers(mask: Array) -> Numbers:
    return mask


def _hidden(mask: Numbers, whole: bool) -> Sequence[Truths]:
    """Where a mask hides; both readings where each hides some whole row, or it may; none where it does not tell."""
    if (mask <= -HIDDEN).any():
        return [np.asarray(mask <= -HIDDEN)]
    if np.unique(mask).size != TWO:
        return []
    both = [np.asarray(mask == mask.min()), np.asarray(mask == mask.max())]
    if whole:
        return both
    readings = [side for side in both if not side.all(axis=-1).any()]
    return [] if len(readings) == TWO else readings or both


def _cores(one: Numbers, other: Numbers) -> Optional[tuple[Numbers, Numbers]]:
    """Both without the axes that they say the same along; None where these are not the same axes of what is masked."""
    if not one.size or not other.size:
        return None
    for first, second in ((one, other), (other, one)):
        if first.shape == (*second.shape, 1) and len(squeezed(first.shape)) >= SURE:
            one, other = one.reshape(second.shape), other.reshape(second.shape)
    (first, places), (second, theirs) = _core(one), _core(other)
    if not places or first.shape != second.shape or places[1:] != theirs[1:]:
        return None
    items = first.shape[0] == one.shape[0] == other.shape[0]
    return (first, second) if items or places[0] == theirs[0] else None


def _core(mask: Numbers) -> tuple[Numbers, list[int]]:
    """The mask without these axes, and where its axes are, counted from the end."""
    kept = [axis for axis in range(mask.ndim) if not (mask == mask.take([0], axis)).all()]
    core = mask[tuple(slice(None) if axis in kept else 0 for axis in range(mask.ndim))]
    return core, [mask.ndim - axis for axis in kept]
