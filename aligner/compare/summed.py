"""Backward runs of the reference's that are one of the port's: it takes the gradient of the sum of the losses.

A script that calls `backward` for each of its losses is ported as one function that adds them up, for that is what
`value_and_grad` differentiates. What the reference has run by run is added up, and set against the port's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from aligner.compare.formed import Formed
from aligner.compare.net import is_input
from aligner.compare.reformed import Part
from aligner.dtypes import encode
from aligner.record import Array, Key, Phase
from aligner.words.training import LOSS

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry


class Summed(Formed):
    """Several records of one shape, added up."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        super().__init__(entries[0].key, entries[-1], entries[0].shape, tuple(entry.content for entry in entries))
        self._entries = entries

    def raw(self) -> Array:
        """The exact bits."""
        whole = np.asarray(self._entries[0].load(), np.float64)
        for entry in self._entries[1:]:
            whole = whole + np.asarray(entry.load(), np.float64)
        return encode(whole, self.dtype)


def joined(reference: Dump, port: Dump) -> frozenset[int]:
    """The steps in which the port makes one backward run, and the reference several."""
    ours, theirs = (Counter(call.step for call in dump.calls if call.layer == LOSS) for dump in (reference, port))
    return frozenset(step for step, many in ours.items() if many > 1 and theirs[step] == 1)


def summed(reference: Dump, port: Dump, pairs: Mapping[str, str]) -> list[Part]:
    """What stands for each other in those steps: losses, and gradients of parameters. `pairs` are layers."""
    steps = joined(reference, port)
    rows: dict[tuple[int, Phase, str, str], list[Entry]] = {}
    for entry in reference.entries if steps else ():
        if entry.key.step in steps and _is_run_by_run(entry.key):
            rows.setdefault((*entry.key[:3], entry.key.slot), []).append(entry)
    found = []
    for (step, phase, layer, slot), entries in rows.items():
        other = port.find(Key(step, phase, pairs.get(layer, layer), 0, slot))
        if other is not None and len(entries) > 1 and {entry.shape for entry in entries} == {other.shape}:
            keys = entries[0].key, other.key
            whole: Any = other  # it reads like what is made of others
            found.append(Part(Summed(entries), whole, keys, ([entry.key for entry in entries[1:]], ())))
    return found


def _is_run_by_run(key: Key) -> bool:
    if key.phase is Phase.BACKWARD and key.layer != LOSS:
        return not key.slot.startswith("output.") and not is_input(key.slot)
    return (key.phase, key.layer, key.slot) == (Phase.FORWARD, LOSS, "output.0")
