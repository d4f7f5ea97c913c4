"""The one mistake in a formula that makes another value of it: an edit that gives it, or another number in front."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Optional

import numpy as np

from aligner.explain.glue.edits import Edit, edits
from aligner.explain.glue.formula import Formula, Term
from aligner.explain.glue.functions import BACK
from aligner.explain.glue.hopes import FITTING, Hopes
from aligner.explain.glue.place import TRIES, Place
from aligner.explain.inquiry import spend
from aligner.explain.patterns.pair import Floats
from aligner.explain.patterns.scales import name_of
from aligner.record import Scalar

AT_ONCE = 8
"""Edits that are counted together: to look at a few elements costs less than to ask a question of a value."""


def mistake(place: Place, formula: Formula, port: bool) -> Optional[Edit]:
    """The edit of the formula, which is the port's or the reference's, that gives the other side's value."""
    wanted, whole = (place.wanted, place.pair.expected) if port else (place.found, place.pair.actual)
    noise = place.noise(wanted, 2.0)
    fitting = []
    with np.errstate(all="ignore"):
        for number, edit in enumerate(edits(formula, place.pool, Hopes(formula, place.pool, wanted, noise))):
            if number % AT_ONCE == 0:
                spend(AT_ONCE * wanted.size)
            if edit is None:
                continue
            near = np.abs(place.pool.values(edit.formula) - wanted) <= noise
            if near.mean() > FITTING:
                fitting.append(edit)
        for edit in sorted(fitting, key=lambda e: e.doubt)[:TRIES]:
            if place.gives(edit.formula, whole):
                return edit
        return _rescaled(place, formula, wanted, whole, port) if place.telling else None


def _rescaled(place: Place, formula: Formula, wanted: Floats, whole: Floats, port: bool) -> Optional[Edit]:
    """One term, or all of them, times another number."""
    groups: list[tuple[int, ...]] = [(number,) for number in range(len(formula.terms))]
    if len(formula.terms) > 1:
        groups.append(tuple(range(len(formula.terms))))
    for which in groups:
        chosen = tuple(formula.terms[n] for n in which)
        rest = tuple(term for n, term in enumerate(formula.terms) if n not in which)
        own = place.pool.values(Formula(chosen))
        asked = BACK[formula.outer](wanted) - (place.pool.values(Formula(rest)) if rest else 0.0)
        good = np.isfinite(asked) & np.isfinite(own)
        weight = float(np.square(own[good]).sum())
        factor = float((own[good] * asked[good]).sum() / weight) if weight else 0.0
        scaled = tuple(Term(term.factors, factor * term.coefficient) for term in chosen)
        edited = Formula((*rest, *scaled), formula.outer)
        if abs(factor) > 1e-6 and place.gives(edited, whole):
            ratio = 1.0 / factor if port else factor
            text = Formula(tuple(Term(t.factors, np.sign(t.coefficient)) for t in chosen)).text
            facts: dict[str, Scalar] = {"other": text, "ratio": _named(place, ratio)}
            facts["factor"] = _named(place, 1.0 / ratio)
            return Edit(edited, _scale(ratio, chosen, factor, bool(rest), port), {**facts, **_sides(facts)})
    return None


def _sides(facts: Mapping[str, Scalar]) -> dict[str, Scalar]:
    return {"setting": "factor", "reference_value": facts["factor"], "port_value": "1"}


def _scale(ratio: float, terms: tuple[Term, ...], factor: float, some: bool, port: bool) -> str:
    """The cause of another number in front of one term or of all: forgotten, applied in vain, or another."""
    if abs(ratio + 1.0) < 1e-5:
        return "addend-sign" if some else "sign-flipped"
    before, after = terms[0].coefficient, factor * terms[0].coefficient
    reference, ported = (after, before) if port else (before, after)
    if abs(abs(ported) - 1.0) < 1e-4:
        return "scale-missing"
    return (
        "addend-scaled" if some and abs(abs(reference) - 1.0) < 1e-4 else "scale-missing" if not some else "scale-other"
    )


def _named(place: Place, ratio: float) -> str:
    known = name_of(ratio, _sizes(place))
    return f"{ratio:.6g}" + (f" = {known}" if known else "")


def _sizes(place: Place) -> tuple[int, ...]:
    values = [v for v in (place.case.expected, *place.case.known[-12:]) if v is not None]
    return tuple(dict.fromkeys(size for value in values for size in value.shape))
