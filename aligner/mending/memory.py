"""What the operations of a run made: a run of nearly the same code need not compute it again.

An operation is known again by its function and by the very objects that it is given. Values that code writes into are
not kept, nor what shares their memory. What is told as proved is run once more without it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from types import BuiltinFunctionType, MethodType, ModuleType
from typing import Any, Optional

import numpy as np

from aligner.mending.care import NO_TABLES, Care, Tables
from aligner.values import Values
from aligner.words.operations import SILENT, bare, row

MOST = 256 << 20
"""Bytes of values that are kept."""

_SHARING = frozenset(("reshape", "transpose", "getitem", "split", "expand", "cast", "same", "table", "meshgrid"))
"""Words of operations whose result may be the memory of what they are given."""

Key = tuple[object, ...]
Arguments = tuple[tuple[object, ...], dict[str, object]]


class Memory(Care):
    """Of one run, which is the first with it, and is closed. `spoiled` tells that it is of no use any more."""

    def __init__(self, values: Values, arguments: Arguments, tables: Tables = NO_TABLES) -> None:
        super().__init__(values, empty=False, trusts=True, tables=tables)
        self.arguments = arguments
        """What the code is given: the very same each time."""
        self.spoiled = False
        self._made: dict[Key, tuple[object, list[object]]] = {}
        self._held: list[object] = []
        """Whose identities are used: others must not get them."""
        self._live: set[int] = set()
        """Values of the run that is under way that share their memory with others."""
        self._origins: dict[int, object] = {}
        """What a value shares its memory with."""
        self._same: set[int] = set()
        """Values that are kept, and that nothing writes into."""
        self._own: set[int] = set()
        """Values that were made in this run."""
        self.written: list[object] = []
        """What the first run has written into."""
        self._bytes = 0
        self.recording = True
        """The first run is under way."""
        self.told: dict[int, Any] = {}
        """What is known of a value that is kept, by its identity."""
        self.reads: dict[Any, Any] = {}
        """What is known of values, by what their numbers have in common and their type."""

    def close(self) -> None:
        """The first run is over; what was written into in it is forgotten."""
        self.recording = self._trusts = False
        roots = {self.root(value) for value in self.written}
        self.spoiled = self.spoiled or not roots <= self._own
        self._made = {
            key: (output, around)
            for key, (output, around) in self._made.items()
            if not roots & {self.root(one) for one in around}
        }
        self._same = {id(one) for _, around in self._made.values() for one in around}

    def begin(self) -> None:
        """Another run begins."""
        for value in self._live:
            self._origins.pop(value, None)
        self._live, self._own = set(), set()

    def run(
        self, word: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """What the operation makes, or made in the first run. In that, what is made twice is two: it may be written
        into.
        """
        given = self.of(args, kwargs)
        key = self._key(function, args, kwargs)
        first = self._made.get(key) if key is not None else None
        if first is not None and not self.recording:
            return first[0]
        self.check(word, given, args, kwargs)
        output = self.settled(compute())
        known = row(word)
        shares = known is None or known.word in _SHARING
        target = args[0] if output is None and args else output
        if "out" in kwargs or (args and target is args[0] and not (known is not None and shares)):
            self._wrote(kwargs.get("out", target))
        if given and bare(word) in SILENT:
            self._wrote(given[0])
        made = [one for one in self.of((output,), {}) if not any(one is other for other in given)]
        keeps = self.recording and self._bytes < MOST
        self._held += made if keeps else []
        for one in made:
            self._own.add(id(one))
            self._origins.pop(id(one), None)  # of another that had been there
            if shares and given:
                self._origins[id(one)] = given[0]
                self._live |= set() if keeps else {id(one)}
        if key is not None and keeps and made:
            self._made[key] = (output, [*made, *given]) if first is None else (first[0], [*first[1], *made])
            self._held += [function, *args, *kwargs.values(), output]
            for one in made:
                with suppress(ValueError):  # it has no values to read
                    self._bytes += int(self.values.read(one).nbytes)
        return output

    def keeps(self, value: object) -> bool:
        """Whether a value is the same in each run."""
        return id(value) in self._same and not self.spoiled

    def _wrote(self, value: object) -> None:
        if self.recording:
            self.written.append(value)
        elif self.root(value) not in self._own:  # it may be what is kept
            self.spoiled = True

    def root(self, value: object) -> int:
        """The identity of what a value shares its memory with."""
        seen = set[int]()
        while id(value) in self._origins and id(value) not in seen:
            seen.add(id(value))
            value = self._origins[id(value)]
        return id(value)

    def _key(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Optional[Key]:
        which = self._which(function)
        if which is None:
            return None
        named = ((name, self._plain(one)) for name, one in sorted(kwargs.items()))
        return (which, *map(self._plain, args), *named)

    def _which(self, function: Any) -> Optional[Key]:
        """The function, whatever it is bound to; None where that is something that may change."""
        if isinstance(function, str):
            return (function,)
        owner = getattr(function, "__self__", None)
        if isinstance(function, (MethodType, BuiltinFunctionType)) and owner is not None:
            if isinstance(owner, ModuleType):
                return (id(function),)
            if not self.values.holds(owner):
                return None
            return (type(owner), getattr(function, "__name__", ""))
        return (id(function),)

    def _plain(self, value: Any) -> object:
        if self.values.holds(value):
            return id(value), "value"
        if isinstance(value, (tuple, list)):
            return (type(value), *map(self._plain, value))
        if isinstance(value, slice):
            return (slice, *map(self._plain, (value.start, value.stop, value.step)))
        if isinstance(value, dict):
            return (dict, *((name, self._plain(one)) for name, one in value.items()))
        if value is None or value is ... or isinstance(value, (bool, int, float, str, np.generic)):
            return type(value), repr(value)
        return id(value)
