"""Values that say what to look at, told by how few different numbers they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, Union

import numpy as np

from aligner.dtypes import DTYPES

if TYPE_CHECKING:
    from aligner.compare.held import Held
    from aligner.dump.reader import Entry

FEW = 3
"""Values that a mask has at most: seen, hidden, and one for what does not matter."""

LOOKED_AT = 4096
"""Elements that are looked at to tell a mask, or another order."""


def mask_like(value: Union[Held, Entry]) -> bool:
    """Whether it has so few different values that it tells what to look at: each net may say that in its own way."""
    values = value.load().reshape(-1)
    return DTYPES[value.dtype].exact or np.unique(values[:: max(1, values.size // LOOKED_AT)]).size <= FEW
