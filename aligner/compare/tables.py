"""Tables of angles that one side keeps twice, for both halves of a head, and the other once, or as complex numbers.

The reference's is set against the port's in the port's form: as one of its halves, twice, or as one of its two parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.formed import Formed
from aligner.compare.outputs import by_value
from aligner.compare.spread import LARGEST, squeezed
from aligner.record import Array

if TYPE_CHECKING:
    from aligner.dump.reader import Entry

Way = Callable[[Array], Array]

ONCE: dict[str, Way] = {
    "[half]": lambda whole: whole[..., : whole.shape[-1] // 2],
    "[every second]": lambda whole: whole[..., ::2],
}
TWICE: dict[str, Way] = {
    "[half]": lambda half: np.concatenate([half, half], -1),
    "[every second]": lambda half: half.repeat(2, -1),
}
PARTS: dict[str, Way] = {".real": np.real, ".imag": np.imag}


class Table(Formed):
    """A record in another form."""

    def __init__(self, entry: Entry, label: str, way: Way, shape: tuple[int, ...]) -> None:
        super().__init__(entry.key._replace(slot=entry.key.slot + label), entry, shape, (entry.content, label, shape))
        if label in PARTS:
            self.dtype, self.nbytes = "float32" if entry.dtype == "complex64" else "float64", self.nbytes // 2
        self.entry, self._way = entry, way

    def raw(self) -> Array:
        """The exact bits."""
        return np.ascontiguousarray(self._way(self.entry.raw()))


def tables(ours: Sequence[Entry], theirs: Sequence[Entry]) -> list[tuple[Table, Entry]]:
    """What of these records stands for each other so: of what looks alike the nearest, else in order."""
    forms = [form for entry in ours if entry.nbytes <= LARGEST and entry.shape for form in _forms(entry, theirs)]
    found: list[tuple[Table, Entry]] = []
    taken: set[object] = set()
    for one, other in by_value(forms, theirs):  # type: ignore[arg-type]  # they read like records
        found.append((one, other))  # type: ignore[arg-type]  # as above
        taken |= {one.key, id(other)}
    for form in forms:
        twin = next((t for t in theirs if id(t) not in taken and squeezed(t.shape) == squeezed(form.shape)), None)
        if twin is not None and form.key not in taken:
            found.append((form, twin))
            taken |= {form.key, id(twin)}
    halves = [form.entry.key for form, _ in found if form.key.slot.endswith((*PARTS,))]
    return [two for two in found if halves.count(two[0].entry.key) != 1]  # of a complex number both parts, or none


def _forms(entry: Entry, theirs: Sequence[Entry]) -> Iterator[Table]:
    *rest, last = entry.shape
    shapes = {squeezed(other.shape) for other in theirs}
    if "complex" in entry.dtype:
        if squeezed(entry.shape) in shapes:
            yield from (Table(entry, label, way, entry.shape) for label, way in PARTS.items())
        return
    half, whole = (*rest, last // 2), (*rest, last * 2)
    if last > 1 and not last % 2 and squeezed(half) in shapes:
        label = _twice(entry)
        if label is not None:
            yield Table(entry, label, ONCE[label], half)
    elif squeezed(whole) in shapes:
        label = next((_twice(other) for other in theirs if squeezed(other.shape) == squeezed(whole)), None)
        if label is not None:
            yield Table(entry, label, TWICE[label], whole)


def _twice(entry: Entry) -> Optional[str]:
    """How all that a record holds stands in it twice, along its last axis."""
    if entry.nbytes > LARGEST:
        return None
    array = entry.raw()
    ways = (label for label, way in ONCE.items() if np.array_equal(TWICE[label](way(array)), array))
    return next(ways, None) if array.size and np.ptp(array.reshape(-1).astype(np.float64)) else None
