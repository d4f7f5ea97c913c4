"""What the parent's code had in hand: named, read once, the likeliest first."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Optional

import numpy as np

from aligner.explain.case import Case, Value
from aligner.explain.glue.lengths import masks
from aligner.explain.inquiry import spend
from aligner.explain.patterns.pair import Floats
from aligner.record import display

MAX_VALUES = 40
MAX_ELEMENTS = 1 << 24
"""Of all values together; a value of more than half of it is left out."""


OTHERS = 4
"""The rank from which on values are others', given with the nearest first."""


@dataclass(frozen=True, eq=False)
class Piece:
    """A value that was in hand, with its numbers."""

    value: Value
    array: Floats
    rank: int
    """0 for what the parent was given, then its children's outputs, parameters, their inputs, others."""

    looked_up: bool = False
    """Made of integers, as an embedding does it."""
    added: Optional[Value] = None
    """Another value that has been added to it."""

    @property
    def name(self) -> str:
        """As people read it: "blocks.0.norm1 output.0"."""
        return name(self.value) + (f" + {name(self.added)}" if self.added is not None else "")


def name(value: Value) -> str:
    """A value's address as tables write it."""
    call = f" #{value.call}" if value.call else ""
    return f"{display(value.layer)} {value.slot}{call}"


class Hand:
    """Values with their ranks, read when first asked for; the same numbers twice count once."""

    def __init__(self, ranked: Sequence[tuple[int, Value]], room: int = MAX_ELEMENTS) -> None:
        self._ranked, self._room = ranked, room
        given = [value for _, value in ranked if value.slot.startswith("input.") and "int" in value.dtype]
        self._looking = {(value.layer, value.call) for value in given}
        self._read: dict[int, Optional[Piece]] = {}
        self._seen: set[tuple[object, ...]] = set()
        self._elements = 0

    @staticmethod
    def of(case: Case) -> Hand:
        """What a case's `known` holds; of a layer with code of its own, its inputs and parameters."""
        ranked = _ranked(case)
        own = [value for rank, value in ranked if rank < OTHERS]
        made = [(OTHERS - 1, mask) for mask in masks(own)]
        return Hand(sorted([*ranked[: len(own)], *made, *ranked[len(own) :]], key=lambda item: item[0]))

    def pieces(self, fits: Callable[[tuple[int, ...]], bool]) -> Iterator[Piece]:
        """Those whose shape fits, the likeliest first."""
        given = 0
        for index, (rank, value) in enumerate(self._ranked):
            if given >= MAX_VALUES:
                return
            if not fits(value.shape):
                continue
            if index not in self._read:
                self._read[index] = self._load(rank, value)
            piece = self._read[index]
            if piece is not None:
                given += 1
                yield piece

    def cut(self, axis: int, part: slice, size: int) -> Hand:
        """The same values, and of those that have this axis (counted from the end) in this size that part besides."""
        more = [(rank, _cut(value, axis, part)) for rank, value in self._ranked if _has(value, axis, size)]
        return Hand(sorted([*more, *self._ranked], key=lambda item: item[0]), self._room // 2)

    def _load(self, rank: int, value: Value) -> Optional[Piece]:
        size = math.prod(value.shape)
        if size > self._room // 2 or self._elements + size > self._room:
            return None
        spend(size)
        array = np.asarray(value.load())
        if array.dtype.kind not in "fiub" or array.size == 0:
            return None
        mark = _mark(array)
        if mark in self._seen:
            return None
        self._seen.add(mark)
        self._elements += size
        return Piece(value, array, rank, (value.layer, value.call) in self._looking)


def _has(value: Value, axis: int, size: int) -> bool:
    return len(value.shape) >= -axis and value.shape[axis] == size


def _cut(value: Value, axis: int, part: slice) -> Value:
    index: Any = (..., part, *((slice(None),) * (-axis - 1)))
    shape = list(value.shape)
    shape[axis] = len(range(*part.indices(shape[axis])))
    step = f":{part.step}" if part.step else ""
    text = f"[..., {part.start}:{part.stop}{step}{', :' * (-axis - 1)}]"
    return replace(value, slot=value.slot + text, shape=tuple(shape), load=lambda: np.asarray(value.load()[index]))


def _ranked(case: Case) -> list[tuple[int, Value]]:
    place = case.expected or case.actual
    here = (place.layer, place.slot, place.call) if place else None
    held = case.known if case.where == "glue" else (*case.parameters.values(), *reversed(case.inputs))
    calls = [value.call for value in held if value.layer == case.layer and value.slot.startswith("input.")]
    latest = max(calls, default=0)  # what it was given in calls before is no more in its hands
    ranked = [(_rank(case, value, latest), value) for value in held if (value.layer, value.slot, value.call) != here]
    own = [item for item in reversed(ranked) if item[0] < OTHERS]
    return [*sorted(own, key=lambda item: item[0]), *(item for item in ranked if item[0] >= OTHERS)]


def _rank(case: Case, value: Value, latest: int) -> int:
    given, made = value.slot.startswith("input."), value.slot.startswith("output.")
    if value.layer == case.layer and given:
        return 0 if value.call == latest else OTHERS
    inside = not case.layer or value.layer == case.layer or value.layer.startswith(case.layer + ".")
    if inside:
        return 1 if made else 3 if given else 2
    return 4 if made else 5


def _mark(array: Floats) -> tuple[object, ...]:
    """Equal for equal arrays, and hardly ever for others."""
    flat = array.reshape(-1)
    sample = np.ascontiguousarray(flat[:: max(1, flat.size // 4096)])
    return array.shape, array.dtype.str, hashlib.blake2b(sample.tobytes(), digest_size=16).digest()
