"""Which operations ran between two layers on one side only: evidence where numbers prove nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from aligner.explain.case import Case
from aligner.explain.glue import vocabulary
from aligner.explain.patterns.pair import usual
from aligner.explain.suspect import Suspect

MOST = 6
"""Names that are listed."""

TELLING = 2
"""So few operations on one side only tell more than that one ran which other mistakes are made with."""

BEFORE, SHOWN = 3, 10
"""Operations that are shown in their order: so many before the first that differs, and in all."""


def suspects(case: Case) -> Iterator[Suspect]:
    """One, of what is computed on one side only; where that is nothing, that the mistake lies elsewhere."""
    if case.operations is None or not all(case.operations):
        return
    ours, theirs = ([word for name in names if (word := vocabulary.plain(name))] for names in case.operations)
    missing, extra = vocabulary.apart(ours, theirs)
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
