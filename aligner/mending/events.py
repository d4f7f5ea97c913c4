"""What code did, on either side, in the same words: operations and calls of layers on values that have numbers."""

from __future__ import annotations

import ast
import math
from collections import ChainMap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Optional

from aligner.explain.line import Spot
from aligner.fingerprint import Fingerprint
from aligner.words.calls import Constant, Operand, Where

LAYER, RETURN, HELPER, KEPT = " layer", " return", " helper", " kept"
"""Words of events that are no operations: a call of a layer, a value that is returned, what a function of the user's
gives, a value that is put into a list, an object or another variable."""


class Site(NamedTuple):
    """Where in a file an event's expression stands."""

    file: str
    line: int
    column: int
    end_line: int
    end_column: int


@dataclass(eq=False)
class Event:
    """Something that was done.

    `node` is its expression in the port's source, `inputs` the expressions in it with their values, `arrays` those of
    them that are numpy's with their types, `names` what the code called its values there and `scope` what stands around
    it. Of the reference, `spot` is its line.
    """

    word: str
    operands: tuple[Operand, ...]
    results: tuple[int, ...]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    places: Mapping[str, Where] = field(default_factory=dict)
    name: str = ""
    layer: str = ""
    """The reference's layer that is called."""
    home: str = ""
    """The reference's layer whose code it is, where the port has no such layer."""
    site: Optional[Site] = None
    node: Optional[ast.AST] = None
    inputs: Sequence[tuple[ast.AST, Operand]] = ()
    arrays: Mapping[ast.AST, str] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)
    scope: Mapping[str, Any] = field(default_factory=dict)
    spot: Optional[Spot] = None
    began: int = 0
    """Of a function of the user's: how many events there were before its own."""
    part: bool = False
    """One of several things that an operation made: it has no expression of its own."""
    share: Optional[tuple[int, int, int]] = None
    """Of so many equal shares along an axis, which one it takes."""

    @property
    def text(self) -> str:
        """The reference's line."""
        return "" if self.spot is None else self.spot.text

    @property
    def known(self) -> Mapping[str, Any]:
        """All names that the code has there."""
        return ChainMap({**self.names}, {**self.scope})

    @property
    def is_over(self) -> bool:
        """Whether it has been: a call that is under way has no results yet."""
        return bool(self.results) or self.word == KEPT


@dataclass(eq=False)
class Story:
    """The events of one side, in their order, and its values by number."""

    values: list[Optional[Fingerprint]]
    events: list[Event]
    shapes: list[tuple[int, ...]]
    rough: set[int] = field(default_factory=set)
    """Values that fingerprints tell less of than of others: of a short type, or with numbers that count as their sign.
    """
    parts: dict[int, tuple[Fingerprint, ...]] = field(default_factory=dict)
    """Of the port's values, what the rows are that the reference takes out."""

    @property
    def lines(self) -> set[str]:
        """The reference's lines."""
        return {event.text for event in self.events if event.text}

    def forms(self, value: int) -> Sequence[Optional[Fingerprint]]:
        """A value as it is, and as the reference may have it."""
        return [self.values[value], *self.parts.get(value, ())]

    def number(self, value: int) -> Optional[float]:
        """A value that is one number."""
        known = self.values[value]
        return float(known.plain[0]) if known is not None and known.size == 1 else None

    def is_float(self, value: int) -> bool:
        """Whether it does not consist of whole numbers, as far as it is known."""
        known = self.values[value]
        return known is None or not known.whole

    def constant(self, value: int) -> Optional[Constant]:
        """One that is a number as people write it; what is worked out has more digits, and is a value like others."""
        number = self.number(value)
        return Constant(number) if number is not None and number == round(number, 2) else None


def makers(events: Sequence[Event]) -> dict[int, Event]:
    """What made a value first; what was there before (it came in, a step changed nothing) was made by nobody."""
    made: dict[int, Event] = {}
    seen: set[int] = set()
    for event in events:
        seen |= {value for value in event.operands if isinstance(value, int)}
        for value in event.results:
            if value not in seen:
                made.setdefault(value, event)
                seen.add(value)
    return made


