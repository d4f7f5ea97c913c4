"""Mistakes that people make in a formula: each an edit of it, with the cause's name and what to say of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Optional

import numpy as np

from aligner.explain.case import Value
from aligner.explain.glue.exchanged import instead
from aligner.explain.glue.formula import Factor, Formula, Term, plain
from aligner.explain.glue.functions import ACTIVATIONS, FUNCTIONS
from aligner.explain.glue.hand import name
from aligner.explain.glue.hopes import Hopes
from aligner.explain.glue.pool import Pool
from aligner.explain.glue.views import View
from aligner.explain.patterns.pair import Floats
from aligner.record import Scalar

_WRITTEN = {
    "GELU": "nn.GELU(approximate=False)",
    "GELU(tanh)": "nn.GELU(approximate=True)",
    "SiLU": "nn.SiLU()",
    "Hardswish": "nn.HSwish()",
}

NAMED = {
    ("GELU", "GELU(tanh)"): "gelu-approximate-default",
    ("GELU(tanh)", "GELU"): "gelu-new-vs-erf",
    ("GELU", "QuickGELU"): "quick-gelu-vs-gelu",
    ("QuickGELU", "GELU"): "quick-gelu-vs-gelu",
    ("Hardswish", "SiLU"): "hardswish-vs-swish",
    ("SiLU", "Hardswish"): "hardswish-vs-swish",
}
"""Activations (of reference and port) whose confusion has a name of its own."""

MASKS = ("!= 0", "== 0")

SINGLE = ("", "1 /", *MASKS)
GATES = (*SINGLE, *ACTIVATIONS)
"""What another value is multiplied as: one term, or all of them."""


@dataclass(frozen=True)
class Edit:
    """The formula that the mistake makes, and what the mistake is called."""

    formula: Formula
    cause: str
    facts: Mapping[str, Scalar]
    doubt: int = 0
    """The fewer, the likelier, where several edits give the same numbers."""


def edits(formula: Formula, pool: Pool, hopes: Hopes) -> Iterator[Optional[Edit]]:
    """Everything that one mistake makes of the formula; None for what cannot give the value."""
    yield from _outer(formula)
    for number, term in enumerate(formula.terms):
        rest = formula.terms[:number] + formula.terms[number + 1 :]
        if rest:
            yield Edit(
                Formula(rest, formula.outer),
                addend(term, "missing", pool.shape, len(formula.terms)),
                {"other": term.text},
            )
        for edit in _of_term(term, pool, [hopes.put(number, place) for place in range(len(term.factors))]):
            if edit is None:
                yield None
                continue
            terms = (*formula.terms[:number], edit[0], *formula.terms[number + 1 :])
            yield Edit(Formula(terms, formula.outer), edit[1], edit[2], edit[3])
    yield from _gates(formula)
    yield from _common(formula)
    yield from _unadded(formula, pool)
    yield from _added(formula)
    yield from _further(formula, pool, hopes)


def _further(formula: Formula, pool: Pool, hopes: Hopes) -> Iterator[Optional[Edit]]:
    """Another value added, taken off, or multiplied by."""
    added = {sign: hopes.added(sign) for sign in (1.0, -1.0)}
    gated = {function: hopes.gated(function) for function in GATES}
    one = range(len(formula.terms) if len(formula.terms) > 1 else 0)
    single = {(function, number): hopes.gated(function, number) for function in SINGLE for number in one}
    for index, view in enumerate(pool.views):
        if view.how not in ("", "chunk", "every", "slice"):
            continue
        for sign in (1.0, -1.0):
            term = plain(view, coefficient=sign)
            edit = Edit(Formula((*formula.terms, term), formula.outer), "addend-extra", {"other": term.text}, 2)
            yield edit if added[sign][index] else None
        for function in GATES:
            yield _gated(formula, view, function, None) if gated[function][index] else None
            for number in one if function in SINGLE else ():
                yield _gated(formula, view, function, number) if single[function, number][index] else None


def _gated(formula: Formula, view: View, function: str, number: Optional[int]) -> Edit:
    """All terms, or one of them, times another value."""
    gate = Factor(function, view)
    facts: dict[str, Scalar] = {"other": gate.text, "factor": gate.text, "setting": "mask", "port_value": gate.text}
    cause = "mask-extra" if masking(gate) else "scale-extra" if view.piece.rank == 2 else "gate-extra"
    terms = tuple(
        replace(term, factors=(*term.factors, gate)) if number in (None, at) else term
        for at, term in enumerate(formula.terms)
    )
    return Edit(Formula(terms, formula.outer), cause, facts, 3 if number is None else 4)


def addend(term: Term, what: str, shape: tuple[int, ...], terms: int = 0) -> str:
    """Whether a term is a shortcut or another addend, as a cause's id; what is broadcast is no shortcut."""
    view = term.factors[0].view
    shortcut = len(term.factors) == 1 and view.plain and view.piece.rank in (0, 1, 3) and view.array.shape == shape
    shortcut = shortcut and not view.piece.looked_up and (view.piece.rank != 1 or terms == 2)
    return f"{'residual' if shortcut else 'addend'}-{what}"


