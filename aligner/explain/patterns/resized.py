"""A value of another shape that holds the same numbers: cropped, padded, or every k-th element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Optional

from aligner.explain.patterns.pair import Floats, Pair, at, spots
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect

REACH = 8
"""The most elements that a crop may leave out of an axis."""


def suspects(pair: Pair) -> Iterator[Suspect]:
    """One suspect where the shapes differ in their sizes and one value is a part of the other."""
    if pair.alike or pair.expected.ndim != pair.actual.ndim:
        return
    wide, narrow = pair.expected.shape, pair.actual.shape
    for one, other, cause in (
        (pair.expected, pair.actual, "part-missing"),
        (pair.actual, pair.expected, "part-added"),
    ):
        cut = _part(pair, one, other)
        if cut is not None:
            left, words = cut
            yield pair.suspect(cause, left, 0.7, shape=str(wide), port_shape=str(narrow), part=words)
            return


def _part(pair: Pair, whole: Floats, part: Floats) -> Optional[tuple[float, Fact]]:
    if any(n > m for n, m in zip(part.shape, whole.shape)):
        return None
    for choice in product(*(_ways(m, n) for m, n in zip(whole.shape, part.shape))):
        view = whole[choice]
        if view.shape != part.shape:
            continue
        places = spots(part.size, 512)
        if pair.near(at(view, places), at(part, places)):
            left = pair.proved(view, part)
            if left is not None:
                return left, _words(choice, whole.shape)
    return None


def _ways(size: int, kept: int) -> Sequence[slice]:
    """How `kept` elements may have been taken from `size`."""
    if size == kept:
        return [slice(None)]
    found = [slice(at_, at_ + kept) for at_ in range(min(size - kept, REACH) + 1)]
    if size - kept > REACH:
        found.append(slice(size - kept, size))
    for step in range(2, 5):
        for start in range(step):
            if len(range(start, size, step)) == kept:
                found.append(slice(start, size, step))
    return found


def _words(choice: Sequence[slice], shape: Sequence[int]) -> Fact:
    told = []
    for axis, (cut, size) in enumerate(zip(choice, shape)):
        if cut != slice(None):
            step = f":{cut.step}" if cut.step else ""
            told.append(phrase("cut-of-axis", axis, f"{cut.start}:{min(cut.stop, size)}{step}", size))
    return told[0] if len(told) == 1 else tuple(told)
