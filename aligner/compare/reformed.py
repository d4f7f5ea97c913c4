"""Parameters that the port holds in another form, set against the reference's part by part.

A replay writes into the port's header which parameters stand for which, and in what form (aligner.replay.transfer).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.combined import Combined
from aligner.compare.formed import Formed
from aligner.compare.views import View
from aligner.dtypes import DTYPES
from aligner.record import Array, Key, Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry

MATRIX = 2
"""Axes of one."""

Side = tuple[str, str, View]
"""Layer, role, and what is meant of the parameter."""


class Seen(Formed):
    """A part of a parameter, in its own shape or in the counterpart's."""

    def __init__(self, entry: Entry, view: View, shape: Optional[tuple[int, ...]] = None) -> None:
        key = entry.key._replace(slot=entry.key.slot + view.label)
        super().__init__(key, entry, view.shape(entry.shape) if shape is None else shape, (entry.content, view))
        self._entry, self._view = entry, view

    def raw(self) -> Array:
        """The exact bits."""
        return np.ascontiguousarray(self._view.take(self._entry.raw())).reshape(self.shape)


class Slice(Formed):
    """A part of the last axis of what a layer makes, as a view tells of rows."""

    def __init__(self, entry: Entry, view: View) -> None:
        view = replace(view, turned=False)
        key = entry.key._replace(slot=entry.key.slot + view.label)
        self.view, self.whole = view, entry.shape[-1]
        length = view.stop - view.start if view.stop else self.whole
        super().__init__(key, entry, (*entry.shape[:-1], length), (entry.content, view))
        self._entry = entry

    @property
    def places(self) -> Any:
        """Where on the last axis."""
        return self.view.rows(self.whole) if self.view.stop else slice(0, self.whole)

    def raw(self) -> Array:
        """The exact bits."""
        return np.ascontiguousarray(self._entry.raw()[..., self.places])


class Joined(Formed):
    """What several layers make, side by side on the last axis: what one layer of the other side makes."""

    def __init__(self, source: Entry, row: Sequence[tuple[Formed, Slice]]) -> None:
        first, other = row[0]
        super().__init__(first.key, source, (*first.shape[:-1], other.whole), tuple(part.content for part, _ in row))
        self.row = row

    def raw(self) -> Array:
        """The exact bits."""
        whole = np.empty(self.shape, DTYPES[self.dtype].storage)
        for part, other in self.row:
            whole[..., other.places] = part.raw()
        return whole


def several(entry: object) -> Sequence[tuple[Formed, Slice]]:
    """Of what several layers make: what each makes, and where it stands in the port's."""
    return entry.row if isinstance(entry, Joined) else ()


def table(header: Mapping[str, Any]) -> list[tuple[Side, Side]]:
    """What a header tells of parameters in another form; what cannot be read of it is left out."""
    rows = header.get("reformed")
    found = []
    for row in rows if isinstance(rows, (list, tuple)) else ():
        sides = [_side(side) for side in row] if isinstance(row, (list, tuple)) and len(row) == 2 else []
        if len(sides) == 2 and sides[0] is not None and sides[1] is not None:
            found.append((sides[0], sides[1]))
    return found


def _side(facts: Any) -> Optional[Side]:
    if not isinstance(facts, (list, tuple)) or len(facts) != 3:
        return None
    layer, role, view = facts
    try:
        return (layer, role, View.parsed(view)) if isinstance(layer, str) and isinstance(role, str) else None
    except ValueError:
        return None


@dataclass(frozen=True)
class Part:
    """What stands for each other, and the records that they are parts of."""

    reference: Formed
    port: Formed
    whole: tuple[Key, Key]
    more: tuple[Sequence[Key], Sequence[Key]] = ((), ())
    """Further records of either side that it is made of."""

    def keys(self, side: int) -> Sequence[Key]:
        """All records of a side that stand in no other pair."""
        return (self.whole[side], *self.more[side])


