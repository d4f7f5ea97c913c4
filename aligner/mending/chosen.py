"""Rows that the reference takes out before it works on them, `x[mask]`, where the port works on all: what the reference
makes of them is looked for in these rows of what the port makes.

Which rows they are, a value of the port's tells that is the reference's mask, or its indices. The reference's story is
told then as though it worked on all rows: so the port's values are formed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Optional

import numpy as np

from aligner.dtypes import DTYPES, decode
from aligner.fingerprint import LARGEST, Fingerprint, apart, fingerprint
from aligner.mending.events import Event, Story
from aligner.source.listening import Deaf
from aligner.structure import Tensors, flatten_arguments
from aligner.values import Values

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.mending.running import Parent
    from aligner.record import Array

    Numbers = npt.NDArray[np.int64]

MOST, FEWEST = 8, 2
"""Choices of one story that are looked for, the first ones; so few rows, and numbers, are equal by chance."""

SAME = 1e-6
"""As near are the fingerprints of the same numbers."""

WHOLE = (None, None, 1)
"""All of an axis, in an index."""


class Choice(NamedTuple):
    """What says which rows are taken, the sizes of the axes that it chooses among, and how many are taken."""

    by: Fingerprint
    among: tuple[int, ...]
    many: int
    masks: bool
    """It says of each row whether it is taken, and not which are."""

    def rows(self, values: Array) -> Optional[Numbers]:
        """Which are taken, as a value says that has as many numbers; None where that is another one."""
        known = fingerprint(values)
        if known is None or apart(known, self.by) > SAME or (values != values.round()).any():
            return None
        whole = values.reshape(-1).astype(np.int64)
        rows = np.flatnonzero(whole) if self.masks else whole % self.among[0]
        return rows if len(rows) == self.many else None


Rows = Mapping[Choice, "Numbers"]
"""Which rows are taken by the choices that are known."""

NO_ROWS: Rows = {}


def _choice(story: Story, event: Event) -> Optional[tuple[Choice, int]]:
    """What a step takes by a value, and the axis of what it makes that these rows are; None where it does not."""
    index: Sequence[Any] = event.arguments.get("index", ())
    operands = [one for one in event.operands if isinstance(one, int)]
    if event.word != "getitem" or len(operands) != 2 or [*index].count("tensor") != 1 or len(event.results) != 1:
        return None
    at = [*index].index("tensor")
    by, source, made = story.values[operands[1]], story.shapes[operands[0]], story.shapes[event.results[0]]
    axis = sum(isinstance(one, tuple) for one in index[:at])
    if by is None or not by.whole or axis >= len(made) or not 0 < len(by.shape) <= len(source) - at:
        return None
    masks = by.shape == source[at : at + len(by.shape)] and by.plain[3] >= 0 and by.plain[0] == made[axis]
    if not masks and by.shape != (made[axis],):
        return None
    found = Choice(by, by.shape if masks else source[at : at + 1], made[axis], masks)
    return (found, axis) if FEWEST <= found.many < math.prod(found.among) else None


def choices(story: Story) -> dict[Choice, list[Fingerprint]]:
    """What the reference takes some rows by, and what it takes so."""
    found: dict[Choice, list[Fingerprint]] = {}
    for event in story.events:
        told = _choice(story, event)
        if told is not None:
            same = (one for one in found if told[0].by is one.by and told[0].among == one.among)
            taken = story.values[event.results[0]]
            found.setdefault(next(same, told[0]), []).extend([taken] if taken is not None else [])
    return dict(islice(found.items(), MOST))


def told_of_all(parent: Parent, story: Story) -> Rows:
    """Tell the reference's story as though it worked on all rows, where the port's code tells which it takes, and does
    not take them itself.

    Raises:
        FailedError: the port's code raises.
    """
    known = choices(story)
    listener = Choosing(Values(parent.running.adapter), known)
    if known:
        parent.told(listener)
        _tell(story, listener.rows)
    return listener.rows


def _tell(story: Story, known: Rows) -> None:
    chosen: dict[int, tuple[Choice, int]] = {}
    for event in story.events:
        rows = next((chosen[one] for one in event.operands if isinstance(one, int) and one in chosen), None)
        if rows is not None:
            _of_all(event, *rows)
        elif (found := _choice(story, event)) is not None:
            rows = next(((one, found[1]) for one in known if one[:2] == found[0][:2]), None)
        if rows is None:
            continue
        for value in event.results:
            shape, (choice, axis) = story.shapes[value], rows
            if shape[axis : axis + 1] != (choice.many,):
                axis = shape.index(choice.many) if shape.count(choice.many) == 1 else -1
            if axis >= 0:
                chosen.setdefault(value, (choice, axis))
    for value, (choice, axis) in chosen.items():
        shape = story.shapes[value]
        story.shapes[value] = (*shape[:axis], *choice.among, *shape[axis + 1 :])


def _of_all(event: Event, choice: Choice, axis: int) -> None:
    """A step on rows that are several axes by then."""
    more, told = len(choice.among) - 1, {**event.arguments}
    where = told.get("axis")
    if isinstance(where, int) and where > axis:
        told["axis"] = where + more
    elif isinstance(where, tuple):
        told["axis"] = tuple(one + more * (one > axis) for one in where)
    if event.word == "getitem" and len(told["index"]) > axis and isinstance(told["index"][axis], tuple):
        told["index"] = (*told["index"][:axis], *(WHOLE,) * more, *told["index"][axis:])
    event.arguments = told


class Choosing(Deaf):
    """A listener that learns which rows are taken."""

    def __init__(self, values: Values, known: Mapping[Choice, Sequence[Fingerprint]]) -> None:
        self._values, self._left, self._known = values, [*known], known
        self._rows: dict[Choice, Numbers] = {}
        self._itself = set[Choice]()
        """What the port takes as well."""

    @property
    def rows(self) -> Rows:
        """Which are taken where the port works on all."""
        return {choice: rows for choice, rows in self._rows.items() if choice not in self._itself}

    def begun(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: object) -> Any:
        """An operation begins."""
        self._look(args, kwargs)
        return lambda output: self._look((output,), {})

    def handed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *_: object) -> None:
        """Values go into a layer."""
        self._look(args, kwargs)

    kept = entered = handed

    def came(self, output: object, *_: object) -> None:
        """A layer gives this."""
        self._look((output,), {})

    def _look(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        found: Tensors = []
        flatten_arguments(args, kwargs, self._values.holds, found)
        sizes = {choice.by.size for choice in self._left}
        sizes |= {one.size for taken in self._known.values() for one in taken}
        for one in (tensor for _, tensor in found if math.prod(getattr(tensor, "shape", ())) in sizes):
            array, dtype = self._values.read(one), self._values.dtype(one)
            array = decode(array, dtype) if dtype in DTYPES else np.zeros(0)
            for choice in [one for one in self._left if one.by.size == array.size]:
                if (rows := choice.rows(array)) is not None:
                    self._rows[choice] = rows
                    self._left.remove(choice)
            self._itself |= {choice for choice, taken in self._known.items() if _has(array, taken)}


def _has(array: Array, taken: Sequence[Fingerprint]) -> bool:
    """Whether this is one of them, and not all of one number."""
    alike = [one for one in taken if one.shape == array.shape]
    if not alike or not 0 < array.size <= LARGEST or array.dtype.kind == "c" or array.min() == array.max():
        return False
    known = fingerprint(array)
    return known is not None and any(apart(known, one) <= SAME for one in alike)


def parts(array: Array, known: Rows) -> Iterator[Fingerprint]:
    """Of a value that has all rows: those that are taken."""
    for choice, rows in known.items():
        more = len(choice.among)
        places = (at for at in range(array.ndim - more + 1) if array.shape[at : at + more] == choice.among)
        for at in islice(places, 2 if 0 < array.size <= LARGEST else 0):
            flat = array.reshape(*array.shape[:at], -1, *array.shape[at + more :])
            part = fingerprint(np.take(flat, rows, axis=at))
            if part is not None and part.size >= FEWEST and math.prod(part.shape) < array.size:
                yield part
