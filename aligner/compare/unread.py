"""Values that are wrong only where nothing that the net hands on is made of them: rows of padding, mostly.

What a softmax makes of a row in which all is hidden is nobody's business; frameworks and people differ in it, and the
next layers go on with it, until it is hidden or cut off. That the net hands on what the reference does, to rounding,
although it ran with these values, shows it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.formed import Formed
from aligner.compare.net import is_input
from aligner.compare.reading import Reading
from aligner.dtypes import DTYPES
from aligner.record import Array, Phase, Scalar, display

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.reader import Entry

    Part = npt.NDArray[np.bool_]

UNREAD = "covered-unread"

END = 3e-6
"""Relative L2 that all which the net hands on may be off by."""

RIGHT = 1e-5
"""The part of its size that what is right of a value may be off by."""

TELLING = 16
"""Broken numbers that the net must hand on: of a loss alone, or of tokens, nothing is seen."""

LARGEST = 1 << 22
"""Elements of a value that is looked into."""


class Unread(Formed):
    """The reference's value, but for a part that is the port's own affair."""

    def __init__(self, entry: Entry, own: Part) -> None:
        super().__init__(entry.key, entry, entry.shape, (entry.content, own.tobytes()))
        self._entry, self._own = entry, own

    def raw(self) -> Array:
        """The exact bits."""
        return self._entry.raw()

    def due(self, array: Array) -> Optional[Array]:
        """The reference's with the port's own in that part."""
        value = self.raw()
        if array.shape != value.shape or array.dtype != value.dtype:
            return None
        return np.where(self._own, array, value)


def excuse_unread(readings: Sequence[Reading]) -> None:
    """Mark them, with how much of each is wrong, in the steps in which all that the net hands on is right, and in which
    the forced pass, if there was one, found nothing wrong: it knows what is made of each (aligner.replay.unread)."""
    steps: dict[int, list[Reading]] = {}
    for reading in readings:
        if reading.pair.key.phase is Phase.FORWARD:
            steps.setdefault(reading.pair.key.step, []).append(reading)
    for here in steps.values():
        if any(one.check is not None and one.check.fails for one in here):
            continue
        wrong = [one for one in here if one.over and one.matched and one.deviation is not None and one.pair.key.layer]
        for reading in wrong if _is_right([one for one in here if _is_end(one)]) else ():
            count = _wrong_part(reading)
            if count:
                total = int(np.prod(reading.pair.entry.shape))
                reading.over, reading.covered, reading.reason, reading.check = False, True, UNREAD, None
                reading.facts = {"count": count, "total": total}


def unread(readings: Sequence[Reading]) -> Iterator[tuple[str, Mapping[str, Scalar]]]:
    """A caution, with the first layer that makes such a value."""
    found = [one for one in readings if one.reason == UNREAD]
    if found:
        first = min(found, key=lambda one: (one.pair.key.step, one.pair.entry.order))
        facts: dict[str, Scalar] = {"layer": display(first.pair.key.layer), "slot": first.pair.key.slot}
        yield "wrong-unread", {**facts, "count": len(found)}


def _is_end(reading: Reading) -> bool:
    key = reading.pair.key
    return not key.layer and not is_input(key.slot)


def _is_right(ends: Sequence[Reading]) -> bool:
    """Whether these are right, and would show if they were not."""
    told = [one for one in ends if one.matched and one.deviation is not None and not one.covered]
    broken = sum(int(np.prod(one.pair.entry.shape)) for one in told if not DTYPES[one.pair.entry.dtype].exact)
    wrong = any(one.over or one.severity > END for one in ends if one in told or one.over)
    return broken >= TELLING and not wrong


def of_none(ours: Array, theirs: Array) -> Optional[Part]:
    """The elements of whole numbers for which the first side alone has a number below zero, whatever the others are."""
    least = int(ours.min()) if ours.dtype.kind == "i" and ours.size else 0
    part = np.asarray(ours == least)
    below = [int(np.count_nonzero(np.less(numbers, 0))) for numbers in (ours, theirs)]
    return part if least < 0 and below == [np.count_nonzero(part), 0] and not part.all() else None


def _of_none(ours: Array, theirs: Array) -> Optional[Part]:
    """The elements of whole numbers that are others, where one side has a number of its own for them: -1 for none."""
    wrong = np.asarray(ours != theirs)
    if ours.dtype.kind == "b" or not wrong.any() or wrong.all():
        return None
    words = [(numbers[wrong], numbers[~wrong]) for numbers in (ours, theirs)]
    return wrong if any((word == word[0]).all() and word[0] not in right for word, right in words) else None


def _wrong_part(reading: Reading) -> int:
    """How many elements are wrong, if all others are right; else none."""
    one, other = reading.pair.reference, reading.pair.port
    part = None if one is None or other is None else part_of(one, other)
    return 0 if part is None else int(part.sum())


def part_of(one: Entry, other: Entry, most: bool = True) -> Optional[Part]:
    """The elements that are wrong, if all others are right and there are as many of these, zeros apart, or not `most`
    but some; else None."""
    if one.shape != other.shape or not 0 < int(np.prod(one.shape)) <= LARGEST:
        return None
    if DTYPES[one.dtype].exact and DTYPES[other.dtype].exact:
        return _of_none(one.load(), other.load())
    ours, theirs = (np.asarray(entry.load(), np.float64) for entry in (one, other))
    numbers = np.abs(ours[np.isfinite(ours) & (ours != 0.0)])
    size = np.median(numbers) if numbers.size else 0.0  # of a mask that is added most are far off
    with np.errstate(invalid="ignore", over="ignore"):
        same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
        wrong = ~(same | (np.abs(ours - theirs) <= RIGHT * (size + np.abs(ours))))
    right = np.count_nonzero(~wrong & (ours != 0.0) & np.isfinite(ours))
    count = np.count_nonzero(wrong)
    return np.asarray(wrong) if 0 < count <= right or (min(count, right) > 0 and not most) else None
