"""A parent that calls its layers in another order: norms before or after what they belong to, a step moved."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Optional

import numpy as np

from aligner.explain import port_words
from aligner.explain.case import Case
from aligner.explain.glue.hand import Hand
from aligner.explain.patterns.pair import Pair, numbers, usual
from aligner.explain.spelling import literal
from aligner.explain.suspect import Suspect
from aligner.record import Scalar, display

NORM_FIRST = "norm_first"
"""The setting by which a layer of the framework's own chooses one of two orders."""

WEIGHT = 0.97


def suspects(case: Case, pair: Optional[Pair]) -> Iterator[Suspect]:
    """Proved where the port hands on, in place of what another layer would have made, a value that it has."""
    if case.order is None:
        return
    ours, theirs = case.order
    left = _handed(case, pair) if pair is not None else None
    facts: dict[str, Scalar] = {
        **usual(case),
        "reference_order": _names(case, ours),
        "port_order": _names(case, theirs),
    }
    wanted, found = (spec.attributes.get(NORM_FIRST) for spec in (case.reference, case.port))
    if wanted is not None and wanted != found:
        facts.update(setting=NORM_FIRST, reference_value=literal(wanted), port_value=literal(found))
        facts.update(written=port_words.written(case, case.reference, [NORM_FIRST]))
        yield Suspect("encoder-layer-norm-first", facts, {NORM_FIRST: wanted}, error=left, weight=WEIGHT)
    else:
        yield Suspect("layers-in-another-order", facts, error=left, weight=WEIGHT)


def _handed(case: Case, pair: Pair) -> Optional[float]:
    """How far the port's value is from one that a net has in hand at some time; None if it is none of them."""
    if not pair.alike:
        return None
    actual = pair.actual
    known = [piece.array for piece in Hand.of(case).pieces(lambda shape: shape == actual.shape)]
    later = (numbers(value) for value in case.later if value.shape == actual.shape)
    lefts = (pair.proved(np.asarray(held), actual) for held in chain(known, later) if held is not None)
    return next((left for left in lefts if left is not None), None)


def _names(case: Case, order: tuple[str, ...]) -> str:
    inside = f"{case.layer}." if case.layer else ""
    return ", ".join(display(path[len(inside) :] if path.startswith(inside) else path) for path in order)
