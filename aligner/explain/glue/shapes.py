"""The port's value has another shape: what each side may have made it of."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.edits import changed
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
        yield from _sides_exchanged(pair)
        return
    left = distance(ported(pair.actual.shape), pair.actual)
    facts = {"shape": str(pair.expected.shape), "port_shape": str(pair.actual.shape)}
    facts.update(reference_code=reference.text, port_code=ported.text)
    one, other = reference.single, ported.single
    cause = "expression-differs"
    if one is not None and other is not None:
        cause, told, _ = instead(one.view, other.view)
        if one.function != other.function:
            cause, told = changed(one.function, other.function)
        facts.update({name: str(value) for name, value in told.items()})
    yield pair.suspect(cause, left, 0.8, None, **facts)


def _sides_exchanged(pair: Pair) -> Iterator[Suspect]:
    """Maps whose height is the other's width, and that are no transposes: made for a size the wrong way round."""
    shape, other = pair.expected.shape, pair.actual.shape
    if len(shape) != 4 or len(other) != 4 or shape[:2] != other[:2] or shape[2:] != other[:1:-1]:
        return
    if distance(pair.actual.swapaxes(2, 3), pair.expected) > pair.limit:
        yield pair.suspect("resize-wh-order", None, 0.5, height=shape[2], width=shape[3])


def _solved(pair: Pair, hand: Hand, whole: Floats) -> Optional[Formula]:
    if not np.isfinite(whole).any() or whole.size < 6:
        return None
    return simplest(hand, whole, pair.limit)
