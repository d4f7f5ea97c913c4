"""Where a value was made that is right and stands in the place of another.

Both sides' steps are followed upwards as long as they do the same; where they part is what there is to change.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Optional

from aligner.mending.anchor import Anchor
from aligner.mending.events import HELPER, KEPT, LAYER, RETURN, Event
from aligner.mending.matching import EARLY, Matching
from aligner.words.calls import same

FARTHEST, STARTS = 12, 64
"""Steps that are followed, and wrong steps that are begun from, the first ones."""

Maker = Callable[[int, Event], Optional[Event]]
Parting = tuple[Anchor, int]
"""An expression of the port, and the reference's value that it should have."""


def partings(matching: Matching) -> Iterator[Parting]:
    """What the wrong steps work on in place of something else, where it was made, one step or more above."""
    wrong = [event for _, event in matching.wrong[:STARTS] if event is not None]
    places = {event: number for number, event in enumerate(matching.heard)}
    made: dict[int, list[Event]] = {}
    for event in matching.heard:
        for value in event.results if event.word not in (RETURN, HELPER) else ():
            made.setdefault(value, []).append(event)
    maker, seen = partial(_maker, made, places), set[tuple[int, int]]()
    for number, event in enumerate(wrong):
        for _, model in matching.near:
            if model is None or model.word != event.word or len(model.operands) != len(event.operands):
                continue
            pairs = [pair for pair in zip(model.operands, event.operands) if not matching.match(*pair)]
            if len(pairs) == 1:
                for anchor, value in _above(matching, maker, *pairs[0], event, len(wrong) - number):
                    if (places[anchor.event], value) not in seen:
                        seen.add((places[anchor.event], value))
                        yield anchor, value


def other_steps(matching: Matching) -> Iterator[Event]:
    """What does another step on what the first lacking step is done on, and may by chance be right elsewhere."""
    lacking = [one for _, one in matching.near[:EARLY] if one is not None and one.operands and matching.has(one)]
    for event in matching.heard:
        if event.word not in (LAYER, HELPER, KEPT, RETURN) and not event.part and len(event.results) == 1:
            others = (one for one in lacking if one.word != event.word and len(one.operands) == len(event.operands))
            if any(all(map(matching.match, one.operands, event.operands)) for one in others):
                yield event


def _above(
    matching: Matching, maker: Maker, wanted: object, found: object, user: Event, late: int
) -> Iterator[Parting]:
    """The steps that made one value and the other, the last ones first."""
    for _ in range(FARTHEST):
        if not isinstance(wanted, int) or not isinstance(found, int):
            return
        model, made = matching.makers[0].get(wanted), maker(found, user)
        if model is None or made is None or len(made.results) != 1:
            return
        if isinstance(made.node, ast.expr) and not made.part:
            yield Anchor(made.node, found, made, late, made.inputs), wanted
        if model.word != made.word or model.word == LAYER or not same(model.arguments, made.arguments):
            return
        pairs = [pair for pair in zip(model.operands, made.operands) if not matching.match(*pair)]
        if len(pairs) != 1 or len(model.operands) != len(made.operands):
            return
        (wanted, found), user = pairs[0], made


def _maker(
    made: Mapping[int, Sequence[Event]], places: Mapping[Event, int], value: int, user: Event
) -> Optional[Event]:
    """What made a value that a step is given: of several that make the same, the last one before it."""
    end = places.get(user, 0)
    return next((one for one in reversed(made.get(value, ())) if places[one] < end), None)
