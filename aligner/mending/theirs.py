"""The reference's events of one call of a layer, out of its dump: its own code's steps, the layers that it calls."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.along import Row, Single
from aligner.compare.hot import Chosen, Hot
from aligner.compare.net import CallId, ancestors, is_input
from aligner.compare.padded import Padded
from aligner.compare.reduced import Reduced, Scaled
from aligner.compare.selected import Selected
from aligner.compare.tables import Table
from aligner.compare.worded import Axed, Worded
from aligner.explain.trail import EQUAL, Step, Trail
from aligner.findings import CODE
from aligner.fingerprint import LARGEST, Fingerprint, apart, fingerprint
from aligner.mending.events import LAYER, Event, Story, as_filled, as_segments, pieces
from aligner.record import Call, Key, Phase
from aligner.words.calls import Operand, Taken, numbered, operation, parsed
from aligner.words.lists import listed
from aligner.words.operations import INVISIBLE, QUESTIONS, bare

if TYPE_CHECKING:
    from aligner.dump.reader import Dump
    from aligner.mending.ground import Plan

NEAR = 1000.0
"""Equal values are of one size, to about a thousandth."""


TAKEN = "taken"
"""What the port keeps of a table, taken from what the reference keeps: no step of anybody's."""


class Theirs:
    """The stories of a reference's layers."""

    def __init__(self, reference: Dump, plan: Plan, called: Collection[str]) -> None:
        """`called` are the port's layers that it calls. Those that it has and never calls are layers all the same: an
        edit may call them; not those of which it calls what is inside, in a method of theirs."""
        self._reference, self._counterparts = reference, {*plan.calls.values()}
        self._layers = {call.layer for call in self._counterparts}
        around = {one for layer in called for one in ancestors(layer)}
        self._layers |= {ours for theirs, ours in plan.layers.items() if theirs not in {*called, *around}}
        self._made: dict[CallId, set[object]] = {}
        """What the port's counterpart of a call makes, as far as the reference's call makes it."""
        for key, entry in plan.entries.items():
            ours = plan.calls.get(CallId(key.layer, key.call))
            if ours is not None and key.phase is Phase.FORWARD and not is_input(key.slot):
                self._made.setdefault(ours, set()).update((entry.key, entry.content))
        self._trails = {
            (str(facts.get("layer")), facts.get("call", 0)): facts for kind, facts in reference.findings if kind == CODE
        }
        self._alike: dict[Story, dict[tuple[tuple[int, ...], int], list[int]]] = {}
        """Values of each story by their shape and about their size, so that few are looked at."""
        self._calls = sorted((c for c in reference.calls if c.phase is Phase.FORWARD), key=lambda call: call.first)

    def call(self, step: int, wanted: Optional[CallId]) -> Optional[Call]:
        """One of the reference's calls."""
        return next((one for one in self._calls if (one.step, one.layer, one.number) == (step, *(wanted or ()))), None)

    def story(self, call: Call) -> Story:
        """What happened in this call, as far as its code was followed: a layer's first calls are."""
        story = Story([], [], [])
        if (call.layer, call.number) in self._trails:
            story.events += self._steps(story, call)
        for inner in self._inside(call):
            self._add(story, inner)
        if not story.events:
            self._as_operation(story, call)
        story.events = _in_order(story.events, {*self._ends(story, call)[0]})
        for at, one in enumerate(story.events):
            as_segments(one, story.events, at, story.shapes)
            as_filled(one, story.events, at, story.shapes)
        return story

    def _steps(self, story: Story, call: Call) -> list[Event]:
        events: list[Event] = []
        for number in sorted({0, call.number}):  # how the layer was built stands beside its first call
            trail = Trail.parsed(self._trails.get((call.layer, number), {}))
            known = {at: self._known(story, value) for at, value in enumerate(trail.values)}
            steps = (*trail.built, *trail.steps) if number == call.number else trail.built
            events += [event for step in steps for event in events_of(step, story, known)]
        return events

    def _inside(self, call: Call) -> Iterator[Call]:
        """Calls in it that the port has as well, the outermost ones; and those around them that it has not."""
        end = -1
        for inner in self._calls:
            last = inner.first if inner.last is None else inner.last
            within = call.last is None or last <= call.last
            if inner.step == call.step and call.first < inner.first and within and inner.first > end:
                if self._is_theirs(inner) and not self._beyond(inner):
                    end = last
                yield inner

    def _is_theirs(self, call: Call) -> bool:
        """Whether the port has this call, or the layer."""
        return CallId(call.layer, call.number) in self._counterparts or call.layer in self._layers

    def _beyond(self, call: Call) -> Sequence[Key]:
        """What it makes besides what its counterpart in the port does, whose code for that stands elsewhere."""
        made = self._made.get(CallId(call.layer, call.number), set())
        if not made or (call.layer, call.number) not in self._trails:
            return ()
        outputs = (entry for entry in self._entries(call) if not is_input(entry.key.slot))
        return [entry.key for entry in outputs if not made.intersection((entry.key, entry.content))]

    def _add(self, story: Story, call: Call) -> None:
        """A layer's call; of what the port has not in it, its own steps, or what it is as an operation."""
        theirs, beyond = self._is_theirs(call), self._beyond(call)
        if theirs:
            given, made = self._ends(story, call, beyond)
            story.events.append(Event(LAYER, tuple(given), tuple(made), layer=call.layer))
        if (beyond or not theirs) and (call.layer, call.number) in self._trails:
            for event in (steps := self._steps(story, call)):
                event.home = call.layer
            story.events += steps
        elif not theirs:
            self._as_operation(story, call)

    def _as_operation(self, story: Story, call: Call) -> None:
        """A layer of the framework's that is one operation with its settings as arguments."""
        spec = self._reference.layers[call.layer].spec
        given, made = self._ends(story, call)
        shapes = [story.shapes[number] for number in made]
        taken = [Taken(number, story.shapes[number]) for number in given]
        told = operation(spec.kind, taken, dict(spec.attributes), shapes)
        plain = told.known and told.word not in INVISIBLE
        if plain and given and len(given) == len(told.operands) and len(made) == 1:
            story.events.append(Event(told.word, told.operands, tuple(made), told.arguments, name=spec.kind))

    def _entries(self, call: Call) -> Sequence[Any]:
        return [
            entry
            for entry in self._reference.of_layer(call.layer)[0]
            if (entry.key.step, entry.key.call, entry.key.phase) == (call.step, call.number, Phase.FORWARD)
        ]

    def _ends(self, story: Story, call: Call, but: Collection[Key] = ()) -> tuple[list[int], list[int]]:
        """The values that go into a call and come out of it, without some."""
        entries = [entry for entry in self._entries(call) if entry.key not in but]
        given = [self.number(story, entry) for entry in entries if is_input(entry.key.slot)]
        return given, [self.number(story, entry) for entry in entries if not is_input(entry.key.slot)]

    def recorded(self, story: Story, step: int, this: CallId, value: int) -> Optional[Key]:
        """Where a value stands that this call makes: as what it hands on, or goes into what it calls."""
        call = next(one for one in self._calls if (one.step, one.layer, one.number) == (step, *this))
        for one in (*self._inside(call), call):
            for entry in self._reference.of_layer(one.layer)[0]:
                key = entry.key
                same = (key.step, key.call, key.phase) == (one.step, one.number, Phase.FORWARD)
                if same and is_input(key.slot) == (one is not call) and self.number(story, entry) == value:
                    return key
        return None

    def number(self, story: Story, entry: Any) -> int:
        """The number of a record's value."""
        taken = fingerprint(entry.load()) if math.prod(entry.shape) <= LARGEST else None
        found = self._known(story, taken, entry.shape)
        if not any(found in event.results for event in story.events):
            story.events += self._formed(story, entry, found)
        return found

    def _formed(self, story: Story, entry: Any, found: int) -> Iterator[Event]:
        """What makes a value of the port's form of the reference's."""
        if isinstance(entry, Reduced):
            yield Event(entry.way, (self.number(story, entry.entry),), (found,))
        elif isinstance(entry, (Table, Padded, Axed, Hot, Chosen, Scaled, Selected)):
            yield Event(TAKEN, (self.number(story, entry.entry),), (found,))
        elif isinstance(entry, Row):
            word, parts = "stack" if entry.along.own else "cat", tuple(self.number(story, one) for one in entry.entries)
            yield Event(word, parts, (found,), {"axis": entry.along.axis})
        elif isinstance(entry, Single):
            whole, along = self.number(story, entry.entry), entry.along
            start = sum(along.sizes[: entry.number])
            index: Any = start if along.own else (start or None, start + along.sizes[entry.number], 1)
            yield Event("getitem", (whole,), (found,), {"index": (*((None, None, 1),) * along.axis, index)})
        elif isinstance(entry, Worded) and math.prod(entry.shape) <= LARGEST:
            says = entry.raw()
            for word, value, given in (("reshape", says, {"shape": entry.shape}), ("not", ~says, {})):
                number = self._anywhere(story, fingerprint(value), found)
                yield from [] if number is None else [Event(word, (number,), (found,), given)]

    @staticmethod
    def _anywhere(story: Story, value: Optional[Fingerprint], but: int) -> Optional[int]:
        """The first value that is this one in any shape."""
        known = ((number, one) for number, one in enumerate(story.values) if one is not None and number != but)
        same = (number for number, one in known if value and one.size == value.size and apart(one, value) <= EQUAL)
        return next(same, None)

    def _known(self, story: Story, value: Optional[Fingerprint], shape: tuple[int, ...] = ()) -> int:
        near: list[int] = []
        if value is not None:
            size = round(NEAR * math.log(value.norm)) if value.norm else 0
            known = self._alike.setdefault(story, {})
            near = known.setdefault((value.shape, size), [])
            for number in (one for by in (0, -1, 1) for one in known.get((value.shape, size + by), ())):
                other = story.values[number]
                if other is not None and apart(other, value) <= EQUAL:
                    return number
        near.append(len(story.values))
        story.values.append(value)
        story.shapes.append(shape if value is None else value.shape)
        return len(story.values) - 1


