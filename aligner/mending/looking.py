"""What is heard of a call with some edits, and the least edit that was found for it so far."""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from aligner.compare.checks import Check
from aligner.mending.candidate import Candidate
from aligner.mending.right import wrong_of
from aligner.mending.running import Parent
from aligner.mending.sources import Sources
from aligner.record import Key


class Best(NamedTuple):
    """An edit and what it costs, and what it leaves wrong."""

    price: float
    one: Candidate
    sources: Sources
    left: Collection[Key]


class Look:
    """What is heard of a call with some edits, its wrong values in the order of the run, and what is thought of."""

    def __init__(self, checks: list[Check], parent: Parent, sources: Sources) -> None:
        self.checks, self.parent, self.sources = checks, parent, sources
        self.heard, self.state = parent.heard(sources)
        at, last = self.state.at, len(self.heard.story.events)
        wrong = wrong_of(checks, self.state.errors)
        self.wrong = sorted(wrong, key=lambda check: at[check.port][0] if check.port in at else last)
        self.candidates: dict[Key, list[Candidate]] = {}
