"""The reference's value as a formula of what was in hand, and the one mistake in it that gives the port's."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Optional

import numpy as np

from aligner.explain.case import Value, distance
from aligner.explain.glue import resizing
from aligner.explain.glue.edits import NAMED, Edit, changed, masking
from aligner.explain.glue.exchanged import TURNS, instead, ratio_turned
from aligner.explain.glue.formula import Factor, Formula, Term, plain
from aligner.explain.glue.functions import ACTIVATIONS, BACK
from aligner.explain.glue.hand import Hand, Piece, name
from aligner.explain.glue.mistakes import mistake
from aligner.explain.glue.place import TRIES, Place
from aligner.explain.glue.pool import POSITIONS, Pool, Search
from aligner.explain.glue.views import View, normed, parts, reduced, turned
from aligner.explain.patterns.pair import Floats, Pair, distinct, numbers, spots
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

FLAT = ("", "ReLU", "ReLU6", "Clamp(0, 1)", "Hardtanh")
"""What leaves the values in the middle as they are."""


def suspects(place: Place) -> Iterator[Suspect]:
    """The mistake, if the reference's or the port's value can be written as a formula."""
    constant = float(np.ptp(place.pair.expected)) == 0.0  # no formula: Softshrink makes zeros of all that is small
    reference = None if constant else solved(place, place.wanted, place.pair.expected)
    edit = reference and (passed_over(place, reference) or mistake(place, reference, port=False))
    if reference and not edit:
        for outer in _idle(place, reference):
            reference = replace(reference, outer=outer)
            edit = edit or mistake(place, reference, port=False)
    if reference and edit:
        yield _suspect(place, reference, refined(place, reference, edit), port=False)
        return
    ported = solved(place, place.found, place.pair.actual)
    left = distance(ported(place.pair.actual.shape), place.pair.actual) if ported else np.inf
    edit = mistake(place, ported, port=True) if ported and place.telling else None
    if ported and constant:
        number = f"full({float(place.pair.expected.flat[0]) + 0.0:g})"
        facts = {"other": number, "instead": ported.text, "reference_code": number, "port_code": ported.text}
        yield told(place.pair, "wrong-tensor", left, 0.9, facts)
    elif ported and edit:
        yield _suspect(place, ported, edit, port=True)
    elif ported and not reference and ported.single is not None and _made_by_another(place):
        other = f"[{name(place.case.expected)}]" if place.case.expected else ""
        facts = {"other": other, "instead": ported.text, "reference_code": other, "port_code": ported.text}
        yield told(place.pair, "wrong-tensor", left, 0.85, facts)
    elif reference and ported:
        codes = {"reference_code": reference.text, "port_code": ported.text}
        lacking = tuple(term for term in reference.terms if term not in ported.terms)
        whole = reference.outer == ported.outer and len(lacking) + len(ported.terms) == len(reference.terms)
        cause = "addend-missing" if whole else apart(reference, ported)
        yield told(place.pair, cause, left, 0.8, {**codes, "other": Formula(lacking).text})


def _made_by_another(place: Place) -> bool:
    """Whether what the reference has here is a layer's own output: the port called another in that one's place."""
    wanted = place.case.expected
    return wanted is not None and wanted.slot.startswith("output.") and wanted.layer != place.case.layer


def _idle(place: Place, formula: Formula) -> Iterator[str]:
    """What may have cut off values of the port and changed none of the reference's."""
    low, high = float(place.pair.expected.min()), float(place.pair.expected.max())
    low_port, high_port = float(place.pair.actual.min()), float(place.pair.actual.max())
    if not formula.outer and low >= 0.0 and high <= 1.0 and (low_port == 0.0 or high_port == 1.0):
        yield "Clamp(0, 1)"
    elif not formula.outer and low >= 0.0 and low_port == 0.0:
        yield "ReLU"