def parts(reference: Dump, port: Dump) -> list[Part]:
    """The parts of parameters that the port's header tells of, as far as both dumps hold them."""
    rows, sides = table(port.header), combined(reference, port)
    steps = {entry.key.step for entry in reference.entries if entry.key.phase is Phase.PARAMETER} if rows else set()
    found = []
    for step in sorted(steps):
        for (ours, role, view), (theirs, other, seen) in rows:
            one, two = sides[0].entry(step, ours, role), sides[1].entry(step, theirs, other)
            if one is not None and two is not None and view.within(one.shape) and seen.within(two.shape):
                ours_seen, shape = Seen(one, view), seen.shape(two.shape)
                same = np.prod(shape) == np.prod(ours_seen.shape)
                theirs_seen = Seen(two, seen, ours_seen.shape if same else None)
                keys = Key(step, Phase.PARAMETER, ours, 0, role), Key(step, Phase.PARAMETER, theirs, 0, other)
                more = sides[0].keys(step, ours, role), sides[1].keys(step, theirs, other)
                found.append(Part(ours_seen, theirs_seen, keys, more))
    return found


def combined(reference: Dump, port: Dump) -> tuple[Combined, Combined]:
    """The parameters of either side that are made of several."""
    return Combined.of(0, port.header, reference), Combined.of(1, port.header, port)


def made(reference: Dump, port: Dump) -> list[Part]:
    """What layers make that hold such parts of a matrix: the same part of their last axis."""
    found = []
    for (ours, role, view), (theirs, other, seen) in table(port.header):
        rows = _rows(reference, ours, role, view), _rows(port, theirs, other, seen)
        if not (view.stop or seen.stop) or 0 in rows:
            continue
        for call in reference.calls:
            if call.layer != ours or call.phase is not Phase.FORWARD:
                continue
            one = reference.find(Key(call.step, Phase.FORWARD, ours, call.number, "output.0"))
            two = port.find(Key(call.step, Phase.FORWARD, theirs, call.number, "output.0"))
            if one is None or two is None or one.shape[:-1] != two.shape[:-1]:
                continue
            if (one.shape[-1:], two.shape[-1:]) != ((rows[0],), (rows[1],)):
                continue
            if one.dtype == two.dtype and view.within(one.shape[-1:]) and seen.within(two.shape[-1:]):
                sides = Slice(one, view), Slice(two, seen)
                found += [Part(*sides, (one.key, two.key))] if sides[0].shape == sides[1].shape else []
    return found


def _rows(dump: Dump, layer: str, role: str, view: View) -> int:
    """How many rows a layer's matrix has: as many as it makes numbers of each row; 0 for what is none."""
    step = min((call.step for call in dump.calls), default=0)
    entry = dump.find(Key(step, Phase.PARAMETER, layer, 0, role))
    shape = entry.shape if entry is not None else ()
    return 0 if len(shape) != MATRIX else shape[::-1][0] if view.turned else shape[0]


def counterparts(parts: Iterable[Part], reference: Dump) -> Mapping[Key, Formed]:
    """By the port's record: what it is to be as a whole, where all of it is known."""
    rows: dict[Key, dict[Key, tuple[Formed, Slice]]] = {}
    for part in parts:
        if isinstance(part.port, Slice):
            rows.setdefault(part.whole[1], {})[part.port.key] = part.reference, part.port
    result: dict[Key, Formed] = {}
    for key, row in rows.items():
        pairs = sorted(row.values(), key=lambda pair: pair[1].view.start)
        first = reference.find(pairs[0][0].key) or reference.find(pairs[0][0].key._replace(slot="output.0"))
        if len(pairs) == 1 and not pairs[0][1].view.stop:
            result[key] = pairs[0][0]
        elif first is not None and sum(part.shape[-1] for part, _ in pairs) == pairs[0][1].whole:
            result[key] = Joined(first, pairs)
    return result
