"""Replacing what belongs to others for a while: attributes of classes, modules and objects, slots, entries of dicts.

Whoever replaces something at a place joins a pile there:

    the very object that stood there  <-  ours  <-  ours  <-  somebody else's

A part of ours goes when nobody needs it any more and nothing stands upon it; until then it hands on to what is under
it. So it does not matter in which order those who came leave, and what somebody else (another tool, the user) has put
upon ours is never torn away. When all have left, the very object that stood there stands there again, and where
nothing stood (the attribute was inherited, the slot empty) nothing does.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import update_wrapper
from types import FunctionType, ModuleType
from typing import Any, Callable

Listeners = Mapping[object, Any]
Make = Callable[[Any, Listeners], Any]
"""Makes what is to stand at a place from what is under it and from those who listen there.

It is a function that hands on to what is under it when nobody listens (any more): it may have to stay. Called again
for the same place with an equal `Make`, more only listen to what stands there already.
"""


class Handle:
    """Undoes what was installed, the last first, once; and all of it, also where undoing one thing raises."""

    def __init__(self, *undo: Callable[[], object]) -> None:
        self._undo = list(undo)

    def add(self, undo: Callable[[], object]) -> None:
        """One thing more to undo."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Undo everything; a second call finds nothing to do."""
        while self._undo:
            undo = self._undo.pop()
            try:
                undo()
            except BaseException:
                self.remove()
                raise


@contextmanager
def together() -> Iterator[Handle]:
    """A handle for several things, none of which stays if one of them cannot be installed."""
    handle = Handle()
    try:
        yield handle
    except BaseException:
        handle.remove()
        raise


def patch(owner: Any, name: Any, make: Make, listener: Any = None) -> Handle:
    """Have `make` say what stands at `owner.name` (`owner[name]` of a dict), and `listener` be among its listeners."""
    token = object()
    with _STATE.lock:
        _tidy()
        pile = _STATE.piles.setdefault((id(owner), name), _Pile(owner, name))
        try:
            part = pile.part(make)
            part.listeners[token] = listener
        except BaseException:
            pile.settle()
            raise

    def leave() -> None:
        with _STATE.lock:
            if part.listeners.pop(token, _ABSENT) is not _ABSENT:
                pile.settle()

    return Handle(leave)


def hold(owner: Any, name: Any, value: object) -> Handle:
    """Have this value stand there. Whoever sets another one meanwhile has the last word."""
    return patch(owner, name, _Value(value))


@contextmanager
def lifted(owner: Any, name: Any) -> Iterator[None]:
    """While what stood there before us stands there again, unless somebody else has put something upon ours."""
    key = (id(owner), name)
    with _STATE.lock:
        pile = _STATE.piles.get(key)
        if pile is not None and pile.parts and pile.standing() is pile.parts[-1].value:
            pile.put(pile.parts[0].below)
    try:
        yield
    finally:
        with _STATE.lock:
            pile = _STATE.piles.get(key)
            if pile is not None and pile.parts and pile.standing() is pile.parts[0].below:
                pile.put(pile.parts[-1].value)


def places() -> list[tuple[Any, Any]]:
    """Where something of ours stands, or has to stay under what somebody else has put upon it."""
    with _STATE.lock:
        return [(pile.owner, pile.name) for pile in _STATE.piles.values() if pile.parts]


class _Absent:
    """What stands where nothing does."""

    def __repr__(self) -> str:
        return "nothing"


_ABSENT: Any = _Absent()


class _Value:
    """A `Make` of what is no function; equal ones make the same."""

    def __init__(self, value: object) -> None:
        self.value = value

    def __call__(self, below: Any, listeners: Listeners) -> object:
        return self.value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Value) and self.value is other.value

    def __hash__(self) -> int:
        return id(self.value)


class _Part:
    """One of ours in a pile, and what is under it."""

    def __init__(self, make: Make, below: Any, handed: Any) -> None:
        self.make = make
        self.below = below
        self.listeners: dict[object, Any] = {}
        made = make(handed, self.listeners)
        if isinstance(made, FunctionType) and callable(handed):
            update_wrapper(made, handed)
        self.value = type(below)(made) if isinstance(below, _BOUND) else made


