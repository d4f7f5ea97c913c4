"""Where in the reference's run a value of the port stands, whatever layer made it.

Where layers that hold others begin and end is a matter of how a port was written. What such a layer is given or hands
on is right if it is any value of the reference; whether it is the one that is due shows in what comes of it inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from aligner.dtypes import DTYPES, decode
from aligner.replay.forms import squeezed

if TYPE_CHECKING:
    from aligner.compare.held import Held
    from aligner.dump.reader import Entry

LOOKED_AT = 256
"""Elements that are looked at to know a value again."""

NEAR = 0.02
"""Values are set against each other as a whole where these differ by no more than this part."""

LEAST = 16
"""A value of fewer elements may be another one by chance."""


@dataclass(frozen=True)
class Standing:
    """The reference's values by step and number of elements; what is read of them is kept."""

    entries: Mapping[tuple[int, int], Sequence[Entry]] = field(default_factory=dict)
    _seen: dict[object, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> Standing:
        """Each content once."""
        found: dict[tuple[int, int], dict[object, Entry]] = {}
        for entry in entries:
            size = int(np.prod(entry.shape, dtype=np.int64))
            if size >= LEAST and not DTYPES[entry.dtype].exact:
                found.setdefault((entry.key.step, size), {}).setdefault(entry.content, entry)
        return cls({key: [*alike.values()] for key, alike in found.items()})

    def near(self, found: Held, step: int) -> list[Entry]:
        """Those that may be this value, nearest first: in the same order of elements, and of the same axes first."""
        size = int(np.prod(found.shape, dtype=np.int64))
        alike = self.entries.get((step, size), ()) if not DTYPES[found.dtype].exact else ()
        if not alike:
            return []
        one = _sample(found.raw(), found.dtype)
        if not np.isfinite(one).all() or np.unique(one).size <= LEAST // 4:
            return []  # masks and constants are equal by chance
        ranked = []
        for entry in alike:
            if entry.content not in self._seen:
                self._seen[entry.content] = _sample(entry.raw(), entry.dtype)
            other = self._seen[entry.content]
            scale = float(np.linalg.norm(other))
            with np.errstate(all="ignore"):
                apart = float(np.linalg.norm(one - other))
            if scale > 0.0 and apart <= NEAR * scale:
                ranked.append((squeezed(entry.shape) != squeezed(found.shape), apart / scale, entry))
        return [entry for *_, entry in sorted(ranked, key=lambda place: place[:2])]


def _sample(array: Any, dtype: str) -> Any:
    flat = array.reshape(-1)
    places = np.linspace(0, flat.size - 1, min(flat.size, LOOKED_AT)).astype(np.int64)
    return decode(flat[places], dtype).astype(np.float64)
