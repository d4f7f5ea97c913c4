"""All causes that fit a case, the likeliest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from importlib import import_module
from typing import Optional, cast

import numpy as np

from aligner.explain.case import Case
from aligner.explain.inquiry import WHOLE, Inquiry, held
from aligner.explain.sample import LOCAL, sampled
from aligner.explain.suspect import Suspect
from aligner.record import LayerSpec
from aligner.vocabulary import told_as

Rule = Callable[[Case], Iterable[Suspect]]

SETTINGS: tuple[str, ...] = ("arguments", "parameters", "attributes", "kinds", "code")
"""Modules that look at settings, parameters and what ran."""

NUMBERS: tuple[str, ...] = ("patterns", "guesses", "inputs")
"""Packages that look into the tensors, which takes longer."""


def suspects(case: Case, thorough: bool = True, inquiry: Optional[Inquiry] = None) -> list[Suspect]:
    """What may have caused it: what numbers have proved already first, then by belief. None twice.

    Each family has `suspects(case)` and leaves alone what it is not made for. `inquiry` bounds those that look into
    the tensors, and knows afterwards what was not asked.
    """
    found: dict[str, Suspect] = {}
    inquiry, told_so = inquiry or Inquiry(), told_as(case.reference.kind, case.reference.attributes, case.port.kind)
    case = case if told_so is None else replace(case, reference=LayerSpec(case.port.kind, told_so))
    with np.errstate(all="ignore"), held(inquiry):  # what overflows fits nothing
        for suspect in (*_asked(SETTINGS, case), *(_of_numbers(case, inquiry) if thorough else ())):
            told = _in_full_precision(case, suspect)
            found[told.name] = _joined(found.get(told.name), told)
    return sorted(
        _tried_by_kind([*found.values()]), key=lambda s: (not _is_overflow(s, case), _unproved(s, case), -s.weight)
    )


def _asked(families: Iterable[str], case: Case) -> Iterator[Suspect]:
    for family in families:
        yield from cast(Rule, import_module(f"aligner.explain.{family}").suspects)(case)


def _of_numbers(case: Case, inquiry: Inquiry) -> Iterator[Suspect]:
    """What the tensors tell, or part of them where they are too large."""
    sample = sampled(case)
    if sample is None:
        yield from _asked(NUMBERS, case)
        return
    inquiry.leave_out(WHOLE)
    with inquiry.narrowed(None if sample.items else LOCAL):
        yield from map(sample.told, _asked(NUMBERS, sample.case))


def _joined(first: Optional[Suspect], other: Suspect) -> Suspect:
    """One of two rules' suspects for the same thing: settings say it best, numbers may have proved it."""
    if first is None:
        return other
    error = other.error if first.error is None else first.error
    return replace(first, facts={**other.facts, **first.facts}, error=error, weight=max(first.weight, other.weight))


OVERFLOW = "float16-overflow"

PRECISION = {
    *("rounding-grid", "dtype-differs", "mixed-precision-rounding-signature", "bf16-output-rounding"),
    *("amp-levels-norm-dtype", "layernorm-fp16-variance-overflow", "layernorm-fp16-eps-underflow", "loss-in-fp16"),
    OVERFLOW,
}
"""Causes that a copy of the layer proves by computing in the reference's type."""


IN_SHORT = "short-float-operations"
"""The cause that the same code in float32 proves: then no other way of computing is to blame."""


def tried_as(suspect: Suspect, case: Case) -> str:
    """The name under which its trial is kept: code in two places of one parent is tried for each."""
    glue = suspect.cause == IN_SHORT and case.where == "glue"
    return suspect.name if not glue else f"{suspect.name} {case.slot} {case.between}"


ROUNDED = {
    *(IN_SHORT, OVERFLOW, "overflow", "rounding-grid", "ascend-matmul-precision-mode"),
}
"""What a short type does, said of code between layers."""


def _in_full_precision(case: Case, suspect: Suspect) -> Suspect:
    if suspect.cause not in PRECISION or case.where != "layer" or case.expected is None:
        return suspect
    return replace(suspect, dtype=case.expected.dtype)


OTHER_FUNCTION = {
    *("activation-other", "activation-missing", "pool-mean-or-max", "hardsigmoid-keras-formula"),
    *("norm-mean-kept", "rmsnorm-written-as-layernorm", "quick-gelu-vs-gelu"),
}
"""Causes with which numbers show that the port computes another function than the reference."""


def _tried_by_kind(found: list[Suspect]) -> list[Suspect]:
    """Numbers that show which other function the port's layer computes, tried with the reference's in its place."""
    built = next((each.built for each in found if each.built), "")
    told = {each.cause for each in found if each.cause in OTHER_FUNCTION and each.error is not None}
    return [replace(each, built=built) if each.cause in told else each for each in found]


def _is_overflow(suspect: Suspect, case: Case) -> bool:
    """What of a short type matters where a layer's values are not finite; that it is short is proved as well."""
    return suspect.cause == OVERFLOW and case.where == "layer"


def _unproved(suspect: Suspect, case: Case) -> bool:
    return suspect.error is None or suspect.error > case.rounding
