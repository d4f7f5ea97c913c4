"""Causes told from a layer's numbers: what was given, what the reference made of it, what the port did.

Each rule is a hypothesis in numbers: what the mistake would make of the reference's data, set against what the port
made. A rule that fits has proved itself (`Suspect.error`); nothing that merely looks alike is told.
"""

from __future__ import annotations

from collections.abc import Iterator

from aligner.explain.case import Case
from aligner.explain.patterns.pair import Pair
from aligner.explain.patterns.relations import relations
from aligner.explain.suspect import Suspect


def suspects(case: Case) -> Iterator[Suspect]:
    """What the numbers of a wrong layer tell."""
    if case.where != "layer":
        return
    pair = Pair.of(case)
    if pair is not None:
        yield from relations(pair)