def refined(place: Place, formula: Formula, edit: Edit) -> Edit:
    """Another value in one's place, said closer: the same value turned otherwise, or a function not taken."""
    if edit.cause in ("scale-extra", "gate-extra"):
        return _taken_off(formula, edit)
    if edit.cause == "pad-differs":
        return _joined_to_zeros(place, edit)
    if edit.cause != "wrong-tensor" or edit.formula.outer != formula.outer:
        return edit
    pairs = [
        (one.view, other.view)
        for first, second in zip(formula.terms, edit.formula.terms)
        for one, other in zip(first.factors, second.factors)
        if one.view is not other.view
    ]
    if len(pairs) != 1 or len(formula.terms) != len(edit.formula.terms):
        return edit
    old, new = pairs[0]
    for view in _all_of(new.piece, place.pool.shape):
        if view.array.shape == old.array.shape and distance(view.array, old.array) <= place.pair.limit:
            cause, facts, _ = instead(view, new)
            return replace(edit, cause=cause, facts=facts)
    for word, function in ACTIVATIONS.items():
        for one, other, cause in ((new, old, "activation-missing"), (old, new, "activation-extra")):
            with np.errstate(all="ignore"):
                made = function(np.asarray(one.array, np.float64))
            if made.shape == other.array.shape and distance(made, other.array) <= place.pair.limit:
                return replace(edit, cause=cause, facts={**edit.facts, "function": word})
    return edit


def _all_of(piece: Piece, shape: tuple[int, ...]) -> Iterator[View]:
    """Everything that is made of one value by itself."""
    yield from turned(piece, shape)
    yield from parts(piece, shape)
    if piece.array.size > np.prod(shape):
        yield from reduced(piece, shape)
    elif piece.array.shape == shape:
        yield from normed(piece, shape)
    else:
        yield from resizing.views(piece, shape)


def _joined_to_zeros(place: Place, edit: Edit) -> Edit:
    """Zeros that stand on the other side are padding, or a value that a concatenation has in the wrong order."""
    sides = [re.findall(r"\((\d+), (\d+)\)", str(edit.facts[side])) for side in ("other", "instead")]
    apart = [(one, other) for one, other in zip(*sides) if one != other]
    turned_round = len(apart) == 1 and apart[0][0] == apart[0][1][::-1] and "0" in apart[0][0]
    if not turned_round or not all(str(edit.facts[side]).endswith("constant)") for side in ("other", "instead")):
        return edit
    axis = next(axis for axis, (one, other) in enumerate(zip(*sides)) if one != other)
    rank, many = place.pair.expected.ndim, 4 * max(map(int, apart[0][0])) >= place.pair.expected.shape[axis]
    ran = [[name.lower() for name in names] for names in place.case.operations or ()]
    padded = any("pad" in name for names in ran for name in names)
    joined = (
        all(any("cat" in name for name in names) for names in ran) if ran else many and axis in (1, min(rank, 3) - 1)
    )
    if padded or not joined:
        return edit
    return replace(edit, cause="concat-order", facts={**edit.facts, "axis": axis, "order": edit.facts["instead"]})


def _taken_off(formula: Formula, edit: Edit) -> Edit:
    """A single number that undoes the reference's factor is not multiplied by: the factor is forgotten."""
    for number, (old, new) in enumerate(zip(formula.terms, edit.formula.terms)):
        added = new.factors[-1]
        if len(new.factors) != len(old.factors) + 1 or added.view.array.size != 1 or abs(old.coefficient) == 1.0:
            continue
        rest = new.coefficient * float(added().reshape(-1)[0])
        if abs(abs(rest) - 1.0) < 1e-4:
            terms = (*edit.formula.terms[:number], Term(old.factors, np.sign(rest)), *edit.formula.terms[number + 1 :])
            facts: dict[str, Scalar] = {"other": old.text, "factor": f"{old.coefficient:.6g}"}
            return Edit(replace(edit.formula, terms=terms), "scale-missing", facts)
    return edit


