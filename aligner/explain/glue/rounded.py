"""A value went through a shorter type on its way: one of those that a formula is of, all of them, or the result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.formula import Factor, Formula, Term
from aligner.explain.glue.formulas import solved
from aligner.explain.glue.functions import FUNCTIONS
from aligner.explain.glue.place import Place
from aligner.explain.glue.views import View
from aligner.explain.patterns.limits import GRIDS, grid
from aligner.explain.patterns.pair import Floats
from aligner.explain.suspect import Suspect

SMALL = 0.05
"""Rounding to a short float, or to eight bits, is no larger an error than this."""

EIGHT = 255.0

Shorter = Callable[[Floats], Floats]


def _bits(back: Callable[[Floats], Floats]) -> Shorter:
    return lambda x: back(np.clip(np.asarray(x, np.float64) * EIGHT, 0.0, EIGHT)) / EIGHT


def _whole(back: Callable[[Floats], Floats]) -> Shorter:
    return lambda x: back(np.asarray(x, np.float64))


TYPES: Mapping[str, Shorter] = {
    "float16": lambda x: grid(x, "float16"),
    "bfloat16": lambda x: grid(x, "bfloat16"),
    "uint8(0..255)": _bits(np.floor),
    "uint8(round, 0..255)": _bits(np.round),
    "int32": _whole(np.trunc),
}


def suspects(place: Place) -> Iterator[Suspect]:
    """Which value, and through which type; a sum that is rounded on both sides of the plus is named twice."""
    pair = place.pair
    if not 0.0 < pair.before < SMALL or not (np.isfinite(pair.actual).all() and np.isfinite(pair.expected).all()):
        return
    formula = solved(place, place.wanted, pair.expected)
    if formula is None:
        return
    found = _tried(place, formula)
    if found is not None:
        yield found
    if found is not None and found.cause == "residual-add-precision":
        yield replace(found, cause="rounding-grid", weight=0.8)


def _tried(place: Place, formula: Formula) -> Optional[Suspect]:
    views = list(dict.fromkeys(factor.view for term in formula.terms for factor in term.factors))
    for word, short in TYPES.items():
        single = formula.single
        plain = single is not None and not single.function and word in GRIDS
        for view in () if plain else views:
            found = _met(place, formula, _of(formula, {view: short(view.array)}), word, view.text)
            if found is not None:
                return found
        told = _result(place, formula, word, short)
        if told is not None:
            return told
    return None


def _of(formula: Formula, arrays: Mapping[View, Floats]) -> Formula:
    """The same formula of other values."""
    terms = tuple(
        Term(tuple(_with(factor, arrays.get(factor.view)) for factor in term.factors), term.coefficient)
        for term in formula.terms
    )
    return Formula(terms, formula.outer)


def _with(factor: Factor, array: Optional[Floats]) -> Factor:
    return factor if array is None else replace(factor, view=replace(factor.view, array=np.asarray(array)))


def _result(place: Place, formula: Formula, word: str, short: Shorter) -> Optional[Suspect]:
    """All of it computed in the shorter type: the sum of values as they are, of rounded terms, or of rounded values."""
    shape = place.pair.expected.shape
    views = list(dict.fromkeys(factor.view for term in formula.terms for factor in term.factors))
    outer = FUNCTIONS[formula.outer]
    once = np.asarray(place.pair.expected, np.float64)
    for whole in (
        once,
        outer(np.add.reduce([np.broadcast_to(short(np.asarray(term())), shape) for term in formula.terms])),
        _of(formula, {view: short(view.array) for view in views})(shape),
    ):
        twice = whole is not once and word in GRIDS and _added(formula)
        made = np.broadcast_to(whole, shape)
        for result, what in ((short(np.asarray(made)), "..."), (made, ", ".join(view.text for view in views))):
            left = _left(place, np.asarray(result, np.float64))
            if left is not None:
                cause = "residual-add-precision" if twice and what == "..." else ""
                return _told(place, formula, word, what, left, cause)
    return None


def _added(formula: Formula) -> bool:
    """Whether it is a sum of values as they are."""
    plain = all(len(term.factors) == 1 and not term.factors[0].function for term in formula.terms)
    return plain and len(formula.terms) > 1 and not formula.outer


def _met(place: Place, formula: Formula, made: Formula, word: str, what: str) -> Optional[Suspect]:
    left = _left(place, made(place.pair.expected.shape))
    return None if left is None else _told(place, formula, word, what, left)


def _left(place: Place, whole: Floats) -> Optional[float]:
    left = distance(whole, np.asarray(place.pair.actual, np.float64))
    return left if left <= place.pair.limit and left * 8.0 <= place.pair.before else None


def _told(place: Place, formula: Formula, word: str, what: str, left: float, cause: str = "") -> Suspect:
    facts = {"dtype": word.split("(")[0], "reference_code": formula.text, "how": word}
    if cause:
        return place.pair.suspect(cause, left, 0.85, None, **facts)
    if what == "...":
        return place.pair.suspect("rounding-grid", left, 0.85, None, **facts)
    return place.pair.suspect("input-rounded", left, 0.85, None, other=what, **facts)
