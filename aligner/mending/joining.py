"""Edits that go together by what they say: two in each other's places, and one made wherever the same stands."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from aligner.mending.candidate import EXCHANGE, EXCHANGED, Candidate
from aligner.mending.sources import Edit, Sources

_NAME = re.compile(r"[A-Za-z_]\w*")

PLACES, MORE, RUNS = 4, 0.5, 12
"""Places in which the same is changed, and what each costs after the first; of so many places neighbours are tried."""

NEAR, PARALLEL = 3, 60
"""Lines between statements that do the same to several things; edits of such that are thought of."""


EACH_OTHERS = 100
"""Edits of two places that are thought of."""


def with_others(found: Sequence[Candidate], sources: Sources) -> list[Candidate]:
    """These, and what goes with them."""
    parallel = islice(in_parallel(found, sources), PARALLEL)
    other = islice(each_others(found), EACH_OTHERS)
    return [*found, *everywhere(found), *alongside(found, sources), *parallel, *other]


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
    """The same name changed in the same way, or the same argument told, in all the places where that may be, or in
    neighbours."""
    known: dict[tuple[str, str, str], list[Candidate]] = {}
    for one in found:
        if len(one.edits) == 1 and (one.old.isidentifier() or (not one.old and one.edits[0].new.startswith(", "))):
            places = known.setdefault((one.edits[0].file, one.old, one.edits[0].new), [])
            places += [one] if all(other.edits != one.edits for other in places) else []
    for places in known.values():
        places.sort(key=lambda one: one.edits)
        runs = ((first, stop) for first in range(len(places)) for stop in range(first + 2, first + PLACES + 1))
        for first, stop in runs if len(places) <= RUNS else ():
            some = places[first:stop]
            edits = tuple(one.edits[0] for one in some)
            if stop <= len(places) and apart(edits):
                moves = tuple(move for one in some for move in one.moves)
                cost = min(one.cost for one in some) / len(some) + MORE * len(some) + MORE * (len(some) < len(places))
                yield replace(some[0], cost=cost, edits=edits, moves=moves, old="")


def alongside(found: Sequence[Candidate], sources: Sources) -> Iterator[Candidate]:
    """The same done to several things in one statement, whatever they are called: both signs of a shift, x and y."""
    known: dict[tuple[str, int, str, str], list[Candidate]] = {}
    for one in found:
        words = {*_NAME.findall(one.old)}
        if len(one.edits) == 1 and len(words) == 1:
            edit, name = one.edits[0], re.compile(rf"\b{words.pop()}\b")
            new = name.sub("_", edit.new)
            line = sources.text(edit.file).count("\n", 0, edit.start)
            places = known.setdefault((edit.file, line, name.sub("_", one.old), new), []) if new != edit.new else []
            places += [one] if all(other.edits != one.edits for other in places) else []
    for places in known.values():
        some = sorted(places, key=lambda one: one.edits)
        edits = tuple(one.edits[0] for one in some)
        if 1 < len(some) <= PLACES and apart(edits):
            yield replace(some[0], cost=min(one.cost for one in some) + MORE, edits=edits, old="")


def in_parallel(found: Sequence[Candidate], sources: Sources) -> Iterator[Candidate]:
    """The same done to the calls of statements near each other that are written alike: queries and keys."""
    known: dict[tuple[str, ...], list[tuple[int, Candidate]]] = {}
    for one in found:
        if len(one.edits) == 1 and one.old.endswith(")"):
            edit = one.edits[0]
            line = sources.text(edit.file).count("\n", 0, edit.start)
            known.setdefault((edit.file, *_nameless(one.old, edit.new)), []).append((line, one))
    for places in known.values():
        places.sort(key=lambda place: place[1].edits)
        for (line, one), (after, other) in zip(places, places[1:]):
            edits = (one.edits[0], other.edits[0])
            if line < after <= line + NEAR and one.old != other.old and apart(edits):
                yield replace(one, cost=min(one.cost, other.cost) + MORE, edits=edits, moves=(), old="")


def _nameless(*texts: str) -> tuple[str, ...]:
    """These with a number in the place of each name."""
    names = {name: f"_{at}" for at, name in enumerate(dict.fromkeys(_NAME.findall(" ".join(texts))))}
    return tuple(_NAME.sub(lambda word: names[word[0]], text) for text in texts)


def apart(edits: Sequence[Edit]) -> bool:
    """Whether no two of them, in their order, touch each other."""
    return all(one.end <= other.start or one.file != other.file for one, other in zip(edits, edits[1:]))