class _Pile:
    """What stands at one place: parts of ours, the first at the bottom. The owner is kept: no other gets its id."""

    def __init__(self, owner: Any, name: Any) -> None:
        self.owner = owner
        self.name = name
        self.parts: list[_Part] = []

    def part(self, make: Make) -> _Part:
        """The part of this make; a new one on top of all that stands there, if none is listened to."""
        standing = self.standing()
        if any(part.below is standing for part in self.parts):
            standing = self.parts[-1].value  # somebody has put back what was under ours
            self.put(standing)
        for part in reversed(self.parts):
            if part.make == make and (part.listeners or part.value is standing):
                return part
        part = _Part(make, standing, self._handed(standing))
        answered = standing is not _ABSENT and not self._is_own()
        self.parts.append(part)
        try:
            self.put(part.value)
        except BaseException:
            self.parts.pop()
            raise
        if answered and self._is_own():  # a `__getattr__` had answered
            part.below = _ABSENT
        return part

    def settle(self) -> None:
        """Take away what nobody needs any more, from the top."""
        key = (id(self.owner), self.name)
        _STATE.stuck.discard(key)
        while self.parts and not self.parts[-1].listeners:
            standing = self.standing()
            if standing is self.parts[-1].value:
                self.put(self.parts[-1].below)
            elif not isinstance(self.parts[-1].make, _Value) and all(one.below is not standing for one in self.parts):
                _STATE.stuck.add(key)  # what somebody else has put upon it may hand on to it
                return
            self.parts.pop()
        if not self.parts:
            _STATE.piles.pop(key, None)

    def standing(self) -> Any:
        """What stands there itself, not what it inherits."""
        if isinstance(self.owner, dict):
            return self.owner.get(self.name, _ABSENT)
        if self._is_own():
            return self.owner.__dict__[self.name]
        return getattr(self.owner, self.name, _ABSENT) if self._is_answered() else _ABSENT

    def put(self, value: Any) -> None:
        """Have it stand there."""
        if isinstance(self.owner, dict):
            if value is _ABSENT:
                del self.owner[self.name]
            else:
                self.owner[self.name] = value
        elif value is _ABSENT:
            delattr(self.owner, self.name)
        elif self._is_own() and isinstance(self.owner.__dict__, dict):
            self.owner.__dict__[self.name] = value  # past what the owner does when it is set
        else:
            setattr(self.owner, self.name, value)

    def _is_own(self) -> bool:
        """Whether it stands in the owner's own dict."""
        return self.name in getattr(self.owner, "__dict__", {})

    def _is_answered(self) -> bool:
        """Whether an object keeps it elsewhere: in a slot, or where a type written in C or a `__getattr__` looks."""
        if isinstance(self.owner, (type, ModuleType)):
            return False
        for base in type(self.owner).__mro__:
            if self.name in vars(base):
                return hasattr(type(vars(base)[self.name]), "__set__")
        return True

    def _handed(self, standing: Any) -> Any:
        """What a replacement hands on to; of what a class inherits, whatever it inherits at that moment."""
        if isinstance(standing, _BOUND):
            return standing.__func__
        if isinstance(self.owner, dict):
            return None if standing is _ABSENT else standing
        found = getattr(self.owner, self.name, None)
        if standing is not _ABSENT or not isinstance(self.owner, type) or not callable(found):
            return found
        owner, name = self.owner, self.name

        def handed(*args: Any, **kwargs: Any) -> Any:
            base = next(base for base in owner.__mro__[1:] if name in vars(base))
            return getattr(base, name)(*args, **kwargs)

        return update_wrapper(handed, found)


_BOUND = (staticmethod, classmethod)


class _State:
    """All piles, those of which something has to stay under somebody else's, and the lock around them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.piles: dict[tuple[int, Any], _Pile] = {}
        self.stuck: set[tuple[int, Any]] = set()

    def forget_lock(self) -> None:
        """A forked child has no thread that could give the lock back."""
        self.lock = threading.RLock()


_STATE = _State()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_STATE.forget_lock)


def _tidy() -> None:
    """What had to stay under somebody else's goes as soon as that is gone and anything is replaced anywhere."""
    for key in list(_STATE.stuck):
        _STATE.piles[key].settle()
