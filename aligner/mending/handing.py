"""A call of a layer that lacks an argument, with it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress

from aligner.mending.anchor import Anchor
from aligner.mending.candidate import MISSING, Candidate
from aligner.mending.events import Event
from aligner.mending.matching import Matching
from aligner.mending.sources import Edit, Sources, edit_of
from aligner.mending.texts import Texts

_RESHAPED = re.compile(r"\.reshape\([^()]*\)$")


def lacking(
    matching: Matching, texts: Texts, sources: Sources, event: Event, slot: str, value: int
) -> Iterator[Candidate]:
    """The argument that the reference's call has in this slot."""
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
