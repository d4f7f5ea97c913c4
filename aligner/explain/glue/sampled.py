"""A map read off at the places of a grid: which of its two numbers is x, and what lies beyond the border."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice, product
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect

SOURCES, GRIDS = 4, 4
"""Maps that may have been read, and values that may have told where."""

FEW = 48
"""Positions that are looked at before all are."""

LARGEST = 1 << 23

PADDINGS = ("zeros", "border", "reflection")
MODES = ("bilinear", "nearest")


@dataclass(frozen=True)
class Way:
    """How a grid is made of a value in hand, and how a map is read with it."""

    grid: str
    """"as it is", "tanh", "* 2 - 1", "+ identity", "pixels + identity" or "affine"."""
    swapped: bool
    corners: bool
    """Of the reading."""
    grid_corners: bool
    """Of the grid, where that is made of numbers too."""
    padding: str
    mode: str


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one: both sides read the same map with the same grid, and one thing of it differs."""
    wanted = pair.expected.shape
    if len(wanted) != 4 or pair.expected.size > LARGEST or not np.isfinite(pair.before):
        return
    grids = list(islice(_grids(hand, wanted), GRIDS))
    if not grids:
        return
    alike = hand.pieces(lambda s: len(s) == 4 and s[:2] == wanted[:2] and min(s[2:]) > 1)
    sources = [p for p in alike if p.array.dtype.kind == "f" and p.rank in (0, 1, 3)][:SOURCES]
    for source, grid in product(sources, grids):
        found = _compared(pair, source, grid)
        if found is not None:
            yield found
            return


def _grids(hand: Hand, wanted: tuple[int, ...]) -> Iterator[Piece]:
    """Values that hold two numbers for each place, or six for each map."""
    batch, _, high, wide = wanted
    for piece in hand.pieces(lambda s: True):
        array, shape = piece.array, piece.array.shape
        if array.dtype.kind != "f" or not array.size:
            continue
        if shape == (batch, 2, high, wide):
            yield replace(piece, array=np.moveaxis(array, 1, -1))
        elif shape in ((batch, high, wide, 2), (1, high, wide, 2), (high, wide, 2)):
            yield replace(piece, array=np.broadcast_to(array, (batch, high, wide, 2)))
        elif array.size == batch * 6 and shape[0] == batch:
            yield replace(piece, array=array.reshape(batch, 2, 3))


def _compared(pair: Pair, source: Piece, grid: Piece) -> Optional[Suspect]:
    few = np.random.default_rng(0).permutation(int(np.prod(pair.expected.shape[2:])))[:FEW]
    ours = list(_fitting(pair, source, grid, pair.expected, few, None))
    if not ours:
        return None
    theirs = list(_fitting(pair, source, grid, pair.actual, few, ours))
    for left, way in theirs:
        near = min((mine for _, mine in ours), key=lambda mine: len(_apart(mine, way)))
        return _told(pair, source, grid, near, way, left)
    return None


def _fitting(
    pair: Pair, source: Piece, grid: Piece, whole: Floats, few: Floats, near: Optional[list[tuple[float, Way]]]
) -> Iterator[tuple[float, Way]]:
    """The ways that give the whole value, those nearest to `near` first."""
    ways = list(_ways(grid))
    if near is not None:
        ways.sort(key=lambda way: min(len(_apart(mine, way)) for _, mine in near))
    some = whole.reshape(*whole.shape[:2], -1)[..., few]
    for way in ways:
        places = _places(grid.array, way, whole.shape, source.array.shape)
        flat = places.reshape(len(places), -1, 2)
        if distance(_read(source.array, flat[:, few], way), some) > 10 * pair.limit:
            continue
        left = distance(_read(source.array, flat, way).reshape(whole.shape), whole)
        if left <= max(pair.limit, 2e-5):
            yield left, way


def _ways(grid: Piece) -> Iterator[Way]:
    affine = grid.array.ndim == 3
    made = ("affine",) if affine else ("as it is", "tanh", "* 2 - 1", "+ identity", "pixels + identity")
    for mode, padding, word, swapped, corners in product(MODES, PADDINGS, made, (False, True), (False, True)):
        for other in (corners, not corners) if "identity" in word or affine else (corners,):
            yield Way(word, swapped, corners, other, padding, mode)


def _apart(one: Way, other: Way) -> list[str]:
    return [name for name in one.__dataclass_fields__ if getattr(one, name) != getattr(other, name)]


def _identity(sizes: tuple[int, ...], corners: bool) -> Floats:
    """Where each place is itself, x before y."""
    lines = [np.linspace(-1.0, 1.0, n) * (1.0 if corners else (n - 1.0) / n) for n in sizes]
    return np.stack(np.meshgrid(*lines, indexing="ij")[::-1], -1)


