"""What is added to a value, or what it is multiplied by, is one number for each slice: of what that number is taken."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Optional

import numpy as np

from aligner.explain.case import Case, Value, distance
from aligner.explain.glue import formulas
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.glue.place import Place
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect

NEAR = 3
"""Values in hand that the numbers may have been added to, or that they may have scaled."""

LARGEST = 1 << 22
FEW = 8
"""Numbers that prove something."""

LOST = 1e3
"""How much smaller the numbers may be than what they are added to."""

Base = tuple[str, Floats, Floats, float]
"""As code with a place for the number, what the two sides leave, and how much less precisely that is known."""


def suspects(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one, for numbers that are the same along some axes on both sides."""
    shape = pair.expected.shape
    if len(shape) < 2 or pair.expected.size > LARGEST:
        return
    if not (np.isfinite(pair.expected).all() and np.isfinite(pair.actual).all()):
        return
    for text, one, other, lost in _bases(pair, hand):
        limit = pair.limit * lost
        axes = _same_along(one, other, limit)
        if not axes or one.size // int(np.prod([shape[a] for a in axes])) < FEW:
            continue
        index = tuple(0 if a in axes else slice(None) for a in range(len(shape)))
        small = Pair(one[index], other[index], limit, pair.facts)
        found = _found(case, small, hand, text)
        if found is not None:
            yield found
            return


def _bases(pair: Pair, hand: Hand) -> Iterator[Base]:
    one, other = (np.asarray(side, np.float64) for side in (pair.expected, pair.actual))
    yield "{}", one, other, 1.0
    alike = [p for p in hand.pieces(lambda s: s == one.shape) if p.array.dtype.kind == "f" and p.rank in (0, 1, 3)]
    for piece in alike[:NEAR]:
        yield from _left(piece, one, other)


def _left(piece: Piece, one: Floats, other: Floats) -> Iterator[Base]:
    """What the sides are more than the value, and how many times it."""
    x = np.asarray(piece.array, np.float64)
    rest = one - x, other - x
    length = float(np.linalg.norm(rest[0]))
    lost = float(np.linalg.norm(one)) / length if length else np.inf
    if lost < LOST:
        yield f"[{piece.name}] + {{}}", *rest, max(lost, 1.0)
    if (np.abs(x) > 1e-6).all():
        yield f"[{piece.name}] * {{}}", one / x, other / x, 1.0


def _same_along(one: Floats, other: Floats, limit: float) -> tuple[int, ...]:
    """The axes along which both hold the same numbers."""
    long = [axis for axis, size in enumerate(one.shape) if size > 1]
    return tuple(axis for axis in long if all(_flat(side, axis, limit) for side in (one, other)))


def _flat(side: Floats, axis: int, limit: float) -> bool:
    """Whether nothing changes along the axis: its ends are looked at before all of it is."""
    first, last = side.take([0], axis), side.take([-1], axis)
    length = np.linalg.norm(first)
    if not length or np.linalg.norm(last - first) > 2.0 * limit * length:
        return False
    return bool(np.linalg.norm(side - first) <= limit * np.linalg.norm(side))


def _found(case: Case, small: Pair, hand: Hand, text: str) -> Optional[Suspect]:
    if distance(small.actual, small.expected) <= small.limit:
        return None
    values = [_value(side) for side in (small.expected, small.actual)]
    place = Place.of(replace(case, expected=values[0], actual=values[1], later=()), small, hand)
    for suspect in formulas.suspects(place):
        if suspect.error is None or suspect.weight < 0.6:
            continue
        codes = {side: text.format(code) for side, code in suspect.facts.items() if side.endswith("_code")}
        return replace(suspect, facts={**suspect.facts, **codes})
    return None


def _value(array: Floats) -> Value:
    return Value("", "input.0", 0, array.dtype.name, array.shape, lambda: array)
