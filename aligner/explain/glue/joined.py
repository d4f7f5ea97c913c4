"""What simple code makes of two values in hand: products of matrices, dot products, cosines, distances."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, permutations

import numpy as np

from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.glue.views import View
from aligner.explain.patterns.pair import Floats

Shape = tuple[int, ...]

MOST = 6
"""Values that are joined with each other."""

LARGEST = 1 << 28
"""Multiplications that one product may take."""


def views(hand: Hand, wanted: Shape) -> Iterator[View]:
    """Every way to join two values into one of the wanted shape."""
    held = [p for p in hand.pieces(lambda s: 1 <= len(s) <= 4) if p.array.dtype.kind in "fb" and p.rank < 4]
    made = [piece for piece in held if piece.rank != 2 and piece.array.ndim >= 2][:MOST]
    tables = [piece for piece in held if piece.array.ndim == 2][: 2 * MOST]
    for one in made:
        for other in tables:
            if one is not other:
                yield from _mapped(one, other, wanted)
                yield from _spread(other, one, wanted)
    for one, other in permutations(made, 2) if len(wanted) <= 3 else ():
        yield from _batched(one, other, wanted)
    for one, other in combinations(made, 2):
        if one.array.shape == other.array.shape:
            yield from _dots(one, other, wanted)


def _exact(x: Floats) -> Floats:
    return x.astype(np.float64)


def _small(one: Floats, columns: int) -> bool:
    return one.size * columns <= LARGEST


def _view(one: Piece, how: str, detail: str, text: str, array: Floats, wanted: Shape) -> Iterator[View]:
    if array.shape == wanted or (array.size == np.prod(wanted) and array.ndim >= len(wanted) - 1):
        yield View(one, how, detail, text, np.asarray(array).reshape(wanted))


def _mapped(one: Piece, table: Piece, wanted: Shape) -> Iterator[View]:
    """Rows times a weight, as it is or transposed."""
    x, w = one.array, table.array
    if x.shape[:-1] != wanted[:-1]:
        return
    for matrix, mark in ((w.T, ".T"), (w, "")):
        if matrix.shape == (x.shape[-1], wanted[-1]) and _small(x, wanted[-1]):
            text = f"[{one.name}] @ [{table.name}]{mark}"
            yield from _view(one, "mapped", f"{table.name}{mark}", text, _exact(x) @ _exact(matrix), wanted)


def _spread(table: Piece, one: Piece, wanted: Shape) -> Iterator[View]:
    """A square table over places (neighbours in a graph) times values at the places, in all its usual forms."""
    a, x = table.array, one.array
    places = a.shape[0]
    if a.shape != (places, places) or x.ndim < 2 or x.shape != wanted or x.shape[-2] != places:
        return
    for form, matrix in _tables(_exact(a)).items():
        if _small(matrix, int(x.size / places)):
            text = f"{form.format(f'[{table.name}]')} @ [{one.name}]"
            yield from _view(one, "spread", form, text, matrix @ _exact(x), wanted)


def _tables(a: Floats) -> dict[str, Floats]:
    with np.errstate(all="ignore"):
        loops = a + np.eye(len(a))
        forms = {"{}": a, "{}.T": a.T, "({} + 1)": loops, "({} + 1).T": loops.T}
        for name, table in (("{}", a), ("({} + 1)", loops)):
            rows, columns = (np.maximum(table.sum(axis=axis), 1e-12) for axis in (1, 0))
            forms[f"rows_normalized({name})"] = table / rows[:, None]
            forms[f"columns_normalized({name})"] = table / columns[None]
            forms[f"symmetrically_normalized({name})"] = table / np.sqrt(rows[:, None] * columns[None])
    return forms


def _batched(one: Piece, other: Piece, wanted: Shape) -> Iterator[View]:
    """Products of the last two axes, either side transposed."""
    x, y = one.array, other.array
    if x.ndim != y.ndim or x.ndim != len(wanted) or x.shape[:-2] != y.shape[:-2] or x.shape[:-2] != wanted[:-2]:
        return
    for left, first in ((x, ""), (x.swapaxes(-1, -2), ".mT")):
        for right, second in ((y, ""), (y.swapaxes(-1, -2), ".mT")):
            fits = left.shape[-1] == right.shape[-2] and (left.shape[-2], right.shape[-1]) == wanted[-2:]
            if fits and _small(left, right.shape[-1]):
                text = f"[{one.name}]{first} @ [{other.name}]{second}"
                detail = f"{other.name}{first}{second}"
                yield from _view(one, "matmul", detail, text, _exact(left) @ _exact(right), wanted)
                if first == "" and second == ".mT":
                    units = _unit(left) @ _unit(y).swapaxes(-1, -2)
                    yield from _view(one, "cosines", detail, f"cosines([{one.name}], [{other.name}])", units, wanted)


def _unit(x: Floats) -> Floats:
    y = _exact(x)
    return np.asarray(y / np.maximum(np.linalg.norm(y, axis=-1, keepdims=True), 1e-12))


def _dots(one: Piece, other: Piece, wanted: Shape) -> Iterator[View]:
    """Numbers for each pair of rows."""
    x, y = _exact(one.array), _exact(other.array)
    names = f"[{one.name}], [{other.name}]"
    for axis in range(x.ndim):
        if x.size // x.shape[axis] != np.prod(wanted) or x.shape[axis] == 1:
            continue
        detail = f"{other.name} axis {axis}"
        length = [np.sqrt(np.square(v).sum(axis)) for v in (x, y)]
        dot = (x * y).sum(axis)
        for how, found in (
            ("dot", dot),
            ("cosine", dot / np.maximum(length[0] * length[1], 1e-12)),
            ("distance", np.sqrt(np.square(x - y).sum(axis))),
            ("squared_distance", np.square(x - y).sum(axis)),
        ):
            yield from _view(one, how, detail, f"{how}({names}, axis={axis})", found, wanted)