def _outer(formula: Formula) -> Iterator[Edit]:
    for function in ("", *ACTIVATIONS, "exp", "abs"):
        if function == formula.outer:
            continue
        cause, facts = changed(formula.outer, function)
        if not formula.outer and function in _single(formula):
            cause = "activation-twice"
        doubt = 0 if cause == "activation-twice" else 3 if _single(formula) - {""} or function in ("exp", "abs") else 1
        yield Edit(replace(formula, outer=function), cause, facts, doubt)
    if formula.outer:
        for number, term in enumerate(formula.terms):
            if len(formula.terms) > 1 and len(term.factors) == 1:
                yield from _early(formula, number)


COMPLEMENTS = {"": "1 -", "1 -": "", "Sigmoid": "1 - sigmoid", "1 - sigmoid": "Sigmoid"}


def _gates(formula: Formula) -> Iterator[Edit]:
    """A gate and one minus it exchanged, in a sum of two products."""
    if len(formula.terms) != 2 or any(len(term.factors) != 2 for term in formula.terms):
        return
    (one, first), (other, second) = (term.factors for term in formula.terms)
    if one.view is other.view and COMPLEMENTS.get(one.function) == other.function:
        terms = (Term((other, first)), Term((one, second)))
        yield Edit(Formula(terms), "gate-inverted", {"other": one.text, "instead": other.text})


def _added(formula: Formula) -> Iterator[Edit]:
    """Factors added instead of multiplied, and the other way round."""
    if len(formula.terms) == 1 and len(formula.terms[0].factors) == 2:
        one, other = formula.terms[0].factors
        facts: dict[str, Scalar] = {"reference_operation": "*", "port_operation": "+"}
        yield Edit(Formula((Term((one,)), Term((other,))), formula.outer), "operation-other", facts)
    if len(formula.terms) == 2 and all(len(term.factors) == 1 for term in formula.terms):
        first, second = (term.factors[0] for term in formula.terms)
        facts = {"reference_operation": "+", "port_operation": "*"}
        yield Edit(Formula((Term((first, second)),), formula.outer), "operation-other", facts)


def _unadded(formula: Formula, pool: Pool) -> Iterator[Edit]:
    """What was added to a value before it was split is left out, in all of its parts."""
    factors = [factor for term in formula.terms for factor in term.factors]
    added = next((factor.view.piece.added for factor in factors if factor.view.piece.added is not None), None)
    if added is None:
        return
    for left_out in (added, next(f.view.piece.value for f in factors if f.view.piece.added is not None)):
        found = {factor: view for factor in factors if (view := _alone(factor.view, left_out, pool)) is not None}
        if len(found) == len(set(factors)):
            terms = tuple(
                replace(term, factors=tuple(replace(f, view=found[f]) for f in term.factors)) for term in formula.terms
            )
            yield Edit(Formula(terms, formula.outer), "addend-missing", {"other": f"[{name(left_out)}]"})


def _alone(view: View, left_out: Value, pool: Pool) -> Optional[View]:
    """The same part of what else was added."""
    if view.piece.added is None:
        return view
    kept = view.piece.added if view.piece.value is left_out else view.piece.value
    for other in pool.views:
        if (
            other.piece.value is kept
            and other.piece.added is None
            and (other.how, other.detail) == (view.how, view.detail)
        ):
            return other
    return None


