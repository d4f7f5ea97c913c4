"""Whether a layer gives the same numbers when it is run again: not all that computes does."""

from __future__ import annotations

from typing import Optional

import numpy as np

from aligner.compare.checks import Check
from aligner.dtypes import decode
from aligner.record import Array, Key
from aligner.replay.alone import Alone

Made = dict[Key, tuple[str, Array]]


def repeated(check: Check, alone: Alone) -> Optional[float]:
    """Relative L2 between two runs of the layer on the reference's inputs, 0 if their bits are the same.

    None where the layer cannot be run by itself.
    """
    try:
        first, second = _made(check, alone), _made(check, alone)
    except Exception:  # a layer that cannot be copied says nothing
        return None
    if first.keys() != second.keys():
        return None
    return max((_apart(first[key], second[key]) for key in first), default=None)


def _made(check: Check, alone: Alone) -> Made:
    made: Made = {}
    alone.error(check, told=lambda key, dtype, array: made.update({key: (dtype, np.array(array))}))
    return made


def _apart(one: tuple[str, Array], other: tuple[str, Array]) -> float:
    """What is not finite in either says nothing."""
    first, second = (np.asarray(decode(array, dtype), np.float64) for dtype, array in (one, other))
    if first.shape != second.shape:
        return 0.0
    seen = np.isfinite(first) & np.isfinite(second)
    size = float(np.linalg.norm(first[seen]))
    return float(np.linalg.norm(second[seen] - first[seen])) / size if size else 0.0
