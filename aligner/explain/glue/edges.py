"""The edges of number ranges in a parent's own code: NaN, ties, counts that a short type cannot hold, erfinv."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aligner.explain.case import Case
from aligner.explain.glue.hand import Hand
from aligner.explain.patterns import approximations, notnumbers, ties
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect

FEW = 12
"""Values in hand that are looked at."""


def suspects(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """What the rules for layers say of the values in hand."""
    if not pair.alike:
        return
    if np.isnan(pair.expected).any():
        yield from notnumbers.told(pair, _held(hand, pair.expected.shape))
        yield from notnumbers.of_nothing(pair, case.known or case.inputs)
        return
    if ties.counts(case):
        pieces = hand.pieces(lambda shape: 1 <= len(shape) <= pair.expected.ndim + 1)
        yield from ties.told(pair, ((piece.name, piece.array) for piece in list(pieces)[:FEW]))
    else:
        yield from approximations.told(pair, _held(hand, pair.expected.shape))


def _held(hand: Hand, wanted: tuple[int, ...]) -> list[tuple[str, Floats]]:
    return [(piece.name, piece.array) for piece in hand.pieces(lambda shape: shape == wanted)][:FEW]