def _in_order(events: Iterable[Event], came: Collection[int]) -> list[Event]:
    """What makes a value before what uses it; else as they are. A dump tells of layers and of steps apart. What `came`
    in was made by nobody: a step that makes as much again is not before those that it is made of."""
    makers = {value: event for value, event in _makers(events).items() if value not in came}
    found: dict[Event, None] = {}
    begun: set[Event] = set()
    for event in events:
        left = [event]
        while left:
            begun.add(left[-1])
            needed = [makers[value] for value in left[-1].operands if value in makers and makers[value] not in begun]
            if needed:
                left += needed
            else:
                found[left.pop()] = None
    return [*found]


def _makers(events: Iterable[Event]) -> Mapping[object, Event]:
    """What made a value first: no step that takes it out of what was made of it."""
    known: dict[object, list[Event]] = {}
    for event in events:
        for value in {*event.results} - {*event.operands}:
            known.setdefault(value, []).append(event)

    def needs(event: Event, value: object) -> bool:
        left, seen = [*event.operands], set[object]()
        while left:
            one = left.pop()
            if one == value:
                return True
            if isinstance(one, int) and one not in seen:
                seen.add(one)
                left += known[one][0].operands if one in known else ()
        return False

    several = [(value, some) for value, some in known.items() if len(some) > 1]
    first = {value: next((one for one in some if not needs(one, value)), some[0]) for value, some in several}
    return {value: first.get(value, some[0]) for value, some in known.items()}


