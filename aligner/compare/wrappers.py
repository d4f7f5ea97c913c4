"""Layers of the reference that stand against a whole wrapper of the port, not the layer inside that has the weights.

A LayerNorm over channels is one layer on one side; on the other it is a cell that moves the channels to the end, calls
LayerNorm, and moves them back. The weights went from layer to layer, so these two are a pair; but the values to compare
are those of the wrapper. They are taken where the wrapper's inputs agree and the inner layer's do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, Optional

from aligner.compare.net import CallId, Net, Visit, is_input
from aligner.compare.pairing import Pair
from aligner.compare.reading import Reading, read
from aligner.compare.tolerance import Tolerance
from aligner.record import Phase, display

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


class _Place(NamedTuple):
    """A call in a step."""

    step: int
    call: CallId


def unwrap(readings: list[Reading], reference: Net, port: Net, tolerance: Tolerance) -> None:
    """Set layers against the wrappers around their counterparts, where these get the reference's inputs; in place."""
    calls: dict[_Place, list[int]] = {}
    alone: dict[_Place, dict[str, int]] = {}
    for index, reading in enumerate(readings):
        one, other = reading.pair.reference, reading.pair.port
        if other is None or other.key.phase is not Phase.FORWARD:
            continue
        place = _Place(other.key.step, CallId(other.key.layer, other.key.call))
        if one is None:
            alone.setdefault(place, {})[other.key.slot] = index
        elif one.key.layer not in reference.inner and other.key.layer not in port.inner:
            calls.setdefault(place, []).append(index)
    visits = {visit.id: visit for visit in port.visits}
    for place, indices in calls.items():
        given = [i for i in indices if is_input(readings[i].pair.key.slot)]
        if place.call in visits and any(readings[i].over and not readings[i].covered for i in given):
            for wrapper in _wrappers(visits[place.call], port):
                if _moved(readings, indices, given, alone.get(_Place(place.step, wrapper.id), {}), tolerance):
                    break


def _wrappers(visit: Visit, net: Net) -> Sequence[Visit]:
    """The calls around this one in which it is the only one with weights, the nearest first."""
    found = []
    parent = visit.parent
    while parent is not None and parent.parent is not None and _only_weights(parent, net) == [visit.id]:
        found.append(parent)
        parent = parent.parent
    return found


def _only_weights(visit: Visit, net: Net) -> list[CallId]:
    inside = list(visit.children)
    for child in inside:
        inside.extend(child.children)
    return [v.id for v in (visit, *inside) if net.weights(v.call.layer)]


def _moved(
    readings: list[Reading], indices: Sequence[int], given: Sequence[int], slots: dict[str, int], tolerance: Tolerance
) -> bool:
    """Whether the wrapper's records, which stand alone so far, took the places of the inner layer's."""
    if not all(readings[i].pair.key.slot in slots for i in indices):
        return False
    taken: dict[int, Reading] = {}
    for i in indices:
        at = slots[readings[i].pair.key.slot]
        taken[i] = read(Pair(readings[i].pair.reference, readings[at].pair.port), tolerance)
    if any(taken[i].over for i in given):
        return False
    for i, reading in taken.items():
        inner: Optional[Entry] = readings[i].pair.port
        layer = display(readings[i].pair.key.layer)
        at = slots[readings[i].pair.key.slot]
        readings[at] = Reading(Pair(None, inner), over=False, covered=True, reason="covered-inside")
        readings[at].facts = {"layer": layer}
        readings[i] = reading
    return True
