"""Lengths of rows as the masks that code makes of them: what stands before each row's end, with or without one more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from aligner.explain.case import Value

WAYS = (("> arange", 0), (">= arange", 1))
"""As code behind the lengths' name, and how many elements more that leaves in."""

MOST = 2
"""Vectors of lengths that are looked at."""


def masks(values: Sequence[Value]) -> Iterator[Value]:
    """For each vector of lengths in hand the masks of the rows that are as many."""
    seen = 0
    for value in values:
        if len(value.shape) != 1 or value.shape[0] < 2 or "int" not in value.dtype or seen == MOST:
            continue
        sizes = Counter(v.shape[1] for v in values if len(v.shape) > 1 and v.shape[0] == value.shape[0])
        lengths = np.asarray(value.load(), np.int64)
        fitting = [size for size, _ in sizes.most_common() if size > 1 and 1 <= lengths.min() <= lengths.max() <= size]
        if not fitting or len(np.unique(lengths)) < 2:
            continue
        seen += 1
        for word, more in WAYS:
            yield _mask(value, f"{value.slot} {word}", lengths + more, fitting[0])


def _mask(value: Value, slot: str, lengths: np.ndarray, size: int) -> Value:  # type: ignore[type-arg]  # of integers
    kept = (lengths[:, None] > np.arange(size)).astype(np.float32)
    return Value(value.layer, slot, value.call, "float32", kept.shape, lambda: kept)


def ends_apart(one: str, other: str) -> bool:
    """Whether two pieces of code differ in such a mask alone."""
    first, second = (f" {word}" for word, _ in WAYS)
    return one != other and one.replace(first, second) == other.replace(first, second)


def apart(one: str, other: str) -> bool:
    """Whether two names are of masks that one vector of lengths makes, the one with an element more."""
    words = [word for word, _ in WAYS]
    ends = [next((word for word in words if name.endswith(f" {word}")), "") for name in (one, other)]
    return all(ends) and ends[0] != ends[1] and one[: -len(ends[0])] == other[: -len(ends[1])]
