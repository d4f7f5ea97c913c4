"""Numbers that values are compared with. Wherever no value lies between two of them both make the same, so that a run
does not tell one from the other: only the reference says which it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from aligner.mending.candidate import Candidate
from aligner.mending.differing_numbers import numbers
from aligner.mending.events import Event, Story
from aligner.mending.sources import Edit, Sources

COMPARING = ("gt", "ge", "lt", "le", "eq", "ne")
"""Words of operations that compare."""

CHOOSING = (*COMPARING, "clamp", "where", "relu6", "hardtanh", "hardshrink", "softshrink", "threshold")
"""Those that may do so inside."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d*)?(?:e[-+]?\d+)?(?![\w.])")


def said(candidates: Iterable[Candidate], heard: Sequence[Event], story: Story, sources: Sources) -> list[Candidate]:
    """Those that compare with no number but what the port wrote or the reference compares with in this code."""
    places = {*_places(heard, sources)}
    events = [event for event in story.events if event.word in CHOOSING] if places else []
    known = {abs(number) for event in events for number in (*numbers(event), *_written(event.text))}
    return [one for one in candidates if not any(_is_unsaid(edit, places, known, sources) for edit in one.edits)]


def _places(heard: Sequence[Event], sources: Sources) -> Iterator[tuple[str, int, int]]:
    for event in heard:
        if event.word in COMPARING and event.site is not None and event.node is not None:
            yield (event.site.file, *sources.span(event.site.file, event.node))


def _is_unsaid(edit: Edit, places: Iterable[tuple[str, int, int]], known: set[float], sources: Sources) -> bool:
    if not any(file == edit.file and start <= edit.start and edit.end <= end for file, start, end in places):
        return False
    return bool({*_written(edit.new)} - known - {*_written(sources.words_at(edit))})


def _written(text: str) -> Iterator[float]:
    yield from (float(word) for word in _NUMBER.findall(text))
