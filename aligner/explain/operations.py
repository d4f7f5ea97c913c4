"""Causes told from the operations that ran between two layers: functions whose defaults differ by framework, and what
ran on one side only, as evidence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from aligner.explain.case import Case
from aligner.explain.patterns.pair import usual
from aligner.explain.suspect import Suspect
from aligner.record import Scalar
from aligner.words import plain


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

MOST = 6
"""Names that are listed."""

TELLING = 2
"""So few operations on one side only tell more than that one ran which other mistakes are made with."""

BEFORE, SHOWN = 3, 10
"""Operations that are shown in their order: so many before the first that differs, and in all."""


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


def ran(case: Case) -> Iterator[Suspect]:
    """One, of what is computed on one side only; where that is nothing, that the mistake lies elsewhere."""
    if case.operations is None or not all(case.operations):
        return
    ours, theirs = ([word for name in names if (word := plain.plain(name))] for names in case.operations)
    missing, extra = plain.apart(ours, theirs)
    facts = usual(case)
    first = next((at for at, (one, other) in enumerate(zip(ours, theirs)) if one != other), min(len(ours), len(theirs)))
    facts.update(missing=_listed(missing) or "-", extra=_listed(extra) or "-")
    facts.update(ours=_shown(ours, first), theirs=_shown(theirs, first))
    if missing or extra:
        few = sum(missing.values()) + sum(extra.values()) <= TELLING
        yield Suspect("operations-differ", facts, weight=0.4 if few else 0.15)
    elif ours and theirs and case.between is not None and not case.between[0]:  # else it may be made before
        yield Suspect("operations-alike", facts, weight=0.1)


def _listed(counts: Counter[str]) -> str:
    names = [name if count == 1 else f"{name} x{count}" for name, count in sorted(counts.items())]
    return ", ".join(names[:MOST]) + (" ..." if len(names) > MOST else "")


def _shown(names: Sequence[str], first: int) -> str:
    """The operations in their order, around the first that differs."""
    start = max(0, min(first, len(names) - 1) - BEFORE)
    shown = ", ".join(names[start : start + SHOWN]) or "-"
    return f"{'..., ' if start else ''}{shown}{', ...' if start + SHOWN < len(names) else ''}"
