"""Elements picked by indices, and elements put where indices say: how, on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect

NEAR = 4
"""Values and indices in hand that are tried with each other."""

LARGEST, PUT = 1 << 22, 1 << 20
"""Elements that are picked, and that are put one by one, at most."""

Made = tuple[str, str, Floats]
"""How it was done, as code, and what came of it."""


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one, for values and indices that both were in hand."""
    if max(pair.expected.size, pair.actual.size) > LARGEST:
        return
    held = [p for p in hand.pieces(lambda s: 1 <= len(s) <= 4) if p.array.size <= LARGEST]
    values = [p for p in held if p.array.dtype.kind == "f" and p.array.ndim and p.rank in (0, 1, 3)][:NEAR]
    indices = [p for p in held if p.array.dtype.kind in "iu" and p.array.size > 1 and int(p.array.min()) >= 0][:NEAR]
    for piece, index in product(values, indices):
        found = _gathered(pair, piece, index) or (_scattered(pair, piece, index) if pair.alike else None)
        if found is not None:
            yield found
            return


def _gathered(pair: Pair, piece: Piece, index: Piece) -> Optional[Suspect]:
    """Both sides as elements that the indices pick."""
    shapes = {_long(pair.expected.shape), _long(pair.actual.shape)}
    ways = [way for way in _picks(piece, index, shapes) if way[2].size <= LARGEST]
    ours = next((way for way in ways if _is(way[2], pair.expected, pair.limit)), None)
    theirs = ours and next((way for way in ways if _is(way[2], pair.actual, pair.limit)), None)
    if ours is None or theirs is None or theirs[1] == ours[1]:
        return None
    left = distance(theirs[2].reshape(pair.actual.shape), pair.actual)
    cause = "gather-semantics" if theirs[0] != ours[0] else "gather-axis"
    return _told(pair, cause, left, ours[1], theirs[1])


def _picks(piece: Piece, index: Piece, wanted: set[tuple[int, ...]]) -> Iterator[Made]:
    """What has one of the wanted shapes."""
    x, at = piece.array, index.array.astype(np.int64)
    names = f"[{piece.name}], {{}}[{index.name}]"
    for axis, size in enumerate(x.shape):
        if int(at.max()) >= size:
            continue
        code = names.format(f"{axis}, ")
        inside = at.ndim == x.ndim and all(n <= m for a, (n, m) in enumerate(zip(at.shape, x.shape)) if a != axis)
        if inside and _long(at.shape) in wanted:
            part = tuple(slice(None) if a == axis else slice(0, n) for a, n in enumerate(at.shape))
            yield "elements", f"gather_elements({code})", np.take_along_axis(x[part], at, axis)
        before, behind = x.shape[:axis], x.shape[axis + 1 :]
        if (
            at.ndim < x.ndim
            and at.shape[:axis] == before
            and at.ndim == axis + 1
            and _long(at.shape + behind) in wanted
        ):
            spread = at.reshape(at.shape + (1,) * (x.ndim - at.ndim))
            yield "elements", f"gather_elements({code}[..., None])", np.take_along_axis(x, spread, axis)
        if _long(before + at.shape + behind) in wanted:
            yield "slices", f"take({code})", np.take(x, at, axis)
        if at.ndim > 1 and _long((*before, at[0].size, *behind)) in wanted:
            for row in (0, at.shape[0] - 1):
                yield "slices", f"take({code}[{row}])", np.take(x, at[row].reshape(-1), axis)


def _long(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape without axes of one."""
    return tuple(n for n in shape if n > 1)


def _fits(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return _long(found) == _long(wanted)


def _is(found: Floats, wanted: Floats, limit: float) -> bool:
    return _fits(found.shape, wanted.shape) and distance(found.reshape(wanted.shape), wanted) <= limit


def _scattered(pair: Pair, piece: Piece, index: Piece) -> Optional[Suspect]:
    """Both sides as values put where the indices say: added up where two meet, or the one written over the other."""
    shape = pair.expected.shape
    at, x = index.array.astype(np.int64), piece.array
    for axis, size in enumerate(shape):
        if (
            x.ndim != len(shape)
            or int(at.max()) >= size
            or x.shape[:axis] + x.shape[axis + 1 :] != shape[:axis] + shape[axis + 1 :]
        ):
            continue
        where = _spread(at, x.shape, axis)
        if where is None or x.size > PUT:
            continue
        place = [np.broadcast_to(grid, x.shape) for grid in np.ogrid[tuple(map(slice, x.shape))]]
        place[axis] = where
        ways = dict(_puts(np.asarray(x, np.float64), tuple(place), shape))
        ours = next((way for way, made in ways.items() if _is(made, pair.expected, pair.limit)), None)
        theirs = ours and next((way for way, made in ways.items() if _is(made, pair.actual, pair.limit)), None)
        if ours and theirs is None:
            theirs = _one_of(pair, x, tuple(place), ours, ways)
        if ours and theirs and ours != theirs:
            code = f"({axis}, [{index.name}], [{piece.name}])"
            left = distance(ways[theirs], pair.actual) if theirs in ways else 0.0
            written = {"last", "first", "any"} & {ours, theirs}
            cause = "scatter-add-duplicates" if written and "add" in (ours, theirs) else "scatter-reduce-other"
            return _told(pair, cause, left, f"scatter_{ours}{code}", f"scatter_{theirs}{code}")
    return None


def _spread(at: Floats, shape: tuple[int, ...], axis: int) -> Optional[Floats]:
    """The indices for each element of the value: given for each, for the first axes, or for one axis."""
    if at.shape == shape:
        return at
    if at.ndim == axis + 1 and at.shape == shape[: axis + 1]:
        return np.broadcast_to(at.reshape(at.shape + (1,) * (len(shape) - at.ndim)), shape)
    if at.shape == (shape[axis],):
        return np.broadcast_to(at.reshape([-1 if a == axis else 1 for a in range(len(shape))]), shape)
    return None


def _puts(x: Floats, place: tuple[Floats, ...], shape: tuple[int, ...]) -> Iterator[tuple[str, Floats]]:
    added, count, highest = np.zeros(shape), np.zeros(shape), np.full(shape, -np.inf)
    np.add.at(added, place, x)
    np.add.at(count, place, 1.0)
    np.maximum.at(highest, place, x)
    yield "add", added
    last = np.zeros(shape)
    last[place] = x
    yield "last", last
    first = np.zeros(shape)
    first[tuple(axis.reshape(-1)[::-1] for axis in place)] = x.reshape(-1)[::-1]
    yield "first", first
    yield "mean", added / np.maximum(count, 1.0)
    yield "max", np.where(count > 0, highest, 0.0)


def _one_of(pair: Pair, x: Floats, place: tuple[Floats, ...], ours: str, ways: dict[str, Floats]) -> Optional[str]:
    """Which of two writes is kept need not be the first or the last: some value that was written there."""
    if ours != "add":
        return None
    written = np.zeros(pair.actual.shape, bool)
    near = np.abs(pair.actual[place] - x) <= 1e-6 * (1e-3 + np.abs(x))
    np.logical_or.at(written, place, near)
    empty = np.ones(pair.actual.shape, bool)
    empty[place] = False
    return "any" if bool((written | (empty & (pair.actual == 0))).all()) else None


def _told(pair: Pair, cause: str, left: float, ours: str, theirs: str) -> Suspect:
    codes = {"reference_code": ours, "port_code": theirs, "other": ours, "instead": theirs}
    return pair.suspect(cause, left, 0.92, None, **codes)
