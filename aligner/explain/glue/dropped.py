"""Whole samples dropped in training: what those that are kept are multiplied by, on both sides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.case import Case, distance
from aligner.explain.glue.hand import Hand
from aligner.explain.patterns.pair import Floats, Pair, figure
from aligner.explain.patterns.scales import listed
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

NEAR = 4
"""Values in hand that may have been dropped, and that they may have been added to."""


def suspects(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one, in training only."""
    shape = pair.expected.shape
    if not case.training or len(shape) < 2 or shape[0] < 2 or not np.isfinite(pair.before):
        return
    alike = [p for p in hand.pieces(lambda s: s == shape) if p.array.dtype.kind == "f" and p.rank in (0, 1, 3)][:NEAR]
    for piece in alike:
        for other in (None, *alike):
            if other is piece:
                continue
            base = 0.0 if other is None else np.asarray(other.array, np.float64)
            ours, theirs = (_kept(side - base, piece.array, pair.limit, side) for side in (pair.expected, pair.actual))
            if ours is None or theirs is None:
                continue
            made = base + theirs.reshape(-1, *(1,) * (len(shape) - 1)) * piece.array
            text = f"[{other.name}] + " if other is not None else ""
            found = _told(pair, ours, theirs, text + f"[{piece.name}]", distance(made, pair.actual))
            if found is not None:
                yield found
                return


def _kept(made: Floats, given: Floats, limit: float, whole: Floats) -> Optional[Floats]:
    """What each sample is multiplied by, if that is a number for each, and zero or one and the same number."""
    x = np.asarray(given, np.float64).reshape(len(given), -1)
    y = np.asarray(made, np.float64).reshape(len(given), -1)
    square = np.square(x).sum(axis=1)
    if not (square > 0).all():
        return None
    factors = (x * y).sum(axis=1) / square
    if np.linalg.norm(factors[:, None] * x - y) > limit * np.linalg.norm(whole):
        return None
    factors = np.where(np.abs(factors) < 1e-4, 0.0, factors)
    kept = factors[factors != 0]
    return factors if kept.size and np.ptp(kept) <= 1e-4 * abs(kept[0]) else None


def _told(pair: Pair, ours: Floats, theirs: Floats, text: str, left: float) -> Optional[Suspect]:
    if not ((ours == 0).any() or (theirs == 0).any()):
        return None  # nothing was dropped: a mere factor
    one, other = float(ours[ours != 0][0]), float(theirs[theirs != 0][0])
    same, alike = abs(one / other - 1.0) < 1e-4, bool(((ours == 0) == (theirs == 0)).all())
    if same and alike:
        return None
    cause = "droppath-samples-differ" if same else "droppath-scale-missing"
    codes = [f"{text} * mask" + ("" if abs(n - 1) < 1e-4 else f" / {figure(1.0 / n)}") for n in (one, other)]
    facts: dict[str, Scalar] = {"reference_code": codes[0], "port_code": codes[1], "factor": figure(one)}
    facts.update(other_factor=figure(other), dropped=_listed(ours), port_dropped=_listed(theirs))
    return pair.suspect(cause, left, 0.93, None, **facts)


def _listed(factors: Floats) -> str:
    return listed(map(int, np.flatnonzero(factors == 0))) or "-"