def told(pair: Pair, cause: str, left: float, weight: float, facts: Mapping[str, Scalar]) -> Suspect:
    """A suspect with what is said of it."""
    return pair.suspect(cause, left, weight, None, **facts)


def passed_over(place: Place, reference: Formula) -> Optional[Edit]:
    """The port took what went into a layer, or into a function, for what came out of it."""
    single = reference.single
    if single is None or not single.view.plain or single.function:
        return None
    pair, known = place.pair, place.case.known
    for value in known:
        held = numbers(value) if value.shape == pair.actual.shape else None
        if held is None or pair.proved(held, pair.actual) is None:
            continue
        view = View(Piece(value, held, 3), "", "", f"[{name(value)}]", held)
        facts: dict[str, Scalar] = {"other": value.layer}
        for word, function in ACTIVATIONS.items() if distinct(place.wanted) > 1 else ():
            with np.errstate(all="ignore"):
                if pair.proved(function(np.asarray(held, np.float64)), pair.expected) is not None:
                    return Edit(Formula((plain(view),)), "activation-missing", {**facts, "function": word})
        made = [v for v in known if (v.layer, v.call) == (value.layer, value.call) and v.slot.startswith("output.")]
        if value.slot.startswith("input.") and any(_is(v, pair.expected) for v in made):
            return Edit(Formula((plain(view),)), "layer-skipped", facts)
    return None


def _is(value: Value, wanted: Floats) -> bool:
    held = numbers(value) if value.shape == wanted.shape else None
    return held is not None and bool(np.array_equal(held, wanted, equal_nan=True))


def apart(reference: Formula, ported: Formula) -> str:
    """What two formulas differ in, where that is more than one mistake."""
    parts = [f.view for formula in (reference, ported) for term in formula.terms for f in term.factors]
    if len({id(part.piece) for part in parts}) == 1 and {part.how for part in parts} <= {"chunk", "every"}:
        return "chunk-order"
    turned = [part.how in TURNS for part in parts]
    if any(turned) and _pieces(reference) == _pieces(ported) and all(part.plain or t for part, t in zip(parts, turned)):
        return "view-vs-transpose"
    return "expression-differs"


def _pieces(formula: Formula) -> list[list[tuple[str, int]]]:
    """What each term is of, whatever its order and form."""
    return sorted(sorted((f.function, id(f.view.piece)) for f in term.factors) for term in formula.terms)


def solved(place: Place, wanted: Floats, whole: Floats) -> Optional[Formula]:
    """A formula that gives the whole value."""
    for outer in _outers(wanted):
        with np.errstate(all="ignore"):
            inner = BACK[outer](wanted)
        noise = place.noise(inner, 1.0 if outer in FLAT else 10.0)
        search = Search(place.pool, inner, noise)
        found = search.terms(deep=outer in FLAT) if place.telling else search.single()
        for terms in islice(found, TRIES):
            formula = Formula(terms, outer)
            for tried in (formula, *_hidden(place, formula, wanted)):
                if place.gives(tried, whole):
                    return tried
    return None


def _hidden(place: Place, formula: Formula, wanted: Floats) -> Iterator[Formula]:
    """The formula under a mask: a search looks at what is not zero, and there a mask is one."""
    zero = wanted == 0.0
    if formula.outer or not zero.any() or not np.abs(place.pool.values(formula)[zero]).max() > 0.0:
        return
    for view in place.pool.views:
        mask = Factor("", view)
        if view.plain and masking(mask) and not place.pool.row(view)[zero].any():
            terms = tuple(replace(term, factors=(*term.factors, mask)) for term in formula.terms)
            yield replace(formula, terms=terms)


