"""Values of a forced pass whose rows stand in another order than the reference's: of two nets one may sort its
sentences by their lengths, and put back what comes of them.
"""

from __future__ import annotations

import numpy as np

from aligner.compare.held import Held
from aligner.dtypes import DTYPES
from aligner.explain.case import distance

LEAST, MOST = 3, 1 << 24
"""Rows that have an order to tell, and numbers that are looked at."""


def in_other_order(wanted: Held, found: Held, limit: float) -> bool:
    """Whether it is so, along any axis: each row of the one is a row of the other."""
    one, other = (np.asarray(side.load(), np.float64) for side in (wanted, found))
    if one.shape != other.shape or one.size > MOST or DTYPES[found.dtype].exact or not np.isfinite(other).all():
        return False
    for axis, size in enumerate(one.shape):
        if size < LEAST or size == one.size:
            continue
        ours, theirs = (np.moveaxis(side, axis, 0).reshape(size, -1) for side in (one, other))
        mix = np.random.default_rng(0).standard_normal(ours.shape[1])
        order = np.empty(size, np.int64)
        order[np.argsort(theirs @ mix)] = np.argsort(ours @ mix)
        if (order != np.arange(size)).any() and distance(ours[order], theirs) <= limit:
            return True
    return False
