"""Which layer's code is wrong, where the port has other borders: of the layers around, the innermost of the reference.

A norm that a layer makes itself and the port's block makes before it sets the two apart: what is wrong inside is wrong
between two layers of that layer, seen from the block. A router may stand in the code of what it is for.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Optional

from aligner.compare.net import Net
from aligner.compare.verdict import Origin


def narrowed(
    origins: Iterable[Origin], net: Net, ports: Mapping[str, str], homes: Mapping[str, str]
) -> tuple[Origin, ...]:
    """The origins, with the innermost layer. `homes` has it by the layer that was held, where that was found by what
    the reference does there; it is so in all layers of that kind."""
    inside = {net.kind(layer): _inside(home, layer) for layer, home in homes.items()}
    return tuple(_named(origin, _layer(origin, net, inside), net, ports) for origin in origins)


def _named(origin: Origin, layer: str, net: Net, ports: Mapping[str, str]) -> Origin:
    if layer == origin.layer or layer not in net.by_layer() or _inside(layer, origin.layer) is None:
        return origin
    return replace(origin, layer=layer, port_layer=ports.get(layer, origin.port_layer), kind=net.kind(layer))


def _layer(origin: Origin, net: Net, inside: Mapping[str, Optional[str]]) -> str:
    if origin.where != "glue" or origin.ratio is None:  # without a forced pass, what goes in may be wrong as well
        return origin.layer
    home = inside.get(net.kind(origin.layer))
    if home is not None:
        return f"{origin.layer}.{home}" if origin.layer else home
    if origin.between is None or not all(origin.between):
        return origin.layer
    one, other = (name.split(".")[:-1] for name in origin.between)
    return ".".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))


def _inside(layer: str, around: str) -> Optional[str]:
    """The path of a layer in another one; None if it is not in it."""
    if not around:
        return layer
    return layer[len(around) + 1 :] if layer.startswith(f"{around}.") else None
