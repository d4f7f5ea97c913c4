"""Whole numbers that are the size of something: how many steps a cache has by now is no number that a call could be
given as it is. Where there may be none yet, what stands there holds.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any, Optional

from aligner.mending.candidate import ARGUMENT, Candidate
from aligner.mending.events import Event
from aligner.mending.sources import Edit, Sources, edit_of
from aligner.source.written import definition, optional
from aligner.words.spelling import bracketed, written

COST, FEW, DEEP = 0.3, 3, 2
"""What it costs more than the number; sizes that are tried for one; how deep what has them stands in lists."""

_RANGE = ("start", "end", "step")


def sizes(number: int, names: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What has this size, by name, and how that is written."""
    for name, value in names.items():
        for said, one in _within(name, value) if name != "self" and name.strip("_") else ():
            if number in (shape := tuple(one.shape)):
                yield name, f"{said}.shape[{shape.index(number)}]"


def _within(said: str, value: Any, deep: int = 0) -> Iterator[tuple[str, Any]]:
    if isinstance(getattr(value, "shape", None), tuple):
        yield said, value
    elif isinstance(value, (tuple, list)) and value and deep < DEEP:
        yield from _within(f"{said}[0]", value[0], deep + 1)
    elif isinstance(value, dict) and deep < DEEP:
        for key, item in islice(value.items(), FEW):
            yield from _within(f'{said}["{key}"]', item, deep + 1) if isinstance(key, str) else ()


def count(number: Any, names: Mapping[str, Any]) -> str:
    """How many there are of something: by its name, or by what has that many, along one axis and no other."""
    known = [name for name, one in names.items() if type(one) is int and one == number]
    said = [text for _, text in sizes(number, names)] if type(number) is int and number > 1 else []
    shapes = [[*one.shape] for name, value in names.items() for _, one in _within(name, value) if name != "self"]
    axes = {axis for shape in shapes for axis, size in enumerate(shape) if size == number}
    return known[0] if known else said[0] if said and len(axes) == 1 else written("end", number)


def by_size(one: Candidate, sources: Sources) -> Iterator[Candidate]:
    """A number that is written out, by what has this size."""
    if len(one.edits) != 1 or not one.moves:
        return
    (edit,), event = one.edits, one.moves[0][0]
    number = _number(edit.new)
    if number is not None and event.site is not None and event.site.file == edit.file:
        old = sources.text(edit.file)[edit.start : edit.end]
        for said in measured(number, event, old, sources):
            yield replace(one, cost=one.cost + COST, edits=(replace(edit, new=said),), old="")


def counted_on(event: Event, model: Event, sources: Sources) -> Iterator[tuple[list[Edit], str, None]]:
    """As many places as there are, counted from where the reference begins: `arange(n) + cache.shape[1]`."""
    if event.word != "arange" or model.word != "arange" or event.site is None or not isinstance(event.node, ast.expr):
        return
    ends = [one.arguments.get(key) for one in (model, event) for key in _RANGE]
    start, stop, step, begun, ended, by = (one if isinstance(one, int) else 0 for one in ends)
    if (stop - start, step) != (ended - begun, by):
        return
    old = sources.words(event.site.file, event.node)
    for said in measured(start - begun, event, "0", sources):
        edit = edit_of(sources, event.site.file, event.node, f"{bracketed(old)} + {bracketed(said)}")
        yield from [([edit], ARGUMENT, None)] if edit is not None else []


def measured(number: int, event: Event, old: str, sources: Sources) -> Iterator[str]:
    """Ways to write this number in the place of another one, which holds where what has the size may not be given.
    Nothing is written for a name: what it was given is wrong.
    """
    assert event.site is not None
    function = definition(sources.text(event.site.file), event.site.line)
    lacking = {name for name, default in optional(function) if default.value is None} if function is not None else ()
    for name, said in islice(sizes(number, event.names), FEW) if number > 1 and old.isdecimal() else ():
        yield f"{said} if {name} is not None else {old}" if name in lacking else said


def _number(text: str) -> Optional[int]:
    return int(text) if text.isdecimal() else None
