"""Causes told from the numbers between layers: what a parent's own code did wrong with right values in hand."""

from __future__ import annotations

from collections.abc import Iterator

from aligner.explain.case import Case
from aligner.explain.glue import attention, differences, formulas
from aligner.explain.glue.hand import Hand
from aligner.explain.glue.place import Place
from aligner.explain.patterns.pair import Pair
from aligner.explain.patterns.relations import relations
from aligner.explain.suspect import Suspect


def suspects(case: Case) -> Iterator[Suspect]:
    """The mistakes that numbers prove, else what they hint at; nothing for layers and parameters."""
    if case.where != "glue":
        return
    pair = Pair.of(case)
    if pair is None or (pair.alike and pair.before <= pair.limit / 20.0):
        return
    hand = Hand(case)
    if pair.alike:
        place = Place.of(case, pair, hand)
        proved = list(formulas.suspects(place)) or list(attention.suspects(case, pair, hand))
        proved = proved or list(differences.suspects(place))
        yield from proved
    yield from relations(pair)
