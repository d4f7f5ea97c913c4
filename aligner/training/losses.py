"""Losses that are multiplied on purpose: by a loss scale, or by the number of batches that make one update.

One side divides its loss before the backward run, the other one its gradients behind it: that is no mistake, and what
is left of it when the optimizer gets the gradients is judged there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Optional

from aligner.record import Key, Phase
from aligner.words.training import LOSS

if TYPE_CHECKING:
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

NEAR = 1e-4
SCALE = 16
"""A loss scale is a power of two from here on: smaller ones are numbers of rows, classes or batches as well."""


def times(reference: Dump, step: int, call: Optional[int], ours: float, known: float) -> float:
    """How many times the reference's loss a port's loss is, by the way it is written; `known` where this loss does not
    tell. Without a `call` it is one of all of the step's."""
    theirs = whole(reference, step) if call is None else value(_loss(reference, step, call))
    call = call or 0
    if theirs is None or not theirs or not math.isfinite(ours / theirs):
        return known
    runs = sum((one.step, one.layer) == (step, LOSS) for one in reference.calls)
    made = reference.find(Key(step, Phase.FORWARD, "", call, "output.0"))
    return _factor(ours / theirs, runs, () if made is None else made.shape, known)


def whole(dump: Dump, step: int) -> Optional[float]:
    """All losses of a step added up."""
    found: list[float] = []
    while (one := value(_loss(dump, step, len(found)))) is not None:
        found.append(one)
    return sum(found) if found else None


def _loss(dump: Dump, step: int, call: int) -> Optional[Entry]:
    return dump.find(Key(step, Phase.FORWARD, LOSS, call, "output.0"))


def value(entry: Optional[Entry]) -> Optional[float]:
    """Of a loss in a dump."""
    return float(entry.load().reshape(-1)[0]) if entry is not None and math.prod(entry.shape) == 1 else None


def _factor(ratio: float, runs: int, shape: Sequence[int], known: float) -> float:
    for one in (1.0, known, float(runs), 1 / max(runs, 1)):
        if _near(ratio, one):
            return one
    power = 2.0 ** round(math.log2(ratio)) if ratio > 0 else 1.0
    means = {math.prod(shape[:many]) for many in range(1, len(shape) + 1)} | set(shape)  # a sum for a mean
    if _near(ratio, power) and max(power, 1 / power) >= SCALE and not means & {power, 1 / power}:
        return power
    return known


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= NEAR * abs(other)
