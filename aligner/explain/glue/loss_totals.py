"""A sum of losses: which term has another weight in the port, told from how far one number is off.

One number fits very many sums. So a mistake is told only where the difference is a plain multiple of one of the terms,
and of no other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations, product
from typing import Optional

import numpy as np

from aligner.explain.case import Case
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.losses import constants
from aligner.explain.patterns.pair import Floats, Pair, figure
from aligner.explain.suspect import Suspect

EXACT = 3e-6
"""Of the sum: how far a sum of the terms may be off it, with what float32 rounds of every term."""

WEIGHTS = (1.0, 0.5, 2.0, 0.1, 10.0, 0.25, 4.0, 5.0, 0.2, 3.0, 0.4, 0.3, 0.05, 0.01, 1.5, 2.5)
"""Weights that people give losses, the commonest first."""

TERMS = 8
LONGEST = 3


def suspects(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one."""
    if pair.expected.size != 1 or pair.actual.size != 1:
        return
    wanted, found = float(pair.expected.reshape(-1)[0]), float(pair.actual.reshape(-1)[0])
    terms = [piece for piece in hand.pieces(lambda shape: int(np.prod(shape)) == 1) if _is_loss(piece)][:TERMS]
    if len(terms) < 2 or not np.isfinite(wanted) or not np.isfinite(found):
        return
    values = np.array([float(piece.array.reshape(-1)[0]) for piece in terms])
    weights = _weights(constants(case.reference, case.port))
    fits = [fit for fit in (_fit(wanted, found, values, n, weights) for n in range(len(terms))) if fit is not None]
    if len(fits) != 1:
        return
    number, reference, port = fits[0]
    left = abs(port - found) / abs(wanted)
    yield _told(pair, terms[number], reference, left)


Fit = tuple[int, tuple[float, float], float]
"""The term's place, its weight on both sides, and the sum with the mistake in it."""


def _is_loss(piece: Piece) -> bool:
    return piece.array.dtype.kind == "f" and piece.rank == 1 and bool(np.isfinite(piece.array).all())


def _weights(own: Iterable[float]) -> tuple[float, ...]:
    return (*WEIGHTS, *sorted({value for value in own if value > 0} - set(WEIGHTS)))


def _fit(wanted: float, found: float, values: Floats, number: int, weights: Sequence[float]) -> Optional[Fit]:
    """The two weights of this term, where the reference is a sum of the terms and one weight makes it the port's."""
    scale = abs(wanted) + abs(found)
    value = values[number]
    if abs(value) < 1e-3 * scale:
        return None
    off = (found - wanted) / value
    noise = EXACT * scale / abs(value)
    pairs = [(one, other) for one in weights for other in (0.0, *weights) if abs(other - one - off) <= noise]
    if not pairs:
        return None
    rest = np.delete(values, number)
    for one, other in pairs:
        if _is_sum(wanted - one * value, rest, weights, EXACT * scale):
            return number, (one, other), wanted + (other - one) * value
    return None


def _is_sum(wanted: float, values: Floats, weights: Sequence[float], noise: float) -> bool:
    """Whether some of the values, weighted, make this number; only the commonest weights where they are many."""
    if abs(wanted) <= noise:
        return True
    for count in range(1, min(LONGEST, len(values)) + 1):
        common = weights[: {1: len(weights), 2: 9}.get(count, 5)]
        factors = np.array(list(product(common, repeat=count)))
        for chosen in combinations(range(len(values)), count):
            if (np.abs(factors @ values[list(chosen)] - wanted) <= noise).any():
                return True
    return False


def _told(pair: Pair, piece: Piece, weights: tuple[float, float], left: float) -> Suspect:
    reference, port = weights
    other = f"[{piece.name}]"
    if port == 0.0:
        return pair.suspect("addend-missing", left, 0.9, None, other=other)
    told = {"reference_value": figure(reference), "port_value": figure(port)}
    return pair.suspect("loss-weight", left, 0.9, None, other=other, **told)
