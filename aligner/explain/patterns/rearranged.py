"""The same values in other places: axes permuted, reshaped where a transpose was needed, or in an order unknown.

A place in the port's value is followed back through "reshape, permute axes, reshape" for every way of splitting the
reference's axes that nets use (heads, groups, windows, pixel shuffles). That is arithmetic on positions: a few dozen
positions are followed for all permutations at once, and only what they do not rule out is looked at as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from itertools import combinations, permutations
from typing import Any, Optional

import numpy as np

from aligner.explain.inquiry import spend
from aligner.explain.patterns.pair import Floats, Pair, at
from aligner.explain.suspect import Suspect

AXES = 6
"""The most axes after splitting; 720 permutations."""

FOLLOWED = 24
"""Positions that are followed."""

SORTING = 100
"""What sorting both sides costs, in elements."""


def suspects(pair: Pair) -> Iterator[Suspect]:
    """One suspect: the order where it is known, else that the values are the same."""
    if pair.expected.size != pair.actual.size or pair.expected.size < 4 or not _same_sums(pair):
        return
    found = _stretched(pair) or _order(pair)
    if found is not None:
        yield found
        return
    spend(SORTING * pair.expected.size)
    left = pair.proved(np.sort(pair.actual, axis=None), np.sort(pair.expected, axis=None))
    if left is not None and not (pair.alike and pair.near(*pair.sample)):
        yield pair.suspect("values-permuted", None, 0.4, apart=f"{left:.1e}", count=pair.expected.size)


def _stretched(pair: Pair) -> Optional[Suspect]:
    """Only axes of one stand elsewhere: a mask for the rows where the reference has one for the columns."""
    shape, other = pair.expected.shape, pair.actual.shape
    long, there = [a for a, n in enumerate(shape) if n > 1], [a for a, n in enumerate(other) if n > 1]
    if len(shape) != len(other) or shape == other or [shape[a] for a in long] != [other[a] for a in there]:
        return None
    left = pair.proved(pair.expected.reshape(other), pair.actual)
    if left is None:
        return None
    spare = iter(a for a, n in enumerate(shape) if n == 1)
    order = str(tuple(long[there.index(a)] if a in there else next(spare) for a in range(len(other))))
    facts = {"shape": str(tuple(shape)), "factors": str(tuple(shape)), "axes": order, "port_shape": str(tuple(other))}
    return pair.suspect("axes-permuted", left, 0.85, None, **facts)


def _same_sums(pair: Pair) -> bool:
    """Whether a few sums over all elements agree, as they must for the same values in other places."""
    if not (np.isfinite(pair.expected).all() and np.isfinite(pair.actual).all()):
        return False
    spend(8 * pair.expected.size)
    for power in (1, 2):
        one = np.power(np.abs(pair.expected), power).sum(dtype=np.float64)
        other = np.power(np.abs(pair.actual), power).sum(dtype=np.float64)
        if abs(one - other) > 4.0 * pair.limit * max(one, other):
            return False
    return True


def _order(pair: Pair) -> Optional[Suspect]:
    shape = pair.expected.shape
    places = _telling(pair)
    if places.size < 4:
        return None
    values = at(pair.actual, places)
    scale = float(np.sqrt(np.mean(np.square(values)))) * max(pair.limit, 1e-6) * 4.0
    for factors in _splits(shape):
        orders, sources = _followed(factors, places)
        if not len(orders):
            continue
        met = np.abs(at(pair.expected, sources.reshape(-1)).reshape(sources.shape) - values) <= scale
        for index in np.flatnonzero(met.all(axis=1))[:4]:
            order = tuple(int(axis) for axis in orders[index])
            spend(4 * pair.expected.size)
            moved = pair.expected.reshape(factors).transpose(order).reshape(pair.actual.shape)
            left = pair.proved(moved, pair.actual)
            if left is not None:
                return _told(pair, factors, order, left)
    return None


def _telling(pair: Pair) -> Floats:
    """Places whose values tell something: not those of a value that stands everywhere, such as zero."""
    values = at(pair.actual, pair.spots)
    _, first, count = np.unique(values, return_index=True, return_counts=True)
    rare = first[count <= max(1, pair.spots.size // 256)]
    rare = rare[np.abs(values[rare]) > 0]
    chosen = np.random.default_rng(1).permutation(rare)[:FOLLOWED]
    return np.asarray(pair.spots[chosen])


def _splits(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """The shape's axes as they are, then one of them split in two, then as pixel shuffles and windows do."""
    base = tuple(n for n in shape if n > 1)
    if len(base) <= AXES:
        yield base
    if len(base) <= 4:  # read off in the order of other axes
        yield from sorted(set(permutations(base)) - {base})
    for axis, size in enumerate(base):
        for part in _divisors(size)[:24]:
            if len(base) < AXES:
                yield (*base[:axis], part, size // part, *base[axis + 1 :])
    for axis, size in enumerate(base):
        for part in range(2, 5):
            if size % (part * part) == 0 and size > part * part and len(base) + 2 <= AXES:
                for inner in ((size // part**2, part, part), (part, part, size // part**2)):
                    yield (*base[:axis], *inner, *base[axis + 1 :])
    if len(base) + 2 > AXES:
        return
    for a, b in combinations(range(len(base)), 2):
        for part in range(2, 9):
            if base[a] % part == 0 and base[b] % part == 0:
                yield tuple(
                    n
                    for axis, size in enumerate(base)
                    for n in ((size // part, part) if axis in (a, b) else (size,))
                    if n > 1
                )


def _divisors(size: int) -> list[int]:
    """Divisors other than 1 and itself, the small and the large in turn."""
    found = [d for d in range(2, size) if size % d == 0] if size <= 1 << 16 else []
    return [d for two in zip(found, reversed(found)) for d in two][: len(found)] if found else []


@cache
def _permutations(count: int) -> Floats:
    return np.array(list(permutations(range(count)))[1:], np.int64).reshape(-1, count)


def _followed(factors: Sequence[int], places: Floats) -> tuple[Floats, Floats]:
    """All orders of the axes but the first, and for each where the values at `places` came from."""
    orders = _permutations(len(factors))
    if not len(orders):
        return orders, orders
    sizes = np.array(factors, np.int64)
    strides = np.ones_like(sizes)
    strides[:-1] = np.cumprod(sizes[::-1])[::-1][1:]
    turned = sizes[orders]
    steps = np.ones_like(turned)
    steps[:, :-1] = np.cumprod(turned[:, ::-1], axis=1)[:, ::-1][:, 1:]
    digits = places[None, :, None] // steps[:, None, :] % turned[:, None, :]
    return orders, np.asarray((digits * strides[orders][:, None, :]).sum(axis=2))


def _told(pair: Pair, factors: tuple[int, ...], order: tuple[int, ...], left: float) -> Suspect:
    facts: dict[str, Any] = {
        "shape": str(tuple(pair.expected.shape)),
        "factors": str(factors),
        "axes": str(order),
        "port_shape": str(tuple(pair.actual.shape)),
    }
    plain = tuple(n for n in pair.expected.shape if n > 1) == factors
    turned = tuple(factors[axis] for axis in order)
    if plain and turned == tuple(n for n in pair.actual.shape if n > 1):
        axes = [a for a, n in enumerate(pair.expected.shape) if n > 1]
        whole = [axes[i] for i in order]
        return pair.suspect("axes-permuted", left, 0.85, **{**facts, "axes": str(tuple(whole))})
    return pair.suspect("reshape-order", left, 0.85, **facts)
