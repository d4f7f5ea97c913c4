"""In which forms two nets may hand over the same argument, and which differences are no matter of form."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.held import Held
from aligner.compare.masking import FEW, LOOKED_AT
from aligner.compare.reading import HIDDEN
from aligner.compare.spread import common_shape
from aligner.dtypes import DTYPES, decode
from aligner.record import Array

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.reader import Entry

    Numbers = npt.NDArray[Any]

Axes = tuple[int, ...]

OFTEN = 4
"""How often each index must stand there on average to tell that it is always the same other one."""

ABSORBS = 1e8
"""Of a score that is added to a number this far below zero nothing is left in float32."""

UNEVEN = 0.05
"""Scores that differ by more than this share their weights otherwise; numbers near -1e4 are rounded to 1e-3."""

AXES = 5
"""More axes than this are not put in all orders."""


def other_form(wanted: Held, array: Array, dtype: str) -> bool:
    """Whether the values cannot be set against each other one by one, or mean something by being true or false."""
    one, other = DTYPES[wanted.dtype], DTYPES[dtype]
    axes = array.ndim == len(wanted.shape) and array.shape != wanted.shape
    return one.exact or other.exact or axes or squeezed(wanted.shape) != squeezed(array.shape)


def laid_out(wanted: Held, array: Array, dtype: str, limit: float) -> Optional[Axes]:
    """The order of axes in which the reference's value is the same numbers as the port's, which are not as they are.
    The shape is another one, or axes that are as long as each other stand in each other's places.

    A port may hand (N * L, C) to a BatchNorm that the reference hands (N, C, L), as MindSpore's takes no other.
    """
    if array.size != math.prod(wanted.shape) or array.size == 0 or not 2 <= len(wanted.shape) <= AXES:
        return None
    value, found = wanted.load(), decode(array, dtype).reshape(-1)
    places = np.arange(0, found.size, max(1, found.size // LOOKED_AT))
    few = found[places].astype(np.float64)
    if not np.isfinite(few).all():
        return None
    for order in permutations(range(value.ndim)):
        turned = value.transpose(order)
        if array.shape == value.shape and turned.shape != value.shape:
            continue
        if not _near(turned[np.unravel_index(places, turned.shape)], few, 4.0 * limit):
            continue
        whole = turned.reshape(-1).astype(np.float64)
        if np.isfinite(whole).all() and np.isfinite(found).all() and _near(whole, found, limit):
            return order
    return None


def own_axes(wanted: Held, plain: Optional[Entry], found: Held, limit: float) -> Optional[Axes]:
    """The order of the port's own axes in which edits make it the reference's value. As the code stands, `plain`, its
    numbers are others: that these were in that order was not to be seen."""
    if plain is None or plain.shape != found.shape or sorted(found.shape) != sorted(wanted.shape):
        return None
    before, after = (laid_out(wanted, one.raw(), one.dtype, limit) for one in (plain, found))
    return after if before is None else None


def laid(wanted: Held, order: Axes, shape: tuple[int, ...]) -> Held:
    """The reference's value with its axes in this order, and then in this shape; where it has fewer axes than that,
    these are taken apart first.
    """
    raw = wanted.raw()
    if raw.ndim != len(order) == len(shape):
        raw = raw.reshape([shape[order.index(axis)] for axis in range(len(order))])
    raw = raw.transpose(order).reshape(shape)
    return Held(wanted.key, wanted.order, wanted.dtype, np.ascontiguousarray(raw))


def repeated(wanted: Held, found: Held) -> Optional[Held]:
    """The reference's value as often as the port has it, where one of the two has the same more often; else None."""
    shape = None if squeezed(wanted.shape) == squeezed(found.shape) else common_shape(wanted, found)
    if shape is None:
        return None
    once = (slice(1) if size == 1 else slice(None) for size in (1,) * (len(shape) - len(found.shape)) + found.shape)
    raw = np.broadcast_to(wanted.raw(), shape)[tuple(once)].reshape(found.shape)
    return Held(wanted.key, wanted.order, wanted.dtype, np.ascontiguousarray(raw))


def once(wanted: Held, found: Held) -> Held:
    """The reference's value in the port's shape, where it has the same numbers again and again and the port has them
    once: positions for each item of a batch. Else as it is."""
    put = repeated(wanted, found) if math.prod(found.shape) < math.prod(wanted.shape) else None
    same = put is not None and np.array_equal(np.broadcast_to(put.raw(), wanted.shape), wanted.raw())
    return put if put is not None and same else wanted