def pieces(shapes: Sequence[tuple[int, ...]], axis: int, rank: int) -> list[tuple[Any, ...]]:
    """A split, a chunk or an unbind as slices, one for each piece."""
    found: list[tuple[Any, ...]] = []
    start, whole = 0, ((None, None, 1),) * axis
    total = sum(shape[axis] for shape in shapes) if len(shapes[0]) == rank else len(shapes)
    for shape in shapes:
        if len(shape) < rank:
            found.append((*whole, start))
            start += 1
            continue
        stop = start + shape[axis]
        found.append((*whole, (start or None, None if stop == total else stop, 1)))
        start = stop
    return found


SEGMENTS: Mapping[object, tuple[str, float]] = {
    "add": ("segment_sum", 0.0),
    "amax": ("segment_max", -math.inf),
    "amin": ("segment_min", math.inf),
}
"""What MindSpore does in one step, by how rows come together, and what they come together with."""

WIDENED = ("expand", "reshape", "getitem")
"""Steps that make rows of the numbers of one axis."""


def as_segments(event: Event, events: Sequence[Event], at: int, shapes: Sequence[tuple[int, ...]]) -> None:
    """Rows that are added into zeros are what MindSpore does in one step: a sum for each segment. So they are told, if
    one of the events before that place has made the zeros; the largest ones alike."""
    way = "add" if event.word == "index_add" else event.arguments.get("reduction") if event.word == "scatter" else None
    if way not in SEGMENTS or len(event.operands) != 3 or event.arguments.get("axis") != 0 or not event.results:
        return
    before = {value: one for one in events[:at] for value in one.results}
    into, index, rows = event.operands
    word, empty = SEGMENTS[way]
    filled = before.get(into) if isinstance(into, int) else None
    while isinstance(index, int) and len(shapes[index]) > 1 and index in before and before[index].word in WIDENED:
        index = before[index].operands[0]
    whole = isinstance(index, int) and isinstance(rows, int) and shapes[index] == shapes[rows][:1]
    if whole and filled is not None and filled.word == "fill" and filled.arguments.get("value") == empty:
        event.word, event.operands = word, (rows, index)
        event.arguments, event.places = {"n": shapes[event.results[0]][0]}, {}


CHOOSING = ("lt", "le", "gt", "ge", "eq", "ne", "and", "or", "xor", "not", "isnan", "isinf", "isfinite", "any", "all")
"""What makes true and false."""


def as_filled(event: Event, events: Sequence[Event], at: int, shapes: Sequence[tuple[int, ...]]) -> None:
    """`x[mask] = 0` is what other code says in one step, and so is it told; `x[mask] = y[mask]`, too. The mask is one
    if an event before that place has made it as such; of the first axes alone, each of its items is for all of a row.
    """
    if event.word != "setitem" or event.arguments.get("index") != ("tensor",) or len(event.operands) != 3:
        return
    into, mask, value = event.operands
    if not (isinstance(into, int) and isinstance(mask, int) and shapes[into][: len(shapes[mask])] == shapes[mask]):
        return
    rest = len(shapes[into]) - len(shapes[mask])
    more = {"rest": rest} if rest else {}
    chosen, taken = _maker(events, at, mask), _maker(events, at, value) if isinstance(value, int) else None
    if chosen is None or chosen.word not in CHOOSING:
        return
    if isinstance(value, Constant):
        event.word, event.operands, event.arguments = "masked_fill", (into, mask), {"value": value.value, **more}
    elif taken is not None and taken.word == "getitem" and taken.operands[1:] == (mask,):
        event.word, event.operands, event.arguments = "where", (mask, taken.operands[0], into), more


def _maker(events: Sequence[Event], at: int, value: int) -> Optional[Event]:
    """What has made a value last before that place."""
    return next((events[n] for n in range(at - 1, -1, -1) if value in events[n].results), None)


def values_of(event: Optional[Event]) -> list[int]:
    """The values that it works on."""
    return [] if event is None else [one for one in event.operands if isinstance(one, int)]


def is_idle(event: Event) -> bool:
    """Whether it gives what it was given: a condition that is never true looks so."""
    return event.word not in (RETURN, LAYER, HELPER) and bool({*event.results} & {*event.operands})
