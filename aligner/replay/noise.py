"""Changes that rounding could have made: what a run is disturbed by to see how much of an error they explain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aligner.record import Array

Change = Callable[[Array, str], Array]


def noise(scale: float, seed: int = 0) -> Change:
    """A change that rounding could have made, of this relative size."""
    random = np.random.default_rng(seed)

    def change(array: Array, dtype: str) -> Array:
        factors = 1.0 + scale * random.uniform(-1.0, 1.0, array.shape)
        return np.asarray(np.multiply(array, factors))

    return change
