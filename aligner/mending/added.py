"""A step that the reference takes, and the port nowhere on its way: done to what the wrong steps work on."""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Optional

from aligner.mending.candidate import MISSING, Candidate
from aligner.mending.events import HELPER, Event
from aligner.mending.matching import Matching, Step
from aligner.mending.search import Search
from aligner.mending.texts import Texts
from aligner.words.calls import Constant
from aligner.words.spelling import bracketed

SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**"}
"""How steps with a number are written."""

ALONE = {
    *(
        "relu",
        "gelu",
        "sigmoid",
        "tanh",
        "silu",
        "sqrt",
        "rsqrt",
        "exp",
        "expm1",
        "log",
        "log1p",
        "log2",
        "abs",
        "square",
    ),
    *("neg", "floor", "ceil", "round", "reciprocal", "sign", "cos", "sin", "erf", "not", "softplus", "softmax"),
    *("log_softmax", "cumsum", "clamp", "normalize"),
}
"""Words of steps that are done to one value, and leave its shape."""

LACKING, NUMBERED = 8, 5.0
"""First steps, of either side, of which each number is tried with each; and what that costs."""

STEPS, WORDS, NEVER, ADDED = 48, 4, 1.2, 3.5
"""Wrong steps that are tried with what the reference does more often, so many kinds of it; what that costs where the
port never does it, and where it does."""


def added(search: Search, matching: Matching, texts: Texts) -> Iterator[Candidate]:
    """What wrong steps are given with a number that the reference's first lacking ones take, or with a step that the
    reference takes more often than the port.
    """
    lacking = [event for _, event in matching.missing if event is not None]
    steps = [*dict.fromkeys(event for _, event in matching.wrong if event is not None and event.word != HELPER)]
    signs = [*dict.fromkeys(said for event in lacking[:LACKING] if (said := _number(event)))]
    for late, event in enumerate(steps[:LACKING]):
        for one in signs:
            for node in (node for node, value in event.inputs if isinstance(value, int)):
                edit = search.edit(event, node, f"({bracketed(texts.source(event, node))} {one[0]} {one[1]:.9g})")
                yield from [Candidate(NUMBERED + 0.1 * late, (edit,), MISSING, (), 9)] if edit is not None else []
    ours, theirs = _kinds(matching.missing), _kinds(matching.wrong)
    told = ((_kind(event), event) for event in reversed(lacking))
    models = {kind: event for kind, event in told if ours[kind] > theirs[kind]}
    kinds = sorted(models, key=lambda kind: (theirs[kind] > 0, kind[1] is not None))  # what it never does first
    places = {(event.site, event.word): event for event in reversed(steps)}
    for late, event in enumerate(itertools.islice(reversed([*places.values()]), STEPS)):
        for kind in kinds[:WORDS]:
            for node in (node for node, value in event.inputs if isinstance(value, int)):
                with suppress(LookupError):
                    edit = search.edit(event, node, _done(texts, event, node, models[kind]))
                    cost = (NEVER if not theirs[kind] and kind[1] is None else ADDED) + 0.01 * late
                    yield from [Candidate(cost, (edit,), MISSING, (), 9)] if edit is not None else []


def _done(texts: Texts, event: Event, node: ast.AST, model: Event) -> str:
    """The step on what stands there."""
    said, number = texts.source(event, node), _number(model)
    if number is None:
        return texts.operation(event, model.word, said, node, model.arguments)
    return f"({bracketed(said)} {number[0]} {number[1]:.9g})"


def _number(event: Event) -> Optional[tuple[str, float]]:
    """The sign and the number of a step that takes one."""
    if event.word in SIGNS and len(event.operands) > 1 and isinstance(number := event.operands[1], Constant):
        return SIGNS[event.word], number.value
    return None


def _kind(event: Event) -> tuple[str, object]:
    """What tells steps of one value apart; nothing of other steps."""
    return (event.word, _number(event)) if event.word in ALONE or _number(event) else ("", None)


def _kinds(steps: Iterable[Step]) -> Counter[tuple[str, object]]:
    return Counter(kind for _, event in steps if event is not None and (kind := _kind(event))[0])