def events_of(step: Step, story: Story, known: Mapping[int, int]) -> Iterable[Event]:
    """A step of a dump in the table's words; `known` has the story's numbers for its values."""
    given = [known[value] for value in step.given]
    made = tuple(known[value] for value in step.made)
    if bare(step.name) in QUESTIONS or not made:
        return
    taken = iter([Taken(value, story.shapes[value]) for value in given])
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in step.arguments:
        key, _, rest = argument.partition("=")
        if rest and key.isidentifier():
            kwargs[key] = numbered(parsed(rest), taken)
        else:
            args.append(numbered(parsed(argument), taken))
    shapes = [story.shapes[value] for value in made]
    tables: list[Event] = []

    def table(numbers: tuple[float, ...]) -> Taken:
        story.values.append(fingerprint(np.array(numbers)))
        story.shapes.append((len(numbers),))
        tables.append(Event("table", (), (len(story.values) - 1,), {"numbers": numbers}, spot=step.spot))
        return Taken(len(story.values) - 1, (len(numbers),))

    told = operation(step.name, listed(step.name, args, table), kwargs, shapes)
    yield from tables
    if told.word in INVISIBLE:
        return
    operands = tuple(_constant(story, one) for one in told.operands)
    if told.word == "split" and isinstance(told.arguments["axis"], int) and operands and isinstance(operands[0], int):
        axis, rank = told.arguments["axis"], len(story.shapes[operands[0]])
        halves = len(shapes) if len({*shapes}) == 1 and bare(step.name) == "chunk" else 0
        for at, (index, result) in enumerate(zip(pieces(shapes, axis, rank), made)):
            share = (halves, at, axis) if halves else None
            found = {"index": index}
            yield Event(
                "getitem", operands[:1], (result,), found, name=step.name, spot=step.spot, part=True, share=share
            )
        return
    yield Event(told.word, operands, made, told.arguments, told.places, step.name, spot=step.spot)


def _constant(story: Story, operand: Operand) -> Operand:
    """A tensor of one plain number is a number, though it may have been worked out."""
    if not isinstance(operand, int) or operand < 0 or (constant := story.constant(operand)) is None:
        return operand
    return replace(constant, made=operand)
