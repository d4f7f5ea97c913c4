"""Distance in units in the last place: how many representable numbers lie between two values; on request only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.kernels import BLOCK
from aligner.compare.tally import Numbers
from aligner.dtypes import DTYPES

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


def max_ulp(reference: Entry, port: Entry) -> Optional[int]:
    """The largest distance between two entries of one real floating-point type and as many elements, else None.

    Places with NaN on either side are left out; Inf is one step beyond the largest number; +0 and -0 are the same.
    """
    kind = DTYPES[reference.dtype]
    if reference.dtype != port.dtype or kind.eps is None or kind.storage.kind == "c":
        return None
    if math.prod(reference.shape) != math.prod(port.shape):
        return None
    buffers = [np.empty(BLOCK * kind.storage.itemsize, np.uint8) for _ in range(2)]
    largest = 0
    for one, other in zip(reference.stream(buffers[0]), port.stream(buffers[1])):
        numbers = [piece if kind.decode is None else kind.decode(piece) for piece in (one, other)]
        sound = ~(np.isnan(numbers[0]) | np.isnan(numbers[1]))
        places = [_place(piece[sound]) for piece in (one, other)]
        if places[0].size:
            high, low = np.maximum(*places), np.minimum(*places)
            largest = max(largest, int((high.view(np.uint64) - low.view(np.uint64)).max()))
    return largest


def _place(bits: Numbers) -> Numbers:
    """Floating-point bits as integers in the order of the values: sign and magnitude turned into a plain number."""
    width = bits.dtype.itemsize * 8
    whole = bits.view(f"<u{bits.dtype.itemsize}").astype(np.int64)
    if width == 64:
        sign = np.int64(np.iinfo(np.int64).min)
        return np.where(whole < 0, sign - whole, whole)
    sign = np.int64(1 << (width - 1))
    return np.where(whole >= sign, sign - whole, whole)
