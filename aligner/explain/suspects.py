"""All causes that fit a case, the likeliest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import cast

from aligner.explain.case import Case
from aligner.explain.suspect import Suspect

Rule = Callable[[Case], Iterable[Suspect]]

FAMILIES: tuple[str, ...] = ("parameters", "attributes", "patterns", "glue")
"""Modules and packages of this one, each with `suspects(case)`; each leaves alone what it is not made for."""


def suspects(case: Case) -> list[Suspect]:
    """What may have caused it: what numbers have proved already first, then by belief. None twice."""
    found: dict[str, Suspect] = {}
    for family in FAMILIES:
        rule = cast(Rule, import_module(f"aligner.explain.{family}").suspects)
        for suspect in rule(case):
            found.setdefault(suspect.name, suspect)
    return sorted(found.values(), key=lambda s: (_unproved(s, case), -s.weight))


def _unproved(suspect: Suspect, case: Case) -> bool:
    return suspect.error is None or suspect.error > case.rounding
