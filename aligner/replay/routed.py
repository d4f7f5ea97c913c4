"""Layers that are called as often as what their parent is given says: the experts that tokens are sent to.

In a free run whose values are wrong they are called for other tokens, and more or less often. On the reference's values
they are called as the reference called them, one call after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Optional

from aligner.compare.net import CallId, ancestors, is_input
from aligner.dump.reader import Dump, Entry
from aligner.explain.case import distance
from aligner.record import Call, Key, Phase

OTHER = 1e-3
"""What a parent is given is off by more than this, where it sends other things to its layers."""


def route(
    reference: Dump, port: Dump, layers: dict[str, str], calls: dict[CallId, CallId], entries: dict[Key, Entry]
) -> None:
    """Let the calls of such layers, of others in the same list, and of those in them, stand for the reference's of the
    same number. `layers` and `calls` lead from the port to the reference, `entries` from a value of the port's to the
    reference's."""
    routing = _Routing(reference, port, layers, calls, entries)
    lists = {layer.rpartition(".")[0] for layer in layers if routing.is_routed(layer)}
    for around in [layer for layer in layers if layer.rpartition(".")[0] in lists]:
        for layer in [one for one in port.layers if around in (one, *ancestors(one))]:
            other = layers.get(layer, "")
            if layers[around] not in (other, *ancestors(other)):  # what has no weights is known by how it is called
                other = layers[around] + layer[len(around) :]
            if other in reference.layers:
                layers[layer] = other
                routing.put(layer, other)


class _Routing:
    def __init__(
        self,
        reference: Dump,
        port: Dump,
        layers: Mapping[str, str],
        calls: dict[CallId, CallId],
        entries: dict[Key, Entry],
    ) -> None:
        self._dumps, self._layers, self._calls, self._entries = (port, reference), layers, calls, entries
        self._known = [_by_layer(dump) for dump in self._dumps]

    def is_routed(self, layer: str) -> bool:
        """Whether it is called more or less often than its counterpart by calls that are given other values, and by no
        others."""
        counts = [Counter(call.step for call in self._of(layer, side)) for side in (0, 1)]
        parent = next((path for path in ancestors(layer) if self._of(path, 0) and self._of(path, 1)), None)
        if not all(counts) or counts[0] == counts[1] or not parent:
            return False
        given = self._known[1].get(self._layers[parent], [])
        others = {(call.step, call.number): call for call in given}
        for call in self._of(parent, 0):
            twin = self._calls.get(CallId(parent, call.number))
            other = None if twin is None else others.get((call.step, twin.number))
            if other is None or (self._inside(layer, call, 0) != self._inside(layer, other, 1) and self._is_same(call)):
                return False
        return len(given) == len(self._of(parent, 0))

    def _of(self, layer: str, side: int) -> list[Call]:
        path: Optional[str] = self._layers.get(layer) if side else layer
        return [] if path is None or layer not in self._layers else self._known[side].get(path, [])

    def _inside(self, layer: str, around: Call, side: int) -> int:
        """How often a layer is called in a call of another."""
        end = around.first if around.last is None else around.last
        return sum(1 for c in self._of(layer, side) if c.step == around.step and around.first < c.first < end)

    def _is_same(self, call: Call) -> bool:
        """Whether a call of the port's was given what the reference's was."""
        for entry in self._dumps[0].of_layer(call.layer)[0]:
            key = entry.key
            wanted = self._entries.get(key) if (key.step, key.call) == (call.step, call.number) else None
            if wanted is None or not is_input(key.slot) or key.phase is not Phase.FORWARD:
                continue
            if wanted.content != entry.content and distance(entry.load(), wanted.load()) > OTHER:
                return False
        return True

    def put(self, layer: str, other: str) -> None:
        """Let the calls of a layer stand for those of the same number."""
        known = {key: entry for key, entry in self._entries.items() if key.layer == layer}
        if not all(isinstance(entry, Entry) for entry in known.values()):
            return  # its values are made of several
        slots = {entry.key.slot: key.slot for key, entry in known.items() if entry.key.layer == other}
        for key in known:
            del self._entries[key]
        for call in [call for call in self._calls if call.layer == layer]:
            del self._calls[call]
        self._calls.update((CallId(layer, call.number), CallId(other, call.number)) for call in self._of(layer, 1))
        for entry in self._dumps[1].of_layer(other)[0]:
            key = entry.key
            if key.phase is Phase.FORWARD:
                slot = slots.get(key.slot, key.slot)
                self._entries[Key(key.step, Phase.FORWARD, layer, key.call, slot)] = entry


def _by_layer(dump: Dump) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    for call in dump.calls:
        if call.phase is Phase.FORWARD:
            found.setdefault(call.layer, []).append(call)
    return found
