"""Code that calls its layers in another order: what it does at all these calls is one mistake.

An order alone is none, as one net may call `q` before `k` and the other after. But what one net hands to a layer and
got from another one, the other net cannot hand on if it calls that one only afterwards. A layer that one net calls more
often than the other says nothing of the order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from aligner.compare.birth import Birth
from aligner.compare.layers import Pairing
from aligner.compare.net import CallId, Net, Visit

FEWEST = 3


@dataclass(frozen=True)
class Orders:
    """The calls inside a parent, in order and by the reference's names: those that both nets make."""

    reference: tuple[CallId, ...]
    port: tuple[CallId, ...]

    @property
    def names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The layers in the order of their first calls."""
        ours, theirs = (tuple(dict.fromkeys(call.layer for call in calls)) for calls in (self.reference, self.port))
        return ours, theirs

    @property
    def moved(self) -> frozenset[str]:
        """Layers before which other ones come, or another one at last; "" for the parent's end."""
        ours, theirs = _before(self.reference), _before(self.port)
        ends = {""} if self.reference[-1:] != self.port[-1:] else set()
        return frozenset({call.layer for call in ours if ours[call] != theirs[call]} | ends)


def reordered(nets: tuple[Net, Net], pairing: Pairing) -> Mapping[str, Orders]:
    """By the reference's path, the parents of which one net calls a layer before another one that the other's needs."""
    ours = {pair.port: pair.reference for pair in pairing.layers}
    ports = {pair.reference: pair.port for pair in pairing.layers}
    theirs = {layer: visits[0] for layer, visits in nets[1].by_layer().items()}
    found: dict[str, Orders] = {}
    for layer, visits in nets[0].by_layer().items():
        other = theirs.get(ports.get(layer, ""))
        if other is None or not visits[0].children:
            continue
        wanted, made = dict(_calls(visits[0], {path: path for path in ports})), dict(_calls(other, ours))
        often = [Counter(call.layer for call in calls) for calls in (wanted, made)]
        same = {layer for layer in often[0] if often[0][layer] == often[1][layer]}
        orders = Orders(*(tuple(call for call in calls if call.layer in same) for calls in (wanted, made)))
        if orders.reference == orders.port:
            continue
        if _needs(visits[0], wanted, orders.port) or _needs(other, made, orders.reference):
            found[layer] = orders
    return found


def joined(groups: Mapping[object, Sequence[Birth]], known: Mapping[str, Orders]) -> Mapping[object, object]:
    """Which groups of births are to be counted to which earlier one: code of a known parent, at layers that have moved.

    Where fewer than FEWEST are wrong, two values may just as well be taken for each other.
    """
    moved = {layer: orders.moved for layer, orders in known.items()}
    found: dict[str, list[object]] = {}
    for place, births in groups.items():
        birth = births[0]
        if birth.where == "glue" and birth.between is not None and birth.between[1] in moved.get(birth.layer, ()):
            found.setdefault(birth.layer, []).append(place)
    return {place: places[0] for places in found.values() if len(places) >= FEWEST for place in places}


def _calls(visit: Visit, names: Mapping[str, str]) -> Iterator[tuple[CallId, Visit]]:
    """The calls inside that make something new, by the reference's names, and counted by layer."""
    often: Counter[str] = Counter()
    for child in _inside(visit, names):
        if not _idle(child):
            layer = names[child.call.layer]
            yield CallId(layer, often[layer]), child
            often[layer] += 1


def _inside(visit: Visit, names: Mapping[str, str]) -> Iterator[Visit]:
    """The nearest calls that have a name; what only groups layers in one of the nets has none."""
    for child in visit.children:
        if child.call.layer in names:
            yield child
        else:
            yield from _inside(child, names)


def _idle(visit: Visit) -> bool:
    """Whether it hands on what it was given, as a dropout does: it may stand anywhere."""
    given = {entry.content for entry in visit.inputs}
    return all(entry.content in given for entry in visit.outputs)


def _before(order: Sequence[CallId]) -> Mapping[CallId, tuple[frozenset[CallId], Sequence[CallId]]]:
    """By call, those before it, and the last of them."""
    return {call: (frozenset(order[:index]), order[max(0, index - 1) : index]) for index, call in enumerate(order)}


def _needs(visit: Visit, calls: Mapping[CallId, Visit], order: Sequence[CallId]) -> bool:
    """Whether a call is handed what nothing makes but others that come after it in the other net's order."""
    later = {call: set(order[index + 1 :]) for index, call in enumerate(order)}
    made: dict[object, set[Optional[CallId]]] = {entry.content: {None} for entry in visit.inputs}
    for call, child in calls.items():
        for makers in [made[entry.content] for entry in child.inputs if entry.content in made]:
            if makers <= later.get(call, set()):
                return True
        for entry in child.outputs:
            made.setdefault(entry.content, set()).add(call)
    return False
