"""Changes that rounding could have made: what a run is disturbed by to see how much of an error they explain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from aligner.record import Array

Change = Callable[[Array, str], Array]

DISTURBED = 0.5
"""How much values are disturbed, in units of the spacing of their floats: what rounding does to them at most."""


def noise(scale: float, seed: int = 0, zeros: bool = False) -> Change:
    """A change that rounding could have made, of this relative size; of zeros as a part of the largest, if any."""
    random = np.random.default_rng(seed)

    def change(array: Array, dtype: str) -> Array:
        drawn = scale * random.uniform(-1.0, 1.0, array.shape)
        found = np.asarray(np.multiply(array, 1.0 + drawn))
        return np.where(array == 0, drawn * np.abs(array).max(initial=0.0), found) if zeros else found

    return change


def apart(found: Array, kept: Array) -> float:
    """Relative L2 of what was done to a value; nothing is explained by it where values are not finite."""
    with np.errstate(all="ignore"):
        one, other = kept.astype(np.float64), found.astype(np.float64)
        distance = float(np.linalg.norm(other - one)) / (float(np.linalg.norm(one)) or 1.0)
    return distance if np.isfinite(distance) else 0.0
