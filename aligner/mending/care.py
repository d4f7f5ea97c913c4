"""Operations of edited code that a framework's kernel may die of are not run: the process would end with it.

CPU kernels look at few of their arguments. Those that were seen to end a process are values without elements, whole
numbers divided by zero, and indices outside of what they point into.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from aligner.structure import Tensors, flatten_arguments
from aligner.values import Values
from aligner.words.operations import bare, may_write

_DIVIDING = ("floordiv", "mod", "ifloordiv", "imod", "fmod", "remainder", "floordivide")
"""Operations on whole numbers that stop at zero."""

_TAKING = """
gather gatherelements gatherd takealongdim indexselect indexadd indexfill indexcopy take scatter scatteradd
scatterreduce
"""
_ALONG = frozenset(_TAKING.split())
"""Operations on a value, an index and an axis."""

_SEGMENTS = "unsortedsegment"
"""How the names of operations begin that add into as many rows as they are told."""

_BY_CLASS = ("crossentropy", "nllloss")
"""Losses of scores and the numbers of their classes; what is to be ignored is below zero."""

_BY_ROWS = ("gathernd", "tensorscatterupdate", "tensorscatteradd", "scatterndupdate", "scatterndadd")
"""Operations whose index has a number for each axis."""


_FILLING = frozenset(("full", "zeros", "ones", "expand", "broadcastto"))
_REPEATING = frozenset(("tile", "repeat", "repeatinterleave"))
"""Operations that make as much as whole numbers say, and that make as many times what they are given."""

FREE, MORE = 1 << 22, 16
"""So many numbers any edit may make at a time, and so many times as many as the code as it stands: in a loop each turn
may make the next one larger, until there is no memory left.
"""


class HarmfulError(Exception):
    """An operation that a kernel may die of, and all else with it; or that does harm to the runs after it."""


@dataclass(frozen=True)
class Tables:
    """Values that layers keep, by their identity, those of them that the code as it stands writes into, and how many
    numbers it makes at a time.
    """

    kept: Set[int] = frozenset()
    written: set[int] = field(default_factory=set)
    sizes: list[int] = field(default_factory=lambda: [0])


UNBOUND = sys.maxsize

NO_TABLES = Tables(sizes=[UNBOUND])
"""Of code that was not run as it stands."""


class Care:
    """Runs the operations of edited code, but for those."""

    def __init__(self, values: Values, empty: bool, trusts: bool = False, tables: Tables = NO_TABLES) -> None:
        self.values, self._trusts, self._tables = values, trusts, tables
        self.empty = empty
        """Whether values without elements do no harm: code that is trusted has some."""

    def run(
        self, word: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """What the operation makes.

        Raises:
            HarmfulError: it is not run.
        """
        self.check(word, self.of(args, kwargs), args, kwargs)
        return self.settled(compute())

    def within(
        self, ear: Any, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], run: Callable[[], Any]
    ) -> Any:
        """What a user's function gives."""
        return run()

    def settled(self, output: Any) -> Any:
        """The same, read once: MindSpore goes on before an operation has ended, and dies of what is not there yet."""
        for one in self.of((output,), {}):
            with suppress(ValueError):  # it has no values to read
                self.values.read(one)
        return output

    def check(self, word: str, given: Sequence[object], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Whether it may be run.

        Raises:
            HarmfulError: it may not.
        """
        if args and may_write(word) and id(args[0]) in self._tables.kept:
            if self._trusts:
                self._tables.written.add(id(args[0]))
            elif id(args[0]) not in self._tables.written:
                raise HarmfulError(f"{word} of what a layer keeps")
        size, most = self._size(bare(word), given, args, kwargs), self._tables.sizes
        empty = not self.empty and any(0 in getattr(one, "shape", ()) for one in given)
        if self._trusts:
            most[0] = max(most[0], size)
            self.empty = self.empty or empty
            return
        if size > max(FREE, MORE * most[0]):
            raise HarmfulError(f"{word} of {size} numbers")
        if empty:
            raise HarmfulError(f"{word} of a value without elements")
        if word in _DIVIDING and len(args) == 2 and self._is_zero(args[1]):
            raise HarmfulError(f"{word} by zero")
        for index, size in self._indices(bare(word), given, args, kwargs):
            if index.size and not -size <= index.min() <= index.max() < size:
                raise HarmfulError(f"{word} beyond {size}")

    def _is_zero(self, value: Any) -> bool:
        if not self.values.holds(value):
            return isinstance(value, int) and value == 0
        array = self.values.read(value)
        return array.dtype.kind in "iu" and not array.all()

    def _indices(
        self, name: str, given: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> Iterator[tuple[Any, int]]:
        """Indices, each with the size of what it points into."""
        plain = [one for one in (*args, *kwargs.values()) if type(one) is int]
        if name == "embedding" and len(given) == 2:
            yield from self._index(given[0], given[1].shape, 0)
        elif name.startswith(_SEGMENTS) and len(given) > 1 and plain:
            yield from self._index(given[1], plain, -1)
        elif name in _ALONG and len(given) > 1:
            yield from self._index(given[1], given[0].shape, plain[0] if plain else 0)
        elif name in _BY_CLASS and len(given) > 1:
            classes = given[0].shape[1 if len(given[0].shape) > 1 else 0]
            yield from ((np.maximum(index, 0), classes) for index, _ in self._index(given[1], (1,), 0))
        elif name in _BY_ROWS and len(given) > 1:
            rows = self.values.read(given[1])
            for axis in range(rows.shape[-1]) if rows.dtype.kind in "iu" else ():
                yield rows[..., axis], given[0].shape[axis] if axis < len(given[0].shape) else 1
        elif name in ("getitem", "setitem") and hasattr(args[0], "shape"):  # and no list of the user's
            items = args[1] if isinstance(args[1], tuple) else (args[1],)
            for axis, item in _along(items, len(args[0].shape)):
                if self.values.holds(item):
                    yield from self._index(item, args[0].shape, axis)

    def _index(self, value: Any, shape: Sequence[int], axis: int) -> Iterator[tuple[Any, int]]:
        array = self.values.read(value)
        if array.dtype.kind in "iu":
            yield array, shape[axis] if -len(shape) <= axis < len(shape) else 1

    def _size(self, name: str, given: Sequence[Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> int:
        """How many numbers an operation is given or makes, as far as that is seen."""
        shapes = [tuple(one.shape) for one in given if hasattr(one, "shape")]
        most = max(map(math.prod, shapes), default=0)
        with suppress(ValueError):  # they do not meet
            most = max(most, math.prod(np.broadcast_shapes(*shapes)))
        plain = [one for one in (*args, *kwargs.values()) if type(one) is int or isinstance(one, (tuple, list))]
        each = (number for one in plain for number in (one if isinstance(one, (tuple, list)) else (one,)))
        whole = [number for number in each if type(number) is int]
        if name in _FILLING:
            most = max(most, math.prod(number for number in whole if number > 0))
        elif name in _REPEATING and shapes:
            most = max(most, math.prod(shapes[0]) * math.prod(number for number in whole if number > 0))
        elif name == "arange":
            most = max([most, *whole])
        elif name == "embedding" and len(shapes) > 1:
            most = max(most, _taken(shapes[1], shapes[0], 0))
        elif name in _ALONG and len(shapes) > 1:
            most = max(most, _taken(shapes[0], shapes[1], whole[0] if whole else 0))
        elif name == "getitem" and len(shapes) > 1 and hasattr(args[0], "shape"):
            items = args[1] if isinstance(args[1], tuple) else (args[1],)
            for axis, item in _along(items, len(shapes[0])):
                if self.values.holds(item) and self.values.dtype(item) != "bool":
                    most = max(most, _taken(shapes[0], tuple(getattr(item, "shape", ())), axis))
        return most

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[object]:
        """The values among arguments."""
        found: Tensors = []
        flatten_arguments(args, kwargs, self.values.holds, found)
        return [one for _, one in found]


def _taken(shape: tuple[int, ...], index: tuple[int, ...], axis: int) -> int:
    """How many numbers an index takes out along an axis."""
    beside = shape[axis] if -len(shape) <= axis < len(shape) else 1
    return math.prod(index) * math.prod(shape) // max(beside, 1)


def _along(items: Sequence[object], rank: int) -> Iterator[tuple[int, object]]:
    """What stands in brackets, each with its axis; behind an ellipsis these are the last ones."""
    at = next((place for place, item in enumerate(items) if item is ...), len(items))
    axes = 0
    for item in items[:at]:
        if item is not None:
            yield axes, item
            axes += 1
    axes = rank
    for item in reversed(items[at + 1 :]):
        if item is not None:
            axes -= 1
            yield axes, item