def other_orders(wanted: tuple[int, ...], order: Axes, shape: tuple[int, ...]) -> list[Axes]:
    """The other orders in which the axes of a value give the same shape: height and width may be exchanged, or a value
    may only have been reshaped."""
    orders = permutations(range(len(wanted)))
    return [other for other in orders if other != order and tuple(wanted[axis] for axis in other) == shape]


def takes_together(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether the second shape is the first one with some neighbouring axes as one, or with none."""
    left = list(one)
    for size in other:
        taken = 1
        while left and taken < size:
            taken *= left.pop(0)
        if taken != size:
            return False
    return all(size == 1 for size in left)


def joined(wanted: tuple[int, ...], order: Axes, shape: tuple[int, ...]) -> bool:
    """Whether only axes before the last are taken together or apart: to a layer that is the same."""
    return order == tuple(range(len(wanted))) and wanted[-1:] == shape[-1:]


def _near(wanted: Array, found: Array, limit: float) -> bool:
    apart = np.subtract(found, wanted, dtype=np.float64)
    return bool(np.linalg.norm(apart) <= limit * np.linalg.norm(np.asarray(wanted, np.float64)))


def tells_other_things(wanted: Held, array: Array, dtype: str) -> bool:
    """Whether two masks, or two rows of numbers, cannot mean the same in any words.

    True for False, or -inf for True, says the same wherever the one stands for the other. A mask that is wrong at some
    places does not, nor do indices that are other ones; those that are always so much more may.
    """
    if squeezed(wanted.shape) != squeezed(array.shape) or wanted.load().size == 0:
        return False
    one, other = np.nan_to_num(wanted.load().reshape(-1)), np.nan_to_num(decode(array, dtype).reshape(-1))
    first, ours = np.unique(one, return_inverse=True)
    second, theirs = np.unique(other, return_inverse=True)
    pairs = np.unique(ours.reshape(-1) * second.size + theirs.reshape(-1)).size
    if max(first.size, second.size) > FEW:
        counted = pairs == first.size and second.size > FEW and one.size >= OFTEN * first.size
        return DTYPES[wanted.dtype].exact and DTYPES[dtype].exact and not counted
    return not pairs == first.size == second.size


def in_other_words(wanted: Held, array: Array, dtype: str) -> bool:
    """Whether one side says by numbers, or by false, what the other says by true, and may mean the same by it."""
    apart = DTYPES[wanted.dtype].exact != DTYPES[dtype].exact and "bool" in (wanted.dtype, dtype)
    return (apart or wanted.dtype == dtype == "bool") and not tells_other_things(wanted, array, dtype)


def are_indices(wanted: Held, array: Array, dtype: str) -> bool:
    """Whether both are whole numbers, more than a mask has: they may count from elsewhere."""
    whole = DTYPES[wanted.dtype].exact and DTYPES[dtype].exact and "bool" not in (wanted.dtype, dtype)
    return whole and np.unique(wanted.load()).size > FEW


def sees_nothing(wanted: Held, array: Array, dtype: str) -> bool:
    """Whether some row is hidden as a whole in both, and a softmax would not make the same of the two.

    Of -inf alone it makes NaN, of -1e9 alone shares that are equal, of -1e4 and scores what it makes of the scores.
    """
    if DTYPES[wanted.dtype].exact or DTYPES[dtype].exact or wanted.shape != array.shape or not array.size:
        return False
    one, other = (np.asarray(side, np.float64) for side in (wanted.load(), decode(array, dtype)))
    hidden = one <= -HIDDEN
    if one.shape[-1:] in ((), (1,)) or not hidden.any() or not np.array_equal(hidden, other <= -HIDDEN):
        return False
    dead = np.flatnonzero(hidden.all(axis=-1).reshape(-1))[:LOOKED_AT]
    return bool(dead.size) and _uneven(*(side.reshape(-1, side.shape[-1])[dead] for side in (one, other)))


def _uneven(one: Numbers, other: Numbers) -> bool:
    """Whether rows that hide all differ in what they leave of the scores."""
    if not np.array_equal(np.isinf(one), np.isinf(other)):
        return True
    deep = one <= -ABSORBS
    if not np.array_equal(deep, other <= -ABSORBS):
        return True
    with np.errstate(invalid="ignore"):  # rows of -inf
        first, second = (np.where(deep, 0.0, row - row.max(axis=1, keepdims=True)) for row in (one, other))
    return bool(np.abs(first - second).max() > UNEVEN)


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape without axes of size one."""
    return tuple(size for size in shape if size != 1)
