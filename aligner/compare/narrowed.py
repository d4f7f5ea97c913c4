"""Which layer's code is wrong, where the port has other borders: of the layers around, the innermost of the reference.

A norm that a layer makes itself and the port's block makes before it sets the two apart: what is wrong inside is wrong
between two layers of that layer, seen from the block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace

from aligner.compare.net import Net
from aligner.compare.verdict import Origin


def narrowed(origins: Iterable[Origin], net: Net, ports: Mapping[str, str]) -> tuple[Origin, ...]:
    """The origins, with the layer in which both layers that the code lies between are, if that has code of its own."""
    return tuple(_narrowed(origin, net, ports) for origin in origins)


def _narrowed(origin: Origin, net: Net, ports: Mapping[str, str]) -> Origin:
    if origin.where != "glue" or origin.between is None or not all(origin.between):
        return origin
    one, other = (name.split(".")[:-1] for name in origin.between)
    layer = ".".join(a for a, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other)))
    inside = layer != origin.layer and (not origin.layer or layer.startswith(f"{origin.layer}."))
    if not inside or layer not in net.by_layer():
        return origin
    return replace(origin, layer=layer, port_layer=ports.get(layer, origin.port_layer), kind=net.kind(layer))