def _common(formula: Formula) -> Iterator[Edit]:
    """A factor of all terms left out."""
    if len(formula.terms) < 2 or any(len(term.factors) < 2 for term in formula.terms):
        return
    for factor in formula.terms[0].factors:
        if all(factor in term.factors for term in formula.terms):
            terms = tuple(replace(t, factors=tuple(f for f in t.factors if f != factor)) for t in formula.terms)
            facts: dict[str, Scalar] = {"other": factor.text, "factor": factor.text}
            yield Edit(Formula(terms, formula.outer), "gate-missing", facts)


def _single(formula: Formula) -> set[str]:
    """The function of a formula that is nothing else."""
    factors = formula.terms[0].factors
    return {factors[0].function} if len(formula.terms) == 1 and len(factors) == 1 else set()


def _early(formula: Formula, number: int) -> Iterator[Edit]:
    """The activation taken of one addend only, before the sum."""
    term = formula.terms[number]
    inner = replace(term, factors=(replace(term.factors[0], function=formula.outer),))
    terms = (*formula.terms[:number], inner, *formula.terms[number + 1 :])
    facts = {"other": formula.outer, "inner": inner.text}
    yield Edit(Formula(terms), "activation-before-sum", facts, 2)


def changed(old: str, new: str) -> tuple[str, Mapping[str, Scalar]]:
    """The cause's id and facts for one function in another's place."""
    facts: dict[str, Scalar] = {"reference_function": old or "identity", "port_function": new or "identity"}
    named = {old, new} - {""}
    if not named <= set(ACTIVATIONS):
        word = "extra" if not old else "missing" if not new else "other"
        return f"function-{word}", {**facts, "function": new or old}
    if not old or not new:
        return f"activation-{'extra' if new else 'missing'}", {**facts, "function": new or old}
    cause = NAMED.get((old, new))
    if cause is None:
        return "activation-other", facts
    facts.update(setting="activation", reference_value=old, port_value=new, written=_WRITTEN.get(old, old))
    return cause, {**facts, "kind": old, "port_kind": new}


Changed = tuple[Term, str, Mapping[str, Scalar], int]


def _of_term(term: Term, pool: Pool, put: list[Floats]) -> Iterator[Optional[Changed]]:
    if len(term.factors) > 1:
        yield from _without(term)
    for places in combinations(range(len(term.factors)), 2) if len(term.factors) <= 3 else ():
        yield from _exchanged(term, *places)
    for number, factor in enumerate(term.factors):
        for function in FUNCTIONS:
            if function != factor.function:
                new = replace(factor, function=function)
                cause, facts = changed(factor.function, function)
                doubt = 1 if {function, factor.function} - {""} <= set(ACTIVATIONS) else 2
                yield _with(term, number, new), cause, {**facts, "other": factor.view.text}, doubt
        for view, hope in zip(pool.views, put[number]):
            if view is not factor.view and not hope:
                yield None
            elif view is not factor.view:
                new = replace(factor, view=view)
                cause, facts, doubt = instead(factor.view, view)
                yield _with(term, number, new), cause, facts, doubt
    yield replace(term, coefficient=-term.coefficient), "addend-sign", {"other": Term(term.factors).text}, 0


def _with(term: Term, number: int, factor: Factor) -> Term:
    return replace(term, factors=(*term.factors[:number], factor, *term.factors[number + 1 :]))


def masking(factor: Factor) -> bool:
    """Whether a factor is zeros and ones."""
    few = factor.view.array.reshape(-1)[:4096]
    return factor.function in MASKS or (not factor.function and bool(np.isin(few, (0, 1)).all()))


def _without(term: Term) -> Iterator[Changed]:
    for number, factor in enumerate(term.factors):
        left = replace(term, factors=term.factors[:number] + term.factors[number + 1 :])
        cause = "scale-missing" if factor.view.piece.rank == 2 else "gate-missing"
        cause = "mask-missing" if masking(factor) else cause
        yield left, cause, {"other": factor.text, "factor": factor.text}, 0


def _exchanged(term: Term, first: int, second: int) -> Iterator[Changed]:
    one, other = term.factors[first], term.factors[second]
    if one.function == other.function:
        return
    swapped = list(term.factors)
    swapped[first], swapped[second] = replace(one, view=other.view), replace(other, view=one.view)
    halves = one.view.piece is other.view.piece and {one.view.how, other.view.how} <= {"chunk", "every"}
    facts = {"other": one.view.text, "instead": other.view.text}
    yield replace(term, factors=tuple(swapped)), "swiglu-chunk-order" if halves else "wrong-tensor", facts, 0