def simplest(hand: Hand, whole: Floats, limit: float) -> Optional[Formula]:
    """A formula of one or two values in hand that gives a value of any shape."""
    positions = spots(whole.size, POSITIONS)
    pool = Pool(hand, whole.shape, positions)
    wanted = np.asarray(whole[np.unravel_index(positions, whole.shape)], np.float64)
    scale = float(np.sqrt(np.nanmean(np.square(wanted))))
    noise = max(2e-5, 2.0 * limit) * (np.abs(wanted) + 0.02 * scale)
    for terms in islice(Search(pool, wanted, noise).terms(), TRIES):
        formula = Formula(terms)
        if distance(formula(whole.shape), whole) <= limit:
            return formula
    return None


def _outers(wanted: Floats) -> Iterator[str]:
    finite = wanted[np.isfinite(wanted)]
    if not finite.size:
        return
    low, high = float(finite.min()), float(finite.max())
    yield ""
    if low == 0.0:
        yield "ReLU"
        if high <= 6.0:
            yield "ReLU6"
    if low >= 0.0 and high <= 1.0 and (low == 0.0 or high == 1.0):
        yield "Clamp(0, 1)"
    if low >= -1.0 and high <= 1.0 and (low == -1.0 or high == 1.0):
        yield "Hardtanh"
    if low > 0.0:
        yield "Softplus"
    if low > 0.0 and high < 1.0:
        yield "Sigmoid"
    if -1.0 < low < 0.0 and high < 1.0:
        yield "Tanh"
    if -0.28 < low < 0.0:
        yield from ("GELU", "SiLU", "GELU(tanh)")
    if -1.0 < low < 0.0:
        yield "ELU"
    if leaks(finite):
        yield from ("LeakyReLU(0.01)", "LeakyReLU(0.1)", "LeakyReLU(0.2)")


def leaks(values: Floats) -> bool:
    """Whether what is below zero is much smaller than what is above, as behind a leaky ReLU."""
    below, above = values[values < 0], values[values > 0]
    return bool(below.size and above.size and np.median(-below) < 0.5 * np.median(above))


def _suspect(place: Place, formula: Formula, edit: Edit, port: bool) -> Suspect:
    reference, ported = (edit.formula, formula) if port else (formula, edit.formula)
    cause, facts = turned_round(edit) if port else (edit.cause, dict(edit.facts))
    left = distance(ported(place.pair.actual.shape), place.pair.actual)
    codes = {"reference_code": reference.text, "port_code": ported.text}
    return told(place.pair, cause, left, 0.9, {**facts, **codes})


_OPPOSITE = {
    "residual-missing": "addend-extra",
    "addend-missing": "addend-extra",
    "addend-extra": "addend-missing",
    "gate-missing": "gate-extra",
    "scale-missing": "scale-extra",
    "scale-extra": "scale-missing",
    "gate-extra": "gate-missing",
    "function-missing": "function-extra",
    "function-extra": "function-missing",
    "activation-missing": "activation-extra",
    "activation-extra": "activation-missing",
    "activation-twice": "activation-missing",
    "activation-before-sum": "expression-differs",
    "softmax-missing": "softmax-extra",
    "softmax-extra": "softmax-missing",
    "normalize-missing": "normalize-extra",
    "normalize-extra": "normalize-missing",
    "mask-missing": "mask-extra",
    "mask-extra": "mask-missing",
}


_SIDES = (
    ("other", "instead"),
    ("reference_function", "port_function"),
    ("reference_operation", "port_operation"),
)


def turned_round(edit: Edit) -> tuple[str, dict[str, Scalar]]:
    """The cause where the edit leads from the port's formula to the reference's."""
    facts = dict(edit.facts)
    if "ratio" in facts:
        return edit.cause, ratio_turned(facts)
    for one, other in _SIDES:
        if one in facts and other in facts:
            facts[one], facts[other] = facts[other], facts[one]
    function = facts.get("reference_function"), facts.get("port_function")
    if edit.cause in NAMED.values():
        again, told = changed(str(function[0]), str(function[1]))
        return again, {**facts, **told}
    return _OPPOSITE.get(edit.cause, edit.cause), facts
