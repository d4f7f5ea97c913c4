"""Code that calls its layers in another order: what it does at all these calls is one mistake.

An order alone is none, as one net may call `q` before `k` and the other after. But what one net hands to a layer and
got from another one, the other net cannot hand on if it calls that one only afterwards. A layer that one net calls more
often than the other says nothing of the order.

Where one net calls a layer inside of another one, and the other net calls it outside (a norm of the encoder's, or of
the net's own), the code of both is looked at as one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
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
    opened: frozenset[str] = frozenset()
    """Layers inside whose code belongs to it."""

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
    """By the reference's path, the parents of which one net calls a layer before another one that the other's needs.

    And those inside whose code belongs to theirs.
    """
    ours = {pair.port: pair.reference for pair in pairing.layers}
    ports = {pair.reference: pair.port for pair in pairing.layers}
    theirs = {layer: visits[0] for layer, visits in nets[1].by_layer().items()}
    found: dict[str, Orders] = {}
    for layer, visits in nets[0].by_layer().items():
        other = theirs.get(ports.get(layer, ""))
        if other is None or not visits[0].children:
            continue
        sides = (visits[0], {path: path for path in ports}), (other, ours)
        opened = _opened(sides)
        wanted, made = (dict(_calls(*side, opened)) for side in sides)
        often = [Counter(call.layer for call in calls) for calls in (wanted, made)]
        same = {layer for layer in often[0] if often[0][layer] == often[1][layer]}
        order, port = (tuple(call for call in calls if call.layer in same) for calls in (wanted, made))
        orders = Orders(order, port, opened)
        if orders.reference == orders.port:
            continue
        if _needs(visits[0], wanted, orders.port) or _needs(other, made, orders.reference):
            found[layer] = orders
            for inside in opened:
                found.setdefault(inside, orders)
    return found


def _opened(sides: Sequence[tuple[Visit, Mapping[str, str]]]) -> frozenset[str]:
    """The layers around others that the other net calls outside of them."""
    opened: set[str] = set()
    while True:
        names = [{call.layer for call, _ in _calls(*side, opened)} for side in sides]
        more = set()
        for number, (visit, own) in enumerate(sides):
            outside = names[1 - number] - names[number]
            for child in _inside(visit, own, opened) if outside else ():
                if outside & {own[inner.call.layer] for inner in _below(child) if inner.call.layer in own}:
                    more.add(own[child.call.layer])
        if not more - opened:
            return frozenset(opened)
        opened |= more


def joined(groups: Mapping[object, Sequence[Birth]], known: Mapping[str, Orders]) -> Mapping[object, object]:
    """Which groups of births are to be counted to which earlier one: code of a known parent, at layers that have moved.

    Where fewer than FEWEST are wrong, two values may just as well be taken for each other.
    """
    found: dict[int, list[object]] = {}
    for place, births in groups.items():
        birth = births[0]
        orders = known.get(birth.layer)
        if orders is None or birth.where != "glue" or birth.between is None:
            continue
        ends = {*orders.opened, ""} if orders.opened else set()
        if birth.between[1] in orders.moved | ends:
            found.setdefault(id(orders), []).append(place)
    return {place: places[0] for places in found.values() if len(places) >= FEWEST for place in places}


def _calls(visit: Visit, names: Mapping[str, str], opened: Set[str]) -> Iterator[tuple[CallId, Visit]]:
    """The calls inside that make something new, by the reference's names, and counted by layer."""
    often: Counter[str] = Counter()
    for child in _inside(visit, names, opened):
        if not _idle(child):
            layer = names[child.call.layer]
            yield CallId(layer, often[layer]), child
            often[layer] += 1


def _inside(visit: Visit, names: Mapping[str, str], opened: Set[str]) -> Iterator[Visit]:
    """The nearest calls that have a name; what only groups layers in one of the nets has none, or is `opened`."""
    for child in visit.children:
        if child.call.layer in names and names[child.call.layer] not in opened:
            yield child
        else:
            yield from _inside(child, names, opened)


def _below(visit: Visit) -> Iterator[Visit]:
    for child in visit.children:
        yield child
        yield from _below(child)


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
