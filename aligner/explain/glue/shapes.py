"""The port's value has another shape: what each side may have made it of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.exchanged import instead
from aligner.explain.glue.formula import Formula
from aligner.explain.glue.formulas import simplest
from aligner.explain.glue.hand import Hand
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """Both sides as formulas of what was in hand."""
    if pair.alike:
        return
    reference = _solved(pair, hand, pair.expected)
    ported = reference and _solved(pair, hand, pair.actual)
    if not reference or not ported:
        return
    left = distance(ported(pair.actual.shape), pair.actual)
    facts = {"shape": str(pair.expected.shape), "port_shape": str(pair.actual.shape)}
    facts.update(reference_code=reference.text, port_code=ported.text)
    one, other = reference.single, ported.single
    cause = "expression-differs"
    if one is not None and other is not None:
        cause, told, _ = instead(one.view, other.view)
        facts.update({name: str(value) for name, value in told.items()})
    yield pair.suspect(cause, left, 0.8, None, **facts)


def _solved(pair: Pair, hand: Hand, whole: Floats) -> Optional[Formula]:
    if not np.isfinite(whole).any() or whole.size < 6:
        return None
    return simplest(hand, whole, pair.limit)
