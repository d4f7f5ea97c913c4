"""Calls of the user's functions that one run has made, and that a run of nearly the same code need not make again.

A call is known again by its function and by the very values that it is given. It is made again where an edit changes a
function that it goes through, or where it does more than to return something: where it writes into what it is given,
into its object or into what stands around it. What is told as proved is run once more without this.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.net import CallId
from aligner.mending.care import NO_TABLES, Tables
from aligner.mending.events import Event
from aligner.mending.heard import Heard, Told
from aligner.mending.memory import Arguments, Memory
from aligner.mending.sources import Sources
from aligner.record import Key
from aligner.source.caches import filled
from aligner.source.ear import Ear
from aligner.source.functions import definition, differs
from aligner.source.listening import Inside
from aligner.values import Values
from aligner.words.calls import Opaque, Taken, tensors

if TYPE_CHECKING:
    from aligner.mending.rerun import Rerun

DEEP, MANY = 4, 64
"""How deep what is given may be nested, and how much may stand in an object of it."""

_CONTAINERS = (list, dict, set, deque)


class _UnknownError(Exception):
    """Something that is not told by the values in it."""


@dataclass
class _Made:
    """A call, and what came of it."""

    output: object
    around: Sequence[object]
    """What it was given, so that others do not get its identity."""
    given: Sequence[object]
    returned: Sequence[object]
    """The values among these, and those that it returned."""
    writes: int
    """How many values had been written into when it was over."""
    used: frozenset[FunctionType]
    counts: Mapping[str, tuple[int, int]]
    """How many calls there were of each layer that it calls, before and after."""
    errors: Mapping[Key, float]
    first: int
    """How many events there were before it."""
    events: Sequence[Event]
    told: Mapping[int, Told]
    """The values in these, by their numbers."""
    found: Mapping[Key, int]
    at: Mapping[Key, tuple[int, Optional[Event]]]
    users: Mapping[CallId, Optional[Event]]


@dataclass
class _Before:
    """What is known of a run before a call."""

    key: object
    counts: Mapping[str, int]
    errors: frozenset[Key]
    events: int
    inside: Inside = field(default_factory=Inside)


class Whole(Memory):
    """Remembers calls of the user's functions as well."""

    def __init__(self, values: Values, arguments: Arguments, tables: Tables = NO_TABLES) -> None:
        super().__init__(values, arguments, tables)
        self._calls: dict[object, _Made] = {}
        self._state: Optional[Rerun] = None
        self._first = self._sources = Sources({})
        self._same_as_before: dict[FunctionType, bool] = {}

    def under_way(self, state: Optional[Rerun], sources: Sources) -> None:
        """This is the run that has begun; None if no call is known in it."""
        self._state, self._sources = state, sources
        self._first = sources if self.recording else self._first
        self._same_as_before.clear()

    def _unchanged(self, function: FunctionType) -> bool:
        file = function.__code__.co_filename
        return not differs(function, self._first.texts.get(file), self._sources.texts.get(file))

    def close(self) -> None:
        """The first run is over: a call is not known again if what it was given, or has returned, was written into."""
        written = [self.root(value) for value in self.written]
        for key, made in [*self._calls.items()]:
            given, returned = ({self.root(value) for value in values} for values in (made.given, made.returned))
            if given & {*written} or returned & {*written[made.writes :]}:
                del self._calls[key]
        super().close()

    def within(self, ear: Ear, function: Any, args: Any, kwargs: Mapping[str, Any], run: Callable[[], Any]) -> Any:
        """What a user's function gives, or gave before."""
        state = self._state
        if state is None or not state.is_plain:
            return run()
        try:
            key = self._call(ear, function, args, kwargs)
        except _UnknownError:
            return run()
        made = self._calls.get(key)
        if made is not None and not self.recording and self._is_same(made, state):
            self._again(made, state, ear)
            return _copied(made.output)
        if made is not None or not self.recording:
            return run()
        heard = len(state.listener.story.events) if isinstance(state.listener, Heard) else 0
        before = _Before(key, dict(state.counts), frozenset(state.errors), heard)
        before.inside.used.update(one for one in (ear.plain(function),) if one is not None)
        ear.inside.append(before.inside)
        try:
            output = run()
        finally:
            ear.inside.remove(before.inside)
        try:
            if self._is_alone(function, before) and key == self._call(ear, function, args, kwargs):
                self._keep(before, state, output, [function, *args, *kwargs.values()])
        except _UnknownError:
            pass
        return output

    def _call(self, ear: Ear, function: Any, args: Any, kwargs: Mapping[str, Any]) -> object:
        plain, owner = getattr(function, "__func__", function), getattr(function, "__self__", None)
        if not isinstance(plain, FunctionType) or {*plain.__code__.co_freevars} - {"__class__"}:
            raise _UnknownError
        told = [self._telling(ear, value, 0) for value in args]
        named = [(name, self._telling(ear, value, 0)) for name, value in sorted(kwargs.items())]
        return id(plain), None if owner is None else self._telling(ear, owner, 0), (*told,), (*named,)

    def _telling(self, ear: Ear, value: Any, deep: int) -> object:
        if value is None or value is ... or isinstance(value, (bool, int, float, str, np.generic)):
            return type(value), repr(value)
        if ear.is_layer(value) or self.values.holds(value) or callable(value):
            return id(value)
        if deep == DEEP:
            raise _UnknownError
        if isinstance(value, (tuple, list)):
            return (id(type(value)), *(self._telling(ear, one, deep + 1) for one in value))
        if isinstance(value, slice):
            return (slice, *(self._telling(ear, one, deep + 1) for one in (value.start, value.stop, value.step)))
        items = value if isinstance(value, dict) else getattr(value, "__dict__", None)
        if items is None or len(items) > MANY:
            raise _UnknownError
        return (id(type(value)), *((str(name), self._telling(ear, one, deep + 1)) for name, one in items.items()))

    def _is_alone(self, function: Any, before: _Before) -> bool:
        """Whether it does nothing but to return something."""
        inside, owner = before.inside, getattr(function, "__self__", None)
        created = {id(one) for one in inside.created}
        owners = {**inside.owners, (getattr(function, "__func__", function), id(owner)): owner}
        for one in inside.used:
            own = {other for method, other in owners if method is one}
            known = own <= created and (own or one.__name__ == "__init__")
            if _changes(one) is not False and not (known and _changes(one) is None):
                return False
        if inside.effects:
            return False
        around = [*getattr(owner, "__dict__", {}).values()]
        around += [one for each in inside.used for one in each.__globals__.values()]
        shared = {id(one) for one in around if isinstance(one, _CONTAINERS)}
        return not shared & {*inside.touched}

    def _keep(self, before: _Before, state: Rerun, output: object, around: Sequence[object]) -> None:
        values = self.of((output,), {})
        if not _is_copied(output, values):
            raise _UnknownError
        counts = {path: (before.counts.get(path, 0), count) for path, count in state.counts.items()}
        heard = state.listener if isinstance(state.listener, Heard) else None
        events = [] if heard is None else heard.story.events[before.events :]
        own = {key for key in state.errors if key not in before.errors}
        calls = {CallId(key.layer, key.call) for key in state.at} | {*state.users}
        users = {
            one: state.users[one] for one in calls if one in state.users and self._within(one, before.counts, state)
        }
        self._calls[before.key] = _Made(
            _copied(output),
            around,
            self.of(tuple(around), {}),
            values,
            len(self.written),
            frozenset(before.inside.used),
            {path: both for path, both in counts.items() if both[0] != both[1]},
            {key: state.errors[key] for key in state.errors if key in own},
            before.events,
            events,
            {} if heard is None else {number: heard.told[number] for number in sorted(_numbers(events))},
            {key: number for key, number in state.found.items() if key in own},
            {key: place for key, place in state.at.items() if key in own},
            users,
        )

    @staticmethod
    def _within(call: CallId, before: Mapping[str, int], state: Rerun) -> bool:
        return before.get(call.layer, 0) <= call.number < state.counts.get(call.layer, 0)

    def _is_same(self, made: _Made, state: Rerun) -> bool:
        """Whether the call does the same in this run, and what is asked for is not in it."""
        if any(state.counts.get(path, 0) != first for path, (first, _) in made.counts.items()):
            return False
        if state.until in made.errors or made.errors.keys() & state.errors.keys():
            return False
        for function in made.used:
            if function not in self._same_as_before:
                self._same_as_before[function] = self._unchanged(function)
        return all(self._same_as_before[function] for function in made.used)

    def _again(self, made: _Made, state: Rerun, ear: Ear) -> None:
        """As if it were made."""
        ear.used.update(made.used)
        for call in ear.inside:
            call.used.update(made.used)
        state.counts.update({path: count for path, (_, count) in made.counts.items()})
        if isinstance(state.listener, Heard):
            heard = state.listener
            numbers = {number: heard.adopted(told) for number, told in made.told.items()}
            shift = len(heard.story.events) - made.first
            others = {id(one): _renumbered(one, numbers, shift) for one in made.events}
            heard.story.events.extend(others[id(one)] for one in made.events)
            state.found.update({key: numbers.get(number, number) for key, number in made.found.items()})
            state.users.update({this: user and others.get(id(user), user) for this, user in made.users.items()})
            for key, (at, user) in made.at.items():
                state.at[key] = at + shift, user and others.get(id(user), user)
        for key, error in made.errors.items():
            state.note(key, error)


