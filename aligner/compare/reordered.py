"""Code that calls its layers in another order: what it does at all these calls is one mistake.

An order alone is none, as one net may call `q` before `k` and the other after. But what one net hands to a layer and
got from another one, the other net cannot hand on if it calls that one only afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aligner.compare.layers import Pairing
from aligner.compare.net import Net, Visit
from aligner.compare.origin import Birth


@dataclass(frozen=True)
class Orders:
    """The layers inside a parent in the order of their first calls, by the reference's names."""

    reference: tuple[str, ...]
    port: tuple[str, ...]

    @property
    def moved(self) -> frozenset[str]:
        """Those that others come before in one net alone; "" for the parent's end."""
        ours, theirs = _before(self.reference), _before(self.port)
        ends = {""} if self.reference[-1:] != self.port[-1:] else set()
        return frozenset({layer for layer in ours if ours[layer] != theirs[layer]} | ends)


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
        wanted = _layers(visits[0], {})
        made = _layers(other, ours)
        orders = Orders(tuple(w for w in wanted if w in made), tuple(m for m in made if m in wanted))
        if orders.reference == orders.port:
            continue
        if _needs(visits[0], {}, orders.port) or _needs(other, ours, orders.reference):
            found[layer] = orders
    return found


def joined(groups: Mapping[object, Sequence[Birth]], known: Mapping[str, Orders]) -> Mapping[object, object]:
    """Which group of births is to be counted to which earlier one: both are code of a parent that is known, at layers
    that have moved.
    """
    first: dict[str, object] = {}
    result: dict[object, object] = {}
    for place, births in groups.items():
        birth = births[0]
        orders = known.get(birth.layer) if birth.where == "glue" and birth.between is not None else None
        if orders is not None and birth.between is not None and birth.between[1] in orders.moved:
            result[place] = first.setdefault(birth.layer, place)
    return result


def _layers(visit: Visit, names: Mapping[str, str]) -> list[str]:
    """The layers inside that make something new; the port's by the reference's `names`."""
    working = [child.call.layer for child in visit.children if not _idle(child)]
    return list(dict.fromkeys(names.get(layer, layer) for layer in working))


def _idle(visit: Visit) -> bool:
    """Whether it hands on what it was given, as a dropout does: it may stand anywhere."""
    given = {entry.content for entry in visit.inputs}
    return all(entry.content in given for entry in visit.outputs)


def _before(order: Sequence[str]) -> Mapping[str, frozenset[str]]:
    return {layer: frozenset(order[:index]) for index, layer in enumerate(order)}


def _needs(visit: Visit, names: Mapping[str, str], order: Sequence[str]) -> bool:
    """Whether a layer is handed what nothing makes but others that come after it in the other net's order."""
    later = {layer: set(order[index + 1 :]) for index, layer in enumerate(order)}
    made: dict[object, set[str]] = {entry.content: {visit.call.layer} for entry in visit.inputs}
    for child in visit.children:
        layer = names.get(child.call.layer, child.call.layer)
        for makers in [made[entry.content] for entry in child.inputs if entry.content in made]:
            if makers <= later.get(layer, set()):
                return True
        for entry in () if _idle(child) else child.outputs:
            made.setdefault(entry.content, set()).add(layer)
    return False
