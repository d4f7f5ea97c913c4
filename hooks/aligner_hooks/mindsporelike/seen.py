"""Values that come out of a compiled graph, where no tensor is left of them."""

from __future__ import annotations

from dataclasses import dataclass

from aligner.record import Array


@dataclass(frozen=True)
class Seen:
    """A tensor as a compiled graph shows it: its bits, in the storage of its type. It is none that operators take."""

    array: Array
    dtype: str
