"""Whether two nets really ran on other weights or inputs, where their dumps seem to be mixed up: the values tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Optional

from aligner.compare.mixup import Mixup
from aligner.compare.net import Net
from aligner.compare.reading import Reading
from aligner.compare.sorting import is_given
from aligner.record import Phase

MOST = 0.5
"""Of the weights that differ where nothing is known of them but that the reference was another capture."""


def settled(mixup: Optional[Mixup], readings: Sequence[Reading], net: Net) -> Optional[Mixup]:
    """What is left of it when weights and inputs have been compared."""
    if mixup is None or not mixup.void or mixup.message in ("mixup-self", "mixup-swapped"):
        return mixup
    given = [r for r in readings if r.matched and r.over and is_given(r.pair.key, net.roots)]
    if mixup.message == "mixup-inputs":
        return replace(mixup, facts={**mixup.facts, "slot": given[0].pair.key.slot}) if given else None
    weights = [r for r in readings if r.matched and r.pair.key.phase is Phase.PARAMETER]
    wrong = sum(reading.over for reading in weights)
    if given or wrong > (MOST * len(weights) if mixup.unsure else 0):
        return mixup
    return replace(mixup, message=mixup.otherwise, void=False) if mixup.otherwise else None
