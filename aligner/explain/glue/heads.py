"""Predictions of a detector: maps of several levels, cut into anchors and outputs, decoded and joined in one long axis.

What is wrong with them is seen level by level, with rows and columns of the map as axes of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, permutations
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue import grids
from aligner.explain.glue.functions import FUNCTIONS, Function, spelled
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.limits import grid
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.patterns.places import off
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

LEVELS = 5
"""Maps that are joined at most."""

SHORT = ("float16", "bfloat16")

DECODED: Mapping[str, Function] = {
    **{name: FUNCTIONS[name] for name in ("", "exp", "Sigmoid", "Tanh", "ReLU", "Softplus", "square", "abs")},
    "Sigmoid ** 2": lambda x: np.square(FUNCTIONS["Sigmoid"](x)),
}
"""What boxes and scores are made with, up to a number for each anchor."""


@dataclass(frozen=True, eq=False)
class Level:
    """One map and its stretch of the long axis; arrays are (batch, anchors, rows, columns, outputs)."""

    piece: Piece
    given: Floats
    expected: Floats
    actual: Floats


Rule = Callable[[Pair, Level], Optional[Suspect]]


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one, that holds on every level where something is wrong."""
    if pair.expected.ndim != 3 or not (np.isfinite(pair.expected).all() and np.isfinite(pair.actual).all()):
        return
    asked = list(_asked(pair))
    for maps in _joined(pair, hand):
        for anchors_first in (True, False):
            levels = list(_levels(pair, maps, anchors_first))
            for rule, which in asked:
                found = _of_all(pair, levels, rule, which)
                if found is not None:
                    yield found
                    return


def _asked(pair: Pair) -> Iterator[tuple[Rule, Floats]]:
    """The rules, and the outputs that each is asked about."""
    columns = np.flatnonzero(off(pair).any(axis=(0, 1)))
    if columns.size:
        yield _of_grid, columns
    for _, run in groupby(enumerate(columns), lambda item: item[1] - item[0]):
        yield _of_function, np.array([int(column) for _, column in run])
    for word in SHORT:
        same = [(grid(side, word) == side).mean(axis=(0, 1)) for side in (pair.expected, pair.actual)]
        if (rounded := np.flatnonzero((same[0] < 0.5) & (same[1] == 1.0))).size:
            yield partial(_of_rounding, word), rounded


def _joined(pair: Pair, hand: Hand) -> Iterator[Sequence[Piece]]:
    """Maps that make up the long axis together, in the order in which they do."""
    batch, places, outputs = pair.expected.shape
    maps = [
        piece
        for piece in hand.pieces(lambda s: len(s) == 4 and s[0] == batch and s[1] % outputs == 0)
        if piece.rank == 1 and piece.array.dtype.kind == "f"
    ][:LEVELS]
    maps.reverse()
    whole = sum(piece.array[0].size // outputs for piece in maps)
    if not maps or whole != places:
        return
    yield maps
    yield from [order for order in permutations(maps) if list(order) != maps] if len(maps) <= 3 else [maps[::-1]]


def _levels(pair: Pair, maps: Sequence[Piece], anchors_first: bool) -> Iterator[Level]:
    batch, _, outputs = pair.expected.shape
    start = 0
    for piece in maps:
        _, channels, high, wide = piece.array.shape
        anchors = channels // outputs
        end = start + anchors * high * wide
        given = piece.array.reshape(batch, anchors, outputs, high, wide).transpose(0, 1, 3, 4, 2)
        shape = (batch, anchors, high, wide, outputs) if anchors_first else (batch, high, wide, anchors, outputs)
        one, other = (side[:, start:end].reshape(shape) for side in (pair.expected, pair.actual))
        if not anchors_first:
            one, other = one.transpose(0, 3, 1, 2, 4), other.transpose(0, 3, 1, 2, 4)
        yield Level(piece, given, one, other)
        start = end


def _of_all(pair: Pair, levels: Sequence[Level], rule: Rule, columns: Floats) -> Optional[Suspect]:
    """The rule's answer, where it is the same on every level that is wrong."""
    first: Optional[Suspect] = None
    for level in levels:
        part = Level(level.piece, *(side[..., columns] for side in (level.given, level.expected, level.actual)))
        small = Pair(part.expected, part.actual, pair.limit, pair.facts)
        if small.before <= pair.limit:
            continue
        found = rule(small, part)
        if found is None or (first is not None and found.cause != first.cause):
            return None
        first = first or found
    return first


def _of_grid(small: Pair, level: Level) -> Optional[Suspect]:
    return next(grids.suspects(small), None)


def _of_function(small: Pair, level: Level) -> Optional[Suspect]:
    """Another function of what was predicted, both times a number for each anchor and output."""
    ours, theirs = (_decoded(level.given, side, small.limit) for side in (level.expected, level.actual))
    if ours is None or theirs is None or ours[0] == theirs[0]:
        return None
    value = f"[{level.piece.name}]"
    facts = {"reference_function": ours[0] or "identity", "port_function": theirs[0] or "identity", "other": value}
    codes = {
        f"{side}_code": f"c * {spelled(name, value)}" for side, name in (("reference", ours[0]), ("port", theirs[0]))
    }
    return small.suspect("activation-other", theirs[1], 0.85, None, **facts, **codes)


def _decoded(given: Floats, made: Floats, limit: float) -> Optional[tuple[str, float]]:
    x, y = np.asarray(given, np.float64), np.asarray(made, np.float64)
    for name, function in DECODED.items():
        value = function(x)
        below = np.square(value).sum(axis=(0, 2, 3), keepdims=True)
        factors = (value * y).sum(axis=(0, 2, 3), keepdims=True) / np.where(below == 0, np.inf, below)
        left = distance(factors * value, y)
        if left <= limit:
            return name, left
    return None


def _of_rounding(word: str, small: Pair, level: Level) -> Optional[Suspect]:
    """Outputs that are a function of what was predicted, computed in a short float."""
    x = np.asarray(level.given, np.float64)
    for name, function in FUNCTIONS.items():
        with np.errstate(all="ignore"):
            right = distance(function(x), small.expected) <= small.limit if name else False
        if not right:
            continue
        made = grid(function(np.asarray(grid(level.given, word), np.float64)), word)
        equal, left = float((made == small.actual).mean()), distance(made, small.actual)
        facts: dict[str, Scalar] = {
            "dtype": word,
            "function": name,
            "share": f"{100 * equal:.3g} %",
            "outputs": small.expected.shape[-1],
        }
        proof = left if left <= small.limit and left * 8.0 <= small.before else None
        return small.suspect("part-rounded", proof, 0.75, None, **facts) if equal > 0.5 else None
    return None
