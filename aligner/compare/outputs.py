"""Which output of a port's call stands for which of the reference's, where the two hand out other things.

A tuple against its first item, a loss in front of the scores, an object with names against positions: the place in
what is handed out tells little there, and what it holds tells all. Where both hand out as many values of the same
shapes, or the same names, the places count: outputs in the wrong order are wrong, whatever they hold. So are those
that have places alone on both sides, and stand in another order there.

Values decide, then places, then shapes. What is left on both sides is set side by side only where nothing else of the
call is, or where each side hands out as many; else either side has something that the other does not give.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from aligner.compare.sequence import rising
from aligner.compare.spread import LARGEST, squeezed

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

NEAR = 0.05
"""Relative L2 up to which two values of one shape are taken for the same output; the nearest ones first."""

SAMPLE = 4096
"""Elements that are looked at for this: whether they agree is measured afterwards, on all of them."""

MOST = 256
"""Values that are read for this; of a net that hands out more, shapes and places have to do."""

Matched = list[tuple["Entry", "Entry"]]
_Numbers = npt.NDArray[Any]


def matched_outputs(one: Sequence[Entry], other: Sequence[Entry], known: dict[str, str]) -> Matched:
    """Pairs of outputs of two calls that stand for each other; those that are in none have no counterpart.

    `known` tells which slots of the port hold what which of the reference's hold in calls of the same layer before
    this one, and is told more. So they do where their axes stand in another order, or are alike by chance.
    """
    if {entry.key.slot for entry in one} == {entry.key.slot for entry in other}:
        theirs = {entry.key.slot: entry for entry in other}
        return [(entry, theirs[entry.key.slot]) for entry in one]
    if [squeezed(entry.shape) for entry in one] == [squeezed(entry.shape) for entry in other]:
        return list(zip(one, other))
    pairs = by_value(one, other)
    known.update((first.key.slot, second.key.slot) for first, second in pairs)
    pairs += told(*unpaired(one, other, pairs), known)
    if positional([*one, *other]) and _crossed(other, pairs):
        return _by_form(one, other, lambda entry: entry.key.slot)
    for form in (_place, _shape, _squeezed):
        pairs += _by_form(*unpaired(one, other, pairs), form)
    if not pairs or len(one) == len(other):
        pairs += zip(*unpaired(one, other, pairs))
    return sorted(pairs, key=lambda pair: pair[0].order)


def told(one: Sequence[Entry], other: Sequence[Entry], known: Mapping[str, str]) -> Matched:
    """Pairs of values of as many elements by what calls before this one have told of their slots."""
    slots = {entry.key.slot: entry for entry in other}
    pairs = []
    for entry in one:
        found = slots.get(known.get(entry.key.slot, ""))
        if found is not None and math.prod(found.shape) == math.prod(entry.shape):
            pairs.append((entry, slots.pop(found.key.slot)))
    return pairs


def positional(entries: Sequence[Entry]) -> bool:
    """Whether these outputs have places and no names."""
    return all(part.isdigit() for entry in entries for part in entry.key.slot.split(".")[1:])


def unpaired(one: Sequence[Entry], other: Sequence[Entry], pairs: Matched) -> tuple[list[Entry], list[Entry]]:
    """What is in none of these pairs."""
    taken = {id(entry) for pair in pairs for entry in pair}
    return [e for e in one if id(e) not in taken], [e for e in other if id(e) not in taken]


def _place(entry: Entry) -> object:
    return entry.key.slot, squeezed(entry.shape)


def _shape(entry: Entry) -> object:
    return entry.shape


def _squeezed(entry: Entry) -> object:
    return squeezed(entry.shape)


def _by_form(one: Sequence[Entry], other: Sequence[Entry], form: Callable[[Entry], object]) -> Matched:
    """The i-th of a form meets the i-th of that form."""
    waiting: dict[object, list[Entry]] = {}
    for entry in reversed(other):
        waiting.setdefault(form(entry), []).append(entry)
    return [(entry, waiting[form(entry)].pop()) for entry in one if waiting.get(form(entry))]


LEAST_AXES = 2
"""Axes of a mask that tells who sees whom."""


def by_value(one: Sequence[Entry], other: Sequence[Entry]) -> Matched:
    """The nearest first; of values that are the same several times those in the same place, or in the same order. The
    only mask that is left on either side is the other's.
    """
    if len(one) + len(other) > MOST:
        return []
    ours, theirs = ([_sample(entry) for entry in entries] for entries in (one, other))
    found = []
    for i, entry in enumerate(one):
        for j, candidate in enumerate(other):
            if squeezed(entry.shape) == squeezed(candidate.shape):
                distance = 0.0 if entry.content == candidate.content else _distance(ours[i], theirs[j])
                if distance <= NEAR:
                    found.append((distance, entry.key.slot != candidate.key.slot, abs(i - j), i, j))
    pairs: dict[int, int] = {}
    for *_, i, j in sorted(found):
        if i not in pairs and j not in pairs.values():
            pairs[i] = j
    left = [i for i, entry in enumerate(one) if i not in pairs and entry.dtype == "bool"]
    right = [j for j, entry in enumerate(other) if j not in pairs.values() and entry.dtype == "bool"]
    if len(left) == len(right) == 1 and _repeats(one[left[0]].shape, other[right[0]].shape):
        pairs[left[0]] = right[0]
    return [(one[i], other[j]) for i, j in sorted(pairs.items())]


def _repeats(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether a mask of one shape may say more often what one of the other says."""
    try:
        np.broadcast_shapes(tuple(one), tuple(other))
    except ValueError:
        return False
    return min(len(one), len(other)) >= LEAST_AXES


def _crossed(other: Sequence[Entry], pairs: Matched) -> bool:
    """Whether pairs in the order of the one side are in another order on the other."""
    where = {id(entry): place for place, entry in enumerate(other)}
    return len(rising([where[id(entry)] for _, entry in pairs])) < len(pairs)


def _sample(entry: Entry) -> _Numbers:
    """Some of its elements, the same of every entry of this size."""
    if entry.nbytes > LARGEST:
        return np.full(1, np.nan)
    values = entry.load().reshape(-1)
    values = values[:: max(1, -(-values.size // SAMPLE))]
    return values.astype(np.complex128 if np.iscomplexobj(values) else np.float64)


def _distance(one: _Numbers, other: _Numbers) -> float:
    """Relative L2 of what is finite; infinite where that is not the same elements, or nothing."""
    known = np.isfinite(one)
    if not known.any() or not np.array_equal(known, np.isfinite(other)):
        return np.inf
    whole, difference = (float(np.linalg.norm(values[known])) for values in (one, other - one))
    return difference / whole if whole else (0.0 if not difference else np.inf)
