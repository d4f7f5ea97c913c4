"""A mask that is forgotten: of those that the port's code has a name for, put to what wrong steps make."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator

import numpy as np

from aligner.mending.candidate import MISSING, Candidate
from aligner.mending.events import RETURN, Event
from aligner.mending.kinds import hides, is_mask
from aligner.mending.matching import Matching
from aligner.mending.search import Search
from aligner.mending.texts import Texts
from aligner.words.spelling import bracketed

HIDING = frozenset(("mul", "and", "where", "masked_fill"))
"""Words of steps that a mask is given to."""

STEPS, NAMES, KNOWN = 32, 3, 1.3
"""Wrong steps that are tried, the first and the last ones, with so many masks each, the latest ones; and what that
costs."""


def masked(search: Search, matching: Matching, texts: Texts) -> Iterator[Candidate]:
    """Where the reference gives a mask to a step that the port lacks."""
    lacking = (event for _, event in matching.missing if event is not None and event.word in HIDING)
    operands = (value for event in lacking for value in event.operands if isinstance(value, int) and value >= 0)
    if not any(hides(matching.ours.values[value]) for value in operands):
        return
    steps = _steps(matching)
    both = dict.fromkeys(itertools.chain.from_iterable(zip(steps, reversed(steps))))  # a loop may be most of the way
    for late, event in enumerate(itertools.islice(both, STEPS)):
        for more, name in enumerate(itertools.islice(_masks(event, matching, texts), NAMES)):
            sign = "&" if is_mask(matching.theirs.values[event.results[0]]) else "*"
            node = event.node
            assert node is not None  # as it was chosen
            edit = search.edit(event, node, f"({bracketed(texts.source(event, node))} {sign} {name})")
            if edit is not None:
                yield Candidate(KNOWN + 0.03 * late + 0.01 * more, (edit,), MISSING, (), 9)


def _steps(matching: Matching) -> list[Event]:
    """Expressions that make a wrong value, each once, or that are given one: of what is put together and taken apart
    again, only the parts are known to be wrong."""
    wrong, found = {value for value, _ in matching.wrong}, dict[object, Event]()
    for event in matching.heard:
        known = {*event.results, *(value for _, value in event.inputs)}
        if event.word != RETURN and event.results and isinstance(event.node, ast.expr) and wrong & known:
            found.setdefault((event.site, ast.dump(event.node)), event)
    return [*found.values()]


def _masks(event: Event, matching: Matching, texts: Texts) -> Iterator[str]:
    """Names of masks that say something of each number, or of as many at once, that a step makes."""
    shapes, values = matching.theirs.shapes, matching.theirs.values
    made = event.results[0]
    given = {*event.operands, made}
    for name, value in reversed([*texts.names(event)]):
        if name.isidentifier() and value not in given and hides(values[value]) and len(shapes[value]) > 1:
            try:
                if np.broadcast_shapes(shapes[value], shapes[made]) == tuple(shapes[made]):
                    yield name
            except ValueError:
                continue
