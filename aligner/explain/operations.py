"""Causes told from the operations that ran between two layers: functions whose defaults differ by framework."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from aligner.explain.case import Case
from aligner.explain.suspect import Suspect
from aligner.record import Scalar


class Trap(NamedTuple):
    """A port that calls `port` where the reference calls `reference` (any operation, where that is empty)."""

    cause: str
    reference: tuple[str, ...]
    port: tuple[str, ...]


TRAPS: tuple[Trap, ...] = (
    Trap("l2normalize-eps-axis", (), ("l2normalize",)),
    Trap("resize-bilinear-half-pixel", ("interpolate", "upsamplebilinear"), ("resizebilinear",)),
    Trap("interpolate-nearest-noninteger", ("interpolate", "upsamplenearest"), ("resizenearest",)),
    Trap("grid-sample-align-corners", ("gridsample",), ("gridsample",)),
    Trap("split-size-vs-num", ("split",), ("split",)),
)
"""Names in small letters without underscores; a longer name that begins so is meant too."""

OF_SHAPES = {"split-size-vs-num"}
"""These make other shapes: values of the same shape speak against them."""

WEIGHT = 0.35
"""That such an operation ran is no more than a hint."""


DROPS = ("dropout",)
"""A dropout that is a layer runs no operation in evaluation, and a function that is told so none that matters."""

LIKELY = 0.45


def suspects(case: Case, facts: dict[str, Scalar]) -> Iterator[Suspect]:
    """For code between layers whose operations are known; `facts` are those that every suspect has."""
    if case.operations is None:
        return
    ours, theirs = ([_plain(name) for name in names] for names in case.operations)
    for trap in TRAPS:
        if trap.cause in OF_SHAPES and case.expected and case.actual and case.expected.shape == case.actual.shape:
            continue
        if _runs(ours, trap.reference) and _runs(theirs, trap.port):
            yield Suspect(trap.cause, facts, weight=WEIGHT)
    if _runs(theirs, DROPS) and not _runs(ours, DROPS) and not case.training:
        yield Suspect("dropout-active", facts, weight=LIKELY)


def _plain(name: str) -> str:
    return name.rpartition(".")[2].replace("_", "").lower()


def _runs(names: list[str], wanted: tuple[str, ...]) -> bool:
    return not wanted or any(name.startswith(wanted) for name in names)
