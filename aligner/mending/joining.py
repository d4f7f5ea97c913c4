"""Edits that go together by what they say: two in each other's places, and one made wherever the same stands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from aligner.mending.candidate import EXCHANGE, EXCHANGED, Candidate
from aligner.mending.sources import Edit

PLACES, MORE = 4, 0.5
"""Places in which the same is changed, and what each costs after the first."""


def each_others(found: Sequence[Candidate]) -> Iterator[Candidate]:
    """Two places that get what stands in the other: alone, either makes it worse."""
    known: dict[tuple[str, str], list[Candidate]] = {}
    for one in sorted(found, key=lambda one: one.cost):
        if len(one.edits) == 1 and one.old:
            edit = one.edits[0]
            for other in known.get((edit.new, one.old), ())[:1]:
                edits = tuple(sorted((edit, other.edits[0])))
                if apart(edits):
                    moves = (*other.moves, *one.moves)
                    yield replace(one, cost=EXCHANGE + one.cost / 4, edits=edits, why=EXCHANGED, moves=moves, old="")
            known.setdefault((one.old, edit.new), []).append(one)


def everywhere(found: Sequence[Candidate]) -> Iterator[Candidate]:
    """The same name, or number, changed in the same way in all the places where that may be."""
    known: dict[tuple[str, str, str], list[Candidate]] = {}
    for one in found:
        if len(one.edits) == 1 and one.old.isidentifier():
            places = known.setdefault((one.edits[0].file, one.old, one.edits[0].new), [])
            places += [one] if all(other.edits != one.edits for other in places) else []
    for places in known.values():
        if 1 < len(places) <= PLACES:
            edits = tuple(sorted(one.edits[0] for one in places))
            moves = tuple(move for one in places for move in one.moves)
            cost = min(one.cost for one in places) / len(places) + MORE * len(places)
            if apart(edits):
                yield replace(places[0], cost=cost, edits=edits, moves=moves, old="")


def apart(edits: Sequence[Edit]) -> bool:
    """Whether no two of them, in their order, touch each other."""
    return all(one.end <= other.start or one.file != other.file for one, other in zip(edits, edits[1:]))
