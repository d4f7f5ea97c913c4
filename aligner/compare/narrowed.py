"""Which layer's code is wrong, where the port has other borders: of the layers around, the innermost of the reference.

A norm that a layer makes itself and the port's block makes before it sets the two apart: what is wrong inside is wrong
between two layers of that layer, seen from the block. A router may stand in the code of what it is for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Optional

from aligner.compare.edits import Home
from aligner.compare.net import Net, Visit, unnumbered
from aligner.compare.verdict import Origin
from aligner.record import Key


def narrowed(
    origins: Iterable[Origin], net: Net, ports: Mapping[str, str], homes: Sequence[Home]
) -> tuple[Origin, ...]:
    """The origins, with the innermost layer. `homes` are those that were found by what the reference does there; it is
    so in all layers of that kind, and wherever the same edit of the same layer is told."""
    visits = net.by_layer()
    found = [(origin, _layer(origin, net, homes, visits)) for origin in origins]
    layers = [(one, one.layer if _has_its_own(one, layer, ports) else layer) for one, layer in found]
    edits = [(one.layer, () if one.edit is None else one.edit.hunks) for one, _ in layers]
    known = {edit: layer for (one, layer), edit in zip(layers, edits) if edit[1] and layer != one.layer}
    places = ((one, known.get(edit, layer)) for (one, layer), edit in zip(layers, edits))
    return tuple(_named(one, layer, net, ports) if layer in visits else one for one, layer in places)


def _named(origin: Origin, layer: str, net: Net, ports: Mapping[str, str]) -> Origin:
    if not _inside(layer, origin.layer):
        return origin
    code = replace(origin, where="glue", between=("", "")) if origin.where == "layer" else origin
    return replace(code, layer=layer, port_layer=ports.get(layer, origin.port_layer), kind=net.kind(layer))


def _has_its_own(origin: Origin, inner: str, ports: Mapping[str, str]) -> bool:
    """Whether the port has a layer of its own for what is inside, and what puts it right stands around that."""
    if inner == origin.layer or origin.edit is None or not origin.edit.own:
        return False
    inside = [port.split(".")[:-1] for layer, port in ports.items() if layer.startswith(f"{inner}.")]
    shared = itertools.takewhile(lambda names: len({*names}) == 1, zip(*inside))
    around = ports.get(origin.layer, origin.layer)
    return len([*shared]) > len(around.split(".") if around else [])


def _layer(origin: Origin, net: Net, homes: Sequence[Home], visits: Mapping[str, Sequence[Visit]]) -> str:
    if origin.where not in ("glue", "layer") or origin.ratio is None:  # else what goes in may be wrong as well
        return origin.layer
    own_first = sorted(homes, key=lambda home: (home.held, home.seen) != (origin.layer, origin.seen))
    found = next((inner for home in own_first if (inner := _at_home(origin, net, home))), "")
    if found:
        return f"{origin.layer}.{found}" if origin.layer else found
    if origin.between is None or not all(origin.between):
        return origin.layer
    one, other = (name.split(".")[:-1] for name in origin.between)
    around = ".".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))
    wrong = _contents(visits.get(origin.seen, ()), None if origin.place is None else origin.place.key)
    while _inside(around, origin.layer) and wrong & _contents(visits.get(around, ())):  # it only hands it on
        around = around.rpartition(".")[0]
    return around


def _contents(visits: Iterable[Visit], *keys: Optional[Key]) -> Set[object]:
    """What tells the values that a layer was given, or those of these."""
    return {entry.content for visit in visits for entry in visit.inputs if not keys or entry.key in keys}


def _at_home(origin: Origin, net: Net, home: Home) -> str:
    """The path, in the origin's layer, of the one whose code it is by this finding; "" where it tells nothing."""
    inner, seen, here = (
        _inside(*two) for two in ((home.layer, home.held), (home.seen, home.held), (origin.seen, origin.layer))
    )
    if net.kind(home.held) != net.kind(origin.layer) or unnumbered(seen) != unnumbered(here):
        return ""
    if f"{seen}.".startswith(f"{inner}."):  # around the layer at whose border it was seen
        return ".".join(here.split(".")[: inner.count(".") + 1])
    return inner


def _inside(layer: str, around: str) -> str:
    """The path of a layer in another one; "" if it is not in it."""
    return layer[len(around) + 1 :] if around and layer.startswith(f"{around}.") else "" if around else layer
