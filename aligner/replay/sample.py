"""Values that are known again by some of their elements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

import numpy as np

from aligner.dtypes import decode

LOOKED_AT = 512
"""Elements that are looked at to know a value again."""

NEAR = 0.02
"""Two values are one where these differ by no more than this part: a short type rounds, others are far off."""

FARTHEST = 0.2
"""How far off a value may be, as a part of it, to be said to be so far off."""


@dataclass(frozen=True, eq=False)
class Sample:
    """Some elements of a value, and how many it has."""

    size: int
    values: Any
    scale: float
    """Root of the sum of squares of these."""

    @classmethod
    def of(cls, array: Any, dtype: str) -> Sample:
        flat = array.reshape(-1)
        places = np.linspace(0, max(flat.size - 1, 0), min(flat.size, LOOKED_AT)).astype(np.int64)
        values = decode(flat[places], dtype).astype(np.float64)
        with np.errstate(all="ignore"):
            return cls(flat.size, values, float(np.linalg.norm(values)))

    def off(self, other: Optional[Sample]) -> float:
        """How far these are from other values, as a part of them; 1 for all that is farther, and for zeros, which tell
        nothing.
        """
        if other is None or other.size != self.size or not self.size:
            return 1.0
        if not other.scale > 0.0 or abs(self.scale - other.scale) > 2 * FARTHEST * other.scale:
            return 1.0  # values are as far apart as their lengths are, at least
        with np.errstate(all="ignore"):
            found = float(np.linalg.norm(self.values - other.values)) / other.scale
        return found if found < 1.0 else 1.0

    def near(self, other: Optional[Sample]) -> bool:
        """Whether these are the same values, as far as they tell."""
        return self.off(other) <= NEAR
