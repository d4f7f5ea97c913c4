"""A table of the parent's own (places, constants) that has other values in the port."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.glue.formula import Formula
from aligner.explain.glue.formulas import solved
from aligner.explain.glue.place import Place
from aligner.explain.glue.views import View
from aligner.explain.suspect import Suspect

RANK = 2
"""Of parameters and buffers, among the values in hand."""

FREE = 0.6
"""A table that is free in more of its numbers than this share of the value explains nothing."""


def suspects(place: Place) -> Iterator[Suspect]:
    """At most one: the value is what it should be but for something that is the same wherever the table is."""
    pair = place.pair
    if not (np.isfinite(pair.actual).all() and np.isfinite(pair.expected).all()):
        return
    formula = solved(place, place.wanted, pair.expected)
    if formula is None or formula.outer:
        return
    for term in formula.terms:
        for factor in term.factors:
            if factor.view.piece.rank != RANK or factor.function or factor.view.array.size > FREE * pair.expected.size:
                continue
            found = _added(place, formula, factor.view) if len(term.factors) == 1 else None
            if found is not None:
                yield found
                return


def _added(place: Place, formula: Formula, view: View) -> Optional[Suspect]:
    """The difference does not depend on the axes along which the table is broadcast, and the table is not right."""
    pair = place.pair
    shape = np.broadcast_shapes(view.array.shape, pair.expected.shape)
    held = (1,) * (len(shape) - view.array.ndim) + view.array.shape
    axes = tuple(axis for axis, size in enumerate(held) if size == 1 and shape[axis] > 1)
    if shape != pair.expected.shape or not axes:
        return None
    apart = (np.asarray(pair.actual, np.float64) - pair.expected).mean(axis=axes, keepdims=True)
    left = pair.proved(pair.actual - apart, pair.expected)
    if left is None:
        return None
    facts = {"other": view.text, "reference_code": formula.text, "largest": f"{float(np.abs(apart).max()):.3g}"}
    return pair.suspect("buffer-differs", left, 0.75, None, **facts)
