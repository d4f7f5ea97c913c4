"""What short types explain in a training: the forced pass measures the first step alone, and no backward run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from aligner.compare.expected import EXPLAINED
from aligner.compare.net import is_input
from aligner.dtypes import DTYPES
from aligner.record import Phase
from aligner.words.training import LOSS

if TYPE_CHECKING:
    from aligner.compare.reading import Reading

FLOAT32 = DTYPES["float32"].eps or 0.0

KINKED = 2.0
"""Few values stand so near at a kink that rounding moves them to its other side, and each gradient there is off as a
whole: a backward run is off by so many times the root of what the type rounds."""


def excuse_short(readings: Sequence[Reading]) -> Mapping[int, float]:
    """What the shortest type rounds that the layers of each step compute in.

    Judge a later step's values by what the same ones were off by in the first, which was held layer by layer, and
    gradients by the shortest type that their step computes in."""
    first: dict[tuple[str, str], tuple[int, float]] = {}
    short: dict[int, float] = {}
    for reading in sorted(readings, key=lambda one: one.pair.key.step):
        key = reading.pair.key
        if key.phase is Phase.FORWARD and key.layer != LOSS and reading.matched:
            step, most = first.setdefault((key.layer, key.slot), (key.step, 0.0))
            if step == key.step:
                first[key.layer, key.slot] = step, max(most, _measured(reading))
            sides = (reading.pair.reference, reading.pair.port)
            eps = max((DTYPES[one.dtype].eps or 0.0) for one in sides if one is not None)
            short[key.step] = max(short.get(key.step, 0.0), eps if key.layer else 0.0)
    for reading in readings:
        key, deviation = reading.pair.key, reading.deviation
        if not reading.over or reading.covered or not reading.matched or deviation is None or deviation.nonfinite:
            continue
        if key.phase is Phase.FORWARD and key.layer != LOSS and (key.layer or not is_input(key.slot)):
            step, most = first[key.layer, key.slot]
            reading.rounded = step < key.step and reading.severity <= EXPLAINED * most
        elif key.phase is Phase.BACKWARD and key.layer != LOSS and short.get(key.step, 0.0) > FLOAT32:
            reading.rounded = deviation.rel_l2 <= KINKED * math.sqrt(short[key.step])
        reading.over = not reading.rounded
    return short


def _measured(reading: Reading) -> float:
    """What rounding makes of a value, where it is right."""
    if not reading.good:
        return 0.0
    return max(reading.severity, reading.check.expected if reading.check is not None else 0.0)
