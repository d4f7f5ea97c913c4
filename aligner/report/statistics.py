"""What a person looks at first in an array: smallest, largest, mean, size, and what is not a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from aligner.record import Array


@dataclass(frozen=True)
class Statistics:
    """Of the finite elements; None where there are none. Complex arrays are described by their moduli."""

    total: int
    minimum: Optional[float]
    maximum: Optional[float]
    mean: Optional[float]
    rms: Optional[float]
    nan: int
    inf: int


def describe(array: Array) -> Statistics:
    """The statistics of an array that holds numbers (aligner.dtypes.decode makes them)."""
    values: Any = np.abs(array) if array.dtype.kind == "c" else array
    nan = inf = 0
    if values.dtype.kind == "f":
        finite = np.isfinite(values)
        kept = int(np.count_nonzero(finite))
        if kept < values.size:
            nan = int(np.count_nonzero(np.isnan(values)))
            inf = values.size - kept - nan
            values = values[finite]
    if values.size == 0:
        return Statistics(array.size, None, None, None, None, nan, inf)
    mean = float(values.mean(dtype=np.float64))
    return Statistics(
        array.size, float(values.min()), float(values.max()), mean, _rms(np.asarray(values).ravel()), nan, inf
    )


def _rms(values: Array) -> float:
    """Root mean square in float64, block by block: no copy of the whole in the wider type."""
    total = 0.0
    for start in range(0, values.size, 1 << 16):
        block = values[start : start + (1 << 16)].astype(np.float64)
        total += float(np.dot(block, block))
    return float(np.sqrt(total / values.size))
