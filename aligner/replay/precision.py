"""In which float type a port usually computes, though the reference computes in a longer one.

Casts hide inside the layers: what stands at their borders may be float32 and yet lie on float16's grid.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Optional

import numpy as np

from aligner.compare.pairing import Pair
from aligner.dtypes import DTYPES, decode, encode
from aligner.record import Array, Phase

SHORT = ("float16", "bfloat16")

LOOKED_AT = 24
"""Outputs that are looked at; a net computes in one precision, with exceptions."""

ENOUGH = 64
"""Elements that tell a grid: so many do not lie on it by chance."""


def grid(array: Array) -> Optional[str]:
    """The short type whose grid all the numbers lie on, None if there is none or too few numbers tell."""
    flat = array.reshape(-1)[: 1 << 14].astype(np.float32)
    flat = flat[np.isfinite(flat) & (flat != 0)]
    if np.unique(flat).size < ENOUGH or np.array_equal(flat, np.round(flat)):
        return None
    for word in reversed(SHORT):  # what lies on bfloat16's grid may lie on float16's as well
        if np.array_equal(decode(encode(flat, word), word).astype(np.float32), flat):
            return word
    return None


CASTS = (None, "", "to_float", "custom", "autocast")
"""Words for AMP in a header that say nothing of the net as a whole: none, and casts set in places."""


def usual(pairs: Sequence[Pair], amp: object) -> Optional[str]:
    """The short type that a port computes in as a rule: the one most of its weighted layers make where the reference
    makes a longer one; else, where AMP was put on the whole net (`amp` of its header), AMP's."""
    return _made(pairs) or (None if amp in CASTS else "float16")


def _made(pairs: Sequence[Pair]) -> Optional[str]:
    weighted = {p.key.layer for p in pairs if p.key.phase is Phase.PARAMETER and p.key.slot == "weight"}
    chosen = [
        pair
        for pair in pairs
        if pair.key.phase is Phase.FORWARD and pair.key.layer in weighted and pair.key.slot.startswith("output")
    ]
    found: Counter[Optional[str]] = Counter()
    for pair in chosen[:: max(1, len(chosen) // LOOKED_AT)]:
        one, other = pair.reference, pair.port
        if one is None or other is None or DTYPES[one.dtype].eps is None or one.dtype in SHORT:
            continue
        found[other.dtype if other.dtype in SHORT else grid(other.load())] += 1
    word, count = found.most_common(1)[0] if found else (None, 0)
    return word if 2 * count > sum(found.values()) else None
