"""Gradients that reach nothing wrong: where a layer hands none on (its inputs are numbers of rows), only its parameters
are moved by what it is given. An embedding drops what belongs to its row of padding; a port may give it zeros there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING

from aligner.compare.net import is_input
from aligner.record import Phase

if TYPE_CHECKING:
    from aligner.compare.reading import Reading


def excuse_unreached(readings: Iterable[Reading]) -> None:
    """Cover gradients of outputs that come to the same gradients of all parameters, and to no other."""
    steps: dict[int, list[Reading]] = defaultdict(list)
    for reading in readings:
        if reading.pair.key.phase is Phase.BACKWARD:
            steps[reading.pair.key.step].append(reading)
    for found in steps.values():
        for reading in found:
            layer = reading.pair.key.layer
            if reading.over and reading.matched and layer and reading.pair.key.slot.startswith("output."):
                made = [one for one in found if _is_within(one, layer)]
                if made and all(one.matched and one.good and not is_input(one.pair.key.slot) for one in made):
                    reading.covered, reading.over, reading.reason = True, False, "covered-unreached"


def _is_within(reading: Reading, layer: str) -> bool:
    """Whether it is an input's or a parameter's, of the layer or of one inside it, apart from what is handed inside."""
    key = reading.pair.key
    if key.layer == layer:
        return not key.slot.startswith("output.")
    return key.layer.startswith(f"{layer}.") and not key.slot.startswith("output.") and not is_input(key.slot)
