"""Two layers of a kind in each other's places, or one twice and the other never."""

from __future__ import annotations

import ast
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from aligner.mending.candidate import EXCHANGE, EXCHANGED, OTHER, Candidate
from aligner.mending.events import LAYER, Event
from aligner.mending.matching import Matching
from aligner.mending.sources import Sources, edit_of
from aligner.mending.texts import Texts

MOST = 6
"""Calls of layers that are exchanged, each with each."""


def exchanged_layers(matching: Matching, sources: Sources) -> Iterator[Candidate]:
    """Those that the wrong value comes of, with each other and with others of their kind."""
    behind = _behind(matching)
    alike = {event.name for event in behind}
    calls = [*behind, *(one for one in matching.theirs.events if one.name in alike and one not in behind)]
    calls = [event for event in calls if event.word == LAYER and isinstance(event.node, ast.Call)][:MOST]
    made = {event.layer: event.results[0] for event in matching.ours.events if event.layer and event.results}
    for one, other in itertools.combinations(calls, 2):
        if one.name != other.name or one.site is None or other.site is None or not {one.layer, other.layer} <= {*made}:
            continue
        functions = [event.node.func for event in (one, other) if isinstance(event.node, ast.Call)]
        files = one.site.file, other.site.file
        texts = [sources.words(file, node) for file, node in zip(files, functions)]
        edits = [edit_of(sources, *each) for each in zip(files, functions, texts[::-1])]
        if None not in edits:
            moves = (one, None, made[other.layer], None), (other, None, made[one.layer], None)
            yield Candidate(EXCHANGE, tuple(edit for edit in edits if edit is not None), EXCHANGED, moves)


def forgotten_layers(matching: Matching, texts: Texts, sources: Sources) -> Iterator[Candidate]:
    """One that the reference calls and the port never does, in the place of each that the port calls once more."""
    ours, theirs = ([one for one in side.events if one.word == LAYER] for side in (matching.ours, matching.theirs))
    due, often = (Counter(one.layer for one in side) for side in (ours, theirs))
    missing = {one.layer: one for _, one in matching.missing if one is not None and one.word == LAYER}
    for layer, event in missing.items():
        size = math.prod(matching.ours.shapes[event.results[0]])
        often_so = (one for one in theirs if often[one.layer] > due[one.layer] and isinstance(one.node, ast.Call))
        alike = (one for one in often_so if one.results and math.prod(matching.theirs.shapes[one.results[0]]) == size)
        for call in itertools.islice(alike, MOST) if layer not in often else ():
            with suppress(LookupError):
                said = texts.called(call, layer)
                function = call.node.func if isinstance(call.node, ast.Call) else None
                edit = edit_of(sources, call.site.file, function, said) if call.site and function else None
                moves = ((call, None, event.results[0], None),)
                yield from [] if edit is None else [Candidate(EXCHANGE, (edit,), OTHER, moves)]


def _behind(matching: Matching) -> list[Event]:
    """Calls of layers that the wrong value comes of."""
    found: list[Event] = []
    left, seen = [matching.found], set[int]()
    while left:
        value = left.pop()
        made = matching.makers[1].get(value)
        if value in seen or made is None:
            continue
        seen.add(value)
        if made.word == LAYER:
            found.append(made)
        else:
            left += [one for one in made.operands if isinstance(one, int)]
    return found