def _places(held: Floats, way: Way, wanted: tuple[int, ...], given: tuple[int, ...]) -> Floats:
    """The grid: x and y of each place, from -1 to 1."""
    grid: Floats = np.asarray(held, np.float64)
    if way.grid == "affine":
        places = _identity(wanted[2:], way.grid_corners)
        ones = np.concatenate([places, np.ones((*wanted[2:], 1))], -1)
        grid = np.einsum("hwk,njk->nhwj", ones, grid)
    elif way.grid == "tanh":
        grid = np.tanh(grid)
    elif way.grid == "* 2 - 1":
        grid = 2.0 * grid - 1.0
    elif way.grid == "+ identity":
        grid = grid + _identity(wanted[2:], way.grid_corners)
    elif way.grid == "pixels + identity":
        size = np.array([n - way.grid_corners for n in given[:1:-1]], np.float64)
        grid = 2.0 * grid / size + _identity(wanted[2:], way.grid_corners)
    return grid[..., ::-1] if way.swapped else grid


def _read(source: Floats, places: Floats, way: Way) -> Floats:
    """The map at (batch, places, 2), as (batch, channels, places)."""
    sizes = np.array(source.shape[:1:-1], np.float64)
    at = (places + 1.0) / 2.0 * (sizes - 1.0) if way.corners else ((places + 1.0) * sizes - 1.0) / 2.0
    if way.padding == "reflection":
        low = 0.0 if way.corners else -0.5
        span = np.maximum(sizes - 1.0 if way.corners else sizes, 1e-9)
        turned = np.mod(np.abs(at - low), 2.0 * span)
        at = np.minimum(turned, 2.0 * span - turned) + low
    if way.padding != "zeros":
        at = np.clip(at, 0.0, sizes - 1.0)
    if way.mode == "nearest":
        return _picked(source, np.rint(at).astype(np.int64))
    base = np.floor(at)
    part = at - base
    total: Floats = np.zeros((*source.shape[:2], places.shape[1]))
    for x, y in product((0, 1), (0, 1)):
        weight = np.abs(1 - x - part[..., 0]) * np.abs(1 - y - part[..., 1])
        total = total + weight[:, None] * _picked(source, base.astype(np.int64) + np.array([x, y]))
    return total


def _picked(source: Floats, at: Floats) -> Floats:
    """Single elements; zero beyond the border."""
    high, wide = source.shape[2:]
    x, y = at[..., 0], at[..., 1]
    inside = (x >= 0) & (x < wide) & (y >= 0) & (y < high)
    batch = np.arange(len(source))[:, None]
    found = source[batch, :, np.clip(y, 0, high - 1), np.clip(x, 0, wide - 1)]
    return np.asarray(np.moveaxis(found, -1, 1) * inside[:, None], np.float64)


def _told(pair: Pair, source: Piece, grid: Piece, ours: Way, theirs: Way, left: float) -> Optional[Suspect]:
    apart = _apart(ours, theirs)
    if not apart or left * 8.0 > pair.before:
        return None
    codes = {"reference_code": _spelled(source, grid, ours), "port_code": _spelled(source, grid, theirs)}
    facts = {**codes, "other": f"[{grid.name}]", "setting": apart[0]}
    if apart == ["swapped"]:
        cause = "grid-sample-xy-order"
    elif set(apart) <= {"corners", "grid_corners"}:
        cause = "grid-sample-align-corners"
    else:
        cause = "grid-sample-differs"
    words = {name: tuple(_value(way, name) for way in (ours, theirs)) for name in apart}
    facts["setting"] = ", ".join(_WORDS[name] for name in apart)
    facts["reference_value"], facts["port_value"] = (
        ", ".join(pair_[side] for pair_ in words.values()) for side in (0, 1)
    )
    return pair.suspect(cause, left, 0.92, None, **facts)


_WORDS = {
    "grid": "grid",
    "swapped": "flip",
    "corners": "align_corners",
    "grid_corners": "affine_grid.align_corners",
    "padding": "padding_mode",
    "mode": "mode",
}


def _value(way: Way, name: str) -> str:
    return _made("grid", way) if name == "grid" else str(getattr(way, name))


def _made(name: str, way: Way) -> str:
    """The grid, made of the value of this name."""
    return {
        "as it is": name,
        "affine": f"affine_grid({name}, align_corners={way.grid_corners})",
        "tanh": f"tanh({name})",
        "* 2 - 1": f"{name} * 2 - 1",
        "+ identity": f"identity + {name}",
        "pixels + identity": f"identity + {name} / ({'size - 1' if way.grid_corners else 'size'}) * 2",
    }[way.grid]


def _spelled(source: Piece, grid: Piece, way: Way) -> str:
    made = _made(f"[{grid.name}]", way)
    turned = f"flip({made}, -1)" if way.swapped else made
    return f"grid_sample([{source.name}], {turned}, {way.mode}, {way.padding}, align_corners={way.corners})"
