"""Plain numbers that steps of the port are given, and those that the reference gives to steps like them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Optional

from aligner.mending.events import Event
from aligner.words.calls import Constant, equal

ODD = 32
"""Steps that are given a number that the other side has nowhere."""

Steps = Sequence[tuple[int, Optional[Event]]]


class Figure(NamedTuple):
    """A wrong step, the reference's step like it that the port lacks, and numbers that these are given."""

    step: Event
    model: Event
    found: float
    wanted: float


def figures(wrong: Steps, missing: Steps, early: int, heard: Sequence[Sequence[Event]]) -> Sequence[Figure]:
    """Of the first steps that are wrong, and that lack; then of any, where each number is one that the other side has
    nowhere: between layouts that differ nothing else is known again. `heard` are all events of the port, and of the
    reference.
    """
    steps, models = ([one for _, one in side if one is not None] for side in (wrong, missing))
    theirs, ours = ({number for one in events for number in numbers(one)} for events in heard)
    odd = [one for one in steps if not ours.issuperset(numbers(one))][:ODD]
    lacking = [one for one in models if not theirs.issuperset(numbers(one))][:ODD]
    others = (one for one in _pairs(odd, lacking) if one.found not in ours and one.wanted not in theirs)
    return [*dict.fromkeys((*_pairs(steps[:early], models[:early]), *others))]


def _pairs(steps: Iterable[Event], models: Sequence[Event]) -> Iterator[Figure]:
    """Different numbers that two steps of one kind are given: as operands, or as the same argument."""
    for one, other in itertools.product(steps, models):
        if one.word == other.word:
            pairs: list[tuple[Any, Any]] = [
                (a.value, b.value) for a, b in itertools.product(*map(_constants, (one, other)))
            ]
            pairs += [(value, other.arguments.get(key)) for key, value in one.arguments.items()]
            pairs += _ends(one.arguments.get("index"), other.arguments.get("index"))
            plain = ((a, b) for a, b in pairs if _is_plain(a) and _is_plain(b) and not equal(a, b))
            yield from (Figure(one, other, a, b) for a, b in plain)


def _ends(one: object, other: object) -> Iterator[tuple[Any, Any]]:
    """The numbers of two indices of one form, each with the one in its place."""
    if isinstance(one, tuple) and isinstance(other, tuple) and len(one) == len(other):
        for here, there in zip(one, other):
            yield from _ends(here, there) if isinstance(here, tuple) else [(here, there)]


def numbers(event: Event) -> Iterator[float]:
    """The plain numbers that a step is given."""
    yield from (
        one for one in (*event.arguments.values(), *(each.value for each in _constants(event))) if _is_plain(one)
    )


def _constants(event: Event) -> list[Constant]:
    return [one for one in event.operands if isinstance(one, Constant)]


def _is_plain(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)
