"""Measures the pairs: each pair of stored arrays once, however many records show them.

The same array is the output of one layer, of the container around it and the input of the next one: in a true pair of
dumps a third is measured, and a forged one cannot have a gigabyte read again for each of a million records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Optional

from aligner.compare.net import is_input
from aligner.compare.reading import Reading, read
from aligner.errors import IncomparableError

if TYPE_CHECKING:
    from aligner.compare.pairing import Pair
    from aligner.compare.tolerance import Tolerance

Progress = Callable[[int, int, int], None]

MOST = 100
"""Times that an array is measured on average: against so many arrays of the other side. In true dumps it is one, and a
few where both sides have constants; a forger could set each of a thousand arrays against each of a thousand."""
SMALL = 1 << 30
"""Bytes that are measured without asking."""
MOST_PAIRS = 4_000_000
"""Fifty thousand layers, eight values each, ten steps. Each pair takes 2 KB of memory, so that more would take 8 GB."""


def measured(
    pairs: Sequence[Pair], tolerance: Tolerance, executor: Optional[Executor], progress: Optional[Progress]
) -> list[Reading]:
    """The readings, in the order of the pairs.

    Raises:
        IncomparableError: there are too many, or far more would have to be read than the dumps hold.
        DumpError: values are damaged.
    """
    if len(pairs) > MOST_PAIRS:
        raise IncomparableError("pairs-too-many", count=len(pairs), limit=MOST_PAIRS)
    shown: dict[object, list[int]] = {}
    for number, pair in enumerate(pairs):
        shown.setdefault(_values(pair, number), []).append(number)
    first = [pairs[numbers[0]] for numbers in shown.values()]
    _check_amount(first)
    readings: list[Optional[Reading]] = [None] * len(pairs)
    done = bytes_read = 0
    results = map_in_order(executor, partial(read, tolerance=tolerance), first)
    for numbers, reading in zip(shown.values(), results):
        for number in numbers:
            readings[number] = replace(reading, pair=pairs[number])
        if reading.matched:
            bytes_read += _size(reading.pair)
        done += len(numbers)
        if progress is not None:
            progress(done, len(pairs), bytes_read)
    return [reading for reading in readings if reading is not None]


def map_in_order(
    executor: Optional[Executor], job: Callable[[Pair], Reading], pairs: Sequence[Pair]
) -> Iterable[Reading]:
    """The results in the order of the pairs, by the executor if there is one."""
    return (job(pair) for pair in pairs) if executor is None else executor.map(job, pairs)


def _values(pair: Pair, number: int) -> object:
    """What two pairs have in common that are read alike: the arrays, and whether shapes may differ in axes."""
    one, other = pair.reference, pair.port
    if one is None or other is None:
        return number
    return one.place, other.place, bool(one.key.layer), is_input(one.key.slot)


def _size(pair: Pair) -> int:
    return sum(entry.nbytes for entry in (pair.reference, pair.port) if entry is not None)


def _check_amount(pairs: Iterable[Pair]) -> None:
    """See that what is to be read is in proportion to what there is."""
    there: dict[tuple[str, object], int] = {}
    total = 0
    for pair in pairs:
        if pair.reference is not None and pair.port is not None:
            total += _size(pair)
            there["reference", pair.reference.place] = pair.reference.nbytes
            there["port", pair.port.place] = pair.port.nbytes
    if total > SMALL + MOST * sum(there.values()):
        raise IncomparableError("values-repeated", total=total, there=sum(there.values()), limit=MOST)
