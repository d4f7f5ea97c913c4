"""The line that differs as a cause: what the port's code does there, and the reference's in its place."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Optional

from aligner.explain.case import Case
from aligner.explain.line import ARGUMENT, ELSEWHERE, EXTRA, GIVEN, HANDED, MISSING, OPERAND, OTHER, Spot
from aligner.explain.patterns.pair import usual
from aligner.explain.suspect import Suspect

CAUSES: Mapping[str, str] = {
    OTHER: "line-differs",
    ARGUMENT: "line-argument",
    OPERAND: "line-operand",
    GIVEN: "line-operand",
    ELSEWHERE: "line-operand",
    HANDED: "line-operand",
    MISSING: "line-missing",
    EXTRA: "line-extra",
}

EDITED = "code-edit"
"""The cause where the code was run with other lines and came out right: the edit says what is to be done."""

FRAMEWORK = "framework-differs"
"""The cause where an operation of the framework's makes another value of the same."""

WEIGHT = 0.8
"""Fingerprints tell values apart; that a line which makes another value is the mistake is nearly sure."""


def suspects(case: Case) -> Iterator[Suspect]:
    """One, where the line is known; that it lies between two lines names no cause."""
    fork = case.fork()
    if fork is None or not fork.sure:
        return
    facts = usual(case)
    ours, theirs = fork.arguments or ("", "")
    facts.update(reference_line=_name(fork.reference), port_line=_name(fork.port), ours=ours, theirs=theirs)
    facts.update(reference_code=_code(fork.reference), port_code=_code(fork.port))
    facts.update(operation=_operation(fork.reference), port_operation=_operation(fork.port))
    yield Suspect(CAUSES[fork.kind], facts, weight=WEIGHT)


def _name(spot: Optional[Spot]) -> str:
    return "-" if spot is None else f"{os.path.basename(spot.file)}:{spot.line}"


def _code(spot: Optional[Spot]) -> str:
    return "-" if spot is None else spot.text


def _operation(spot: Optional[Spot]) -> str:
    return "-" if spot is None else spot.operation
