"""A call of a layer that lacks an argument, with it."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Optional

from aligner.mending.anchor import Anchor
from aligner.mending.candidate import MISSING, Candidate
from aligner.mending.events import Event
from aligner.mending.matching import Matching
from aligner.mending.results import kept
from aligner.mending.sources import Edit, Sources, edit_of
from aligner.mending.texts import Texts

FITTING = 12
"""Values of the code's that are tried as what a layer takes and is not given."""

KEPT = 4.5
"""What it costs to keep a result that the code throws away."""

_RESHAPED = re.compile(r"\.reshape\([^()]*\)$")


def lacking(
    matching: Matching, texts: Texts, sources: Sources, event: Event, slot: str, value: int, layer: Optional[object]
) -> Iterator[Candidate]:
    """The argument that the reference's call has in this slot; and what the port's `layer` takes besides, which may be
    the same in its own form: lengths, for a packed sequence.
    """
    name = slot.partition(".")[2]
    if not isinstance(event.node, ast.Call) or event.site is None:
        return
    with suppress(LookupError):
        text = texts.text(value, Anchor(event.node, None, event, 0, event.inputs))
        for number, said in enumerate(dict.fromkeys([_RESHAPED.sub("", text), text])):  # axes of one are anywhere
            yield from handed(sources, event, name, said, 2.0 + 0.1 * number)
    shapes, wanted = matching.theirs.shapes, matching.ours.shapes[value]
    for said in (said for said, its in texts.names(event) if shapes[its] == wanted):  # in a form of its own
        yield from handed(sources, event, name, said, 3.0)
    given = {keyword.arg for keyword in event.node.keywords}
    for parameter in (one for one in _taken(layer)[len(event.node.args) :] if one not in given):
        known = sorted(texts.names(event), key=lambda one: (one[0] != parameter, len(shapes[one[1]])))
        for late, (said, its) in enumerate(known[:FITTING]):
            content = matching.theirs.values[its]
            whole = content is not None and content.whole
            for text in (said, f"{said}.int()") if whole else (said,):
                yield from handed(sources, event, parameter, text, 4.0 + 0.1 * late)
    for edits in kept(sources, event.site.file, event.site.line):  # what it is given may be nothing in a first turn
        yield Candidate(KEPT, edits, MISSING, ())


def _taken(layer: Optional[object]) -> list[str]:
    """What a layer can be given by name."""
    code = getattr(type(layer), "construct", None) or getattr(type(layer), "forward", None)
    if code is None:
        return []
    named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return [name for name, one in inspect.signature(code).parameters.items() if one.kind in named][1:]


def handed(sources: Sources, event: Event, name: str, text: str, cost: float) -> Iterator[Candidate]:
    """A call with this argument."""
    if not isinstance(event.node, ast.Call) or event.site is None:
        return
    given = {keyword.arg: keyword.value for keyword in event.node.keywords}
    given.update((str(number), node) for number, node in enumerate(event.node.args))
    if name in given:  # None, or something else that is no value
        edit = edit_of(sources, event.site.file, given[name], text)
        yield from [Candidate(cost, (edit,), MISSING, ())] if edit is not None else []
        return
    end = sources.span(event.site.file, event.node)[1] - 1
    for said in (text,) if name == str(len(event.node.args)) else () if name.isdigit() else (f"{name}={text}",):
        comma = ", " if event.node.args or event.node.keywords else ""
        yield Candidate(cost, (Edit(event.site.file, end, end, f"{comma}{said}"),), MISSING, ())
