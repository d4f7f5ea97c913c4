"""The slices of an axis in another order: reversed, rolled, blocks exchanged, interleaved, or any other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import numpy as np

from aligner.explain.patterns.pair import Floats, Pair, at, spots
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect

MANY = 2048
"""An axis longer than this is matched by sorting, a shorter one by all distances."""


def suspects(pair: Pair) -> Iterator[Suspect]:
    """For the first axis whose slices stand in another order."""
    if not pair.alike or not np.isfinite(pair.before):
        return
    for axis, size in enumerate(pair.expected.shape):
        if size < 2 or pair.expected.size // size < 2:
            continue
        order = _matched(pair, axis)
        if order is None:
            continue
        left = pair.proved(np.take(pair.expected, order, axis), pair.actual)
        if left is not None:
            weight = 0.8
            for cause, told in described(order):
                yield pair.suspect(cause, left, weight, axis=axis, size=size, order=told)
                weight -= 0.1
            return


def _matched(pair: Pair, axis: int) -> Optional[Floats]:
    """For each slice of the port the slice of the reference that it equals, judged by a sample of each slice."""
    wanted, found = _signatures(pair.expected, axis), _signatures(pair.actual, axis)
    order = _nearest(wanted, found) if len(wanted) <= MANY else _sorted(wanted, found)
    if (order == np.arange(order.size)).all() or not pair.near(wanted[order], found):
        return None
    return _each_once(wanted, order)


def _each_once(wanted: Floats, order: Floats) -> Optional[Floats]:
    """The order with each slice in one place; of slices that are equal any may stand in each of theirs.

    None where some slice stands more often than in the reference: that is another value, and no other order.
    """
    if len(np.unique(order)) == order.size:
        return order
    _, kind = np.unique(wanted, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    if (np.sort(kind[order]) != np.sort(kind)).any() or len(np.unique(kind)) < 2:
        return None
    settled = np.arange(order.size)
    moved = np.flatnonzero(kind[order] != kind)
    spare = sorted(moved, key=lambda slot: (kind[slot], slot))
    for slot, source in zip(sorted(moved, key=lambda slot: (kind[order[slot]], slot)), spare):
        settled[slot] = source
    return settled


def _signatures(array: Floats, axis: int) -> Floats:
    moved = np.moveaxis(array, axis, 0)
    rest = moved.shape[1:]
    places = np.unravel_index(spots(int(np.prod(rest)), 64), rest)
    where: Any = (slice(None), *places)
    return np.asarray(moved[where], np.float64)


def _nearest(wanted: Floats, found: Floats) -> Floats:
    apart = np.square(wanted).sum(1)[None, :] - 2.0 * found @ wanted.T
    return np.asarray(apart.argmin(axis=1))


def _sorted(wanted: Floats, found: Floats) -> Floats:
    mix = np.random.default_rng(0).standard_normal(wanted.shape[1])
    order = np.empty(len(wanted), np.int64)
    order[np.argsort(found @ mix, kind="stable")] = np.argsort(wanted @ mix, kind="stable")
    return order


def described(order: Floats) -> list[tuple[str, Fact]]:
    """What such an order is called, with the order in words; the likelier name first where it has two."""
    size = order.size
    if size == 2:
        return [("concat-order", "1, 0"), ("axis-flipped", phrase("reversed"))]
    if (order == np.arange(size)[::-1]).all():
        return [("axis-flipped", phrase("reversed"))]
    step = int(order[0])
    if (order == (np.arange(size) + step) % size).all():
        names: list[tuple[str, Fact]] = [("concat-order", f"{step}-{size - 1}, 0-{step - 1}")]
        shift = -step if step <= size // 2 else size - step
        if 2 * step != size:
            names.append(("axis-rolled", f"{shift:+d}"))
        return names if 4 * abs(shift) > size else names[::-1]
    starts = [0, *(np.flatnonzero(np.diff(order) != 1) + 1).tolist()]
    if len(starts) <= 8 and len(starts) * 2 <= size:
        ends = [*starts[1:], size]
        return [("concat-order", ", ".join(f"{int(order[a])}-{int(order[b - 1])}" for a, b in zip(starts, ends)))]
    for groups in range(2, size // 2 + 1):
        if size % groups == 0 and (order == np.arange(size).reshape(groups, -1).T.reshape(-1)).all():
            return [("axis-interleaved", f"({groups}, {size // groups}) -> ({size // groups}, {groups})")]
    told = ", ".join(str(int(index)) for index in order[:12])
    return [("axis-order", told + (" ..." if size > 12 else ""))]


def shifted(pair: Pair) -> Iterator[Suspect]:
    """The whole picture moved by some elements along one or two axes, with other values coming in at the border."""
    if not pair.alike or not np.isfinite(pair.before):
        return
    wanted, found = pair.expected, pair.actual
    lead = 0
    while wanted.ndim > 1 and (wanted.size > 1 << 16 or wanted.shape[0] == 1):
        wanted, found, lead = wanted[0], found[0], lead + 1
    if wanted.size > 1 << 17 or wanted.size < 8:
        return
    steps = _peak(np.asarray(wanted, np.float64), np.asarray(found, np.float64))
    moved = [(axis + lead, step) for axis, step in enumerate(steps) if step]
    if not 1 <= len(moved) <= 2:
        return
    left, cyclic = _moved(pair, moved)
    if left is not None:
        along = tuple(phrase("along-axis", f"{step:+d}", axis) for axis, step in moved)
        words = along[0] if len(along) == 1 else along
        yield pair.suspect("axis-rolled" if cyclic else "picture-shifted", left, 0.75, order=words, axis=moved[0][0])


def _peak(wanted: Floats, found: Floats) -> list[int]:
    """The move that brings the one onto the other best, by their correlation at all moves."""
    axes = tuple(range(wanted.ndim))
    seen = np.fft.irfftn(
        np.conj(np.fft.rfftn(wanted - wanted.mean())) * np.fft.rfftn(found - found.mean()), wanted.shape, axes
    )
    best = np.unravel_index(int(seen.argmax()), wanted.shape)
    return [int(b) if b <= n // 2 else int(b) - n for b, n in zip(best, wanted.shape)]


def _moved(pair: Pair, moved: list[tuple[int, int]]) -> tuple[Optional[float], bool]:
    axes, steps = tuple(a for a, _ in moved), tuple(s for _, s in moved)
    sample = pair.spots
    rolled = at(np.roll(pair.expected, steps, axes), sample) if pair.expected.size <= 1 << 22 else None
    if rolled is not None and pair.near(rolled, at(pair.actual, sample)):
        left = pair.proved(np.roll(pair.expected, steps, axes), pair.actual)
        if left is not None:
            return left, True
    to: list[slice] = [slice(None)] * pair.expected.ndim
    source: list[slice] = [slice(None)] * pair.expected.ndim
    for axis, step in moved:
        if 2 * abs(step) > pair.expected.shape[axis]:
            return None, False
        to[axis] = slice(step, None) if step > 0 else slice(None, step)
        source[axis] = slice(None, -step) if step > 0 else slice(-step, None)
    return pair.proved(pair.actual[tuple(to)], pair.expected[tuple(source)]), False