@lru_cache(maxsize=4096)
def _changes(function: FunctionType) -> Optional[bool]:
    """Whether it writes into something that is not its own; None if that is the object alone whose method it is."""
    node = definition(function)
    if node is None:
        return True
    names = [one.arg for one in (*node.args.posonlyargs, *node.args.args)][:1]
    written: set[bool] = set()
    for one in ast.walk(node):
        if isinstance(one, (ast.Global, ast.Nonlocal)) or isinstance(getattr(one, "ctx", None), ast.Del):
            return True
        into = filled(one)
        into = one if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store) else into
        if isinstance(into, ast.Attribute):  # what a name alone stands for is looked at when it is written into
            written.add(isinstance(into.value, ast.Name) and into.value.id in names)
    return False if not written else None if written == {True} else True


def _copied(value: Any) -> Any:
    """The same values in other lists: the code may add to those that it gets."""
    if type(value) is list:
        return [_copied(one) for one in value]
    if type(value) is dict:
        return {name: _copied(one) for name, one in value.items()}
    if isinstance(value, tuple):
        items = [_copied(one) for one in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def _is_copied(value: Any, values: Sequence[object]) -> bool:
    """Whether a copy has nothing in common with it but tensors and plain numbers."""
    if type(value) in (list, dict) or isinstance(value, tuple):
        return all(_is_copied(one, values) for one in (value.values() if isinstance(value, dict) else value))
    plain = value is None or isinstance(value, (bool, int, float, str, np.generic))
    return plain or any(value is one for one in values)


def _numbers(events: Iterable[Event]) -> set[int]:
    """Of all values in them."""
    found = set[int]()
    for event in events:
        operands = (*event.operands, *event.results, *(operand for _, operand in event.inputs))
        found |= {one for one in operands if isinstance(one, int)}
        found |= {one.number for value in event.arguments.values() for one in tensors(value)}
    return found


def _renumbered(event: Event, numbers: Mapping[int, int], shift: int) -> Event:
    """The same event in another run."""

    def other(value: Any) -> Any:
        return numbers.get(value, value) if isinstance(value, int) else value

    def argument(value: Any) -> Any:
        if isinstance(value, Taken):
            return value._replace(number=numbers.get(value.number, value.number))
        plain = not isinstance(value, tuple) or isinstance(value, Opaque)
        return value if plain else tuple(map(argument, value))

    return replace(
        event,
        operands=tuple(map(other, event.operands)),
        results=tuple(map(other, event.results)),
        inputs=[(node, other(operand)) for node, operand in event.inputs],
        arguments={name: argument(value) for name, value in event.arguments.items()},
        began=event.began + shift,
    )
