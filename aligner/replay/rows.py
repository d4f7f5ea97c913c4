"""Values of a forced pass whose rows stand in another order than the reference's: of two nets one may sort its
sentences by their lengths, and put back what comes of them.
"""

from __future__ import annotations

import math

import numpy as np

from aligner.compare.held import Held
from aligner.dtypes import DTYPES
from aligner.explain.case import distance

LEAST, MOST = 3, 1 << 24
"""Rows that have an order to tell; of a value of more numbers it is not told."""

SAMPLE = 64
"""Numbers of each row that are looked at first."""


def in_other_order(wanted: Held, found: Held, limit: float) -> bool:
    """Whether it is so, along any axis: each row of the one is a row of the other. A part of each row tells first."""
    if wanted.shape != found.shape or math.prod(found.shape) > MOST or DTYPES[found.dtype].exact:
        return False
    one, other = wanted.load(), found.load()
    if not np.isfinite(np.asarray(other)).all():
        return False  # of what overflowed no order tells
    for axis, size in enumerate(one.shape):
        width = one.size // size if size >= LEAST else 1
        if width < 2:
            continue
        ours, theirs = (np.moveaxis(side, axis, 0).reshape(size, width) for side in (one, other))
        places = np.unique(np.random.default_rng(0).integers(0, width, SAMPLE))
        few, those = (np.asarray(side[:, places], np.float64) for side in (ours, theirs))
        mix = np.random.default_rng(1).standard_normal(len(places))
        order = np.empty(size, np.int64)
        order[np.argsort(those @ mix)] = np.argsort(few @ mix)
        if (order == np.arange(size)).all() or not distance(few[order], those) <= limit:
            continue
        if distance(ours[order], theirs) <= limit:
            return True
    return False
