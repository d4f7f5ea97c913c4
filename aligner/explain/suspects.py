"""All causes that fit a case, the likeliest first."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from importlib import import_module
from typing import Optional, cast

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
            found[suspect.name] = _joined(found.get(suspect.name), suspect)
    return sorted(_kind_proved([*found.values()]), key=lambda s: (_unproved(s, case), -s.weight))


def _joined(first: Optional[Suspect], other: Suspect) -> Suspect:
    """One of two rules' suspects for the same thing: settings say it best, numbers may have proved it."""
    if first is None:
        return other
    error = other.error if first.error is None else first.error
    return replace(first, facts={**other.facts, **first.facts}, error=error, weight=max(first.weight, other.weight))


OTHER_FUNCTION = {
    *("activation-other", "activation-missing", "pool-mean-or-max"),
    *("norm-mean-kept", "rmsnorm-written-as-layernorm"),
}
"""Causes with which numbers show that the port computes another function than the reference."""


def _kind_proved(found: list[Suspect]) -> list[Suspect]:
    """Another class of layer cannot be tried; but where it computes another function, that is the proof."""
    errors = [each.error for each in found if each.cause in OTHER_FUNCTION and each.error is not None]
    if not errors:
        return found
    return [replace(each, error=min(errors)) if each.cause == "kind-differs" else each for each in found]


def _unproved(suspect: Suspect, case: Case) -> bool:
    return suspect.error is None or suspect.error > case.rounding
