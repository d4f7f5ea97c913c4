"""Layers that are called as often as what their parent is given says: the experts that tokens are sent to.

In a free run whose values are wrong they are called for other tokens, and more or less often. On the reference's values
they are called as the reference called them, one call after the other.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence

from aligner.compare.net import CallId, ancestors, is_input
from aligner.dump.reader import Dump, Entry
from aligner.explain.case import distance
from aligner.record import Call, Key, Phase

OTHER = 1e-3
"""What a parent is given is off by more than this, where it sends other things to its layers."""

_Place = tuple[int, str, int]
"""A call: step, layer and number."""


def route(
    reference: Dump, port: Dump, layers: dict[str, str], calls: dict[CallId, CallId], entries: dict[Key, Entry]
) -> None:
    """Let the calls of such layers, of others in the same list, and of those in them, stand for the reference's of the
    same number. `layers` and `calls` lead from the port to the reference, `entries` from a value of the port's to the
    reference's."""
    routing = _Routing(reference, port, layers, calls, entries)
    lists = set[str]()
    for layer in layers:
        around, _, name = layer.rpartition(".")
        if name.isdigit() and around not in lists and routing.is_routed(layer):
            lists.add(around)
    for layer in port.layers if lists else ():
        path = next((one for one in (layer, *ancestors(layer)) if one and one.rpartition(".")[0] in lists), "")
        if path not in layers or not path:
            continue
        other = layers.get(layer, "")
        if layers[path] not in (other, *ancestors(other)):  # what has no weights is known by how it is called
            other = layers[path] + layer[len(path) :]
        if other in reference.layers:
            layers[layer] = other
            routing.put(layer, other)


class _Routing:
    """What is known of the calls on both sides, by layer: asked of the port first."""

    def __init__(
        self,
        reference: Dump,
        port: Dump,
        layers: Mapping[str, str],
        calls: dict[CallId, CallId],
        entries: dict[Key, Entry],
    ) -> None:
        self._dumps, self._layers, self._calls, self._entries = (port, reference), layers, calls, entries
        self._made = [_by_layer(dump) for dump in self._dumps]
        self._known: dict[_Place, list[Key]] = {}
        for key in entries:
            self._known.setdefault((key.step, key.layer, key.call), []).append(key)
        self._same: dict[_Place, bool] = {}

    def is_routed(self, layer: str) -> bool:
        """Whether it is called more or less often than its counterpart by calls that are given other values, and by no
        others."""
        ours, theirs = self._of(layer, 0), self._of(layer, 1)
        parent = next((path for path in ancestors(layer) if self._of(path, 0) and self._of(path, 1)), None)
        if not (ours and theirs and parent) or Counter(c.step for c in ours) == Counter(c.step for c in theirs):
            return False
        around = self._of(parent, 0), self._of(parent, 1)
        others = {(call.step, call.number): call for call in around[1]}
        firsts = [call.first for call in ours], [call.first for call in theirs]
        for call in around[0]:
            twin = self._calls.get(CallId(parent, call.number))
            other = None if twin is None else others.get((call.step, twin.number))
            if other is None or (_inside(firsts[0], call) != _inside(firsts[1], other) and self._is_same(call)):
                return False
        return len(around[0]) == len(around[1])

    def _of(self, layer: str, side: int) -> list[Call]:
        if layer not in self._layers:
            return []
        return self._made[side].get(self._layers[layer] if side else layer, [])

    def _is_same(self, call: Call) -> bool:
        """Whether a call of the port's was given what the reference's was."""
        place = call.step, call.layer, call.number
        if place not in self._same:
            self._same[place] = not any(
                is_input(key.slot) and self._is_other(key) for key in self._known.get(place, ())
            )
        return self._same[place]

    def _is_other(self, key: Key) -> bool:
        own, wanted = self._dumps[0].find(key), self._entries[key]
        if own is None or own.content == wanted.content:
            return False
        one, other = own.load(), wanted.load()
        if own.dtype == wanted.dtype == "bool" and one.size == other.size:
            same = one.reshape(-1) == other.reshape(-1)  # which of the two hides is the port's affair
            return bool(same.any() and not same.all())
        return bool(distance(one, other) > OTHER)

    def put(self, layer: str, other: str) -> None:
        """Let the calls of a layer stand for those of the same number."""
        places = ((call.step, layer, call.number) for call in self._of(layer, 0))
        known = {key: self._entries[key] for place in places for key in self._known.get(place, ())}
        if not all(isinstance(entry, Entry) for entry in known.values()):
            return  # its values are made of several
        slots = {entry.key.slot: key.slot for key, entry in known.items() if entry.key.layer == other}
        for key in known:
            del self._entries[key]
        for call in self._of(layer, 0):
            self._calls.pop(CallId(layer, call.number), None)
        self._calls.update((CallId(layer, call.number), CallId(other, call.number)) for call in self._of(layer, 1))
        for entry in self._dumps[1].of_layer(other)[0]:
            key = entry.key
            if key.phase is Phase.FORWARD:
                slot = slots.get(key.slot, key.slot)
                self._entries[Key(key.step, Phase.FORWARD, layer, key.call, slot)] = entry


def _inside(firsts: Sequence[int], around: Call) -> int:
    """How many of a layer's calls, which began at these places, are made in a call of another."""
    end = around.first if around.last is None else around.last
    return bisect_left(firsts, end) - bisect_left(firsts, around.first)


def _by_layer(dump: Dump) -> dict[str, list[Call]]:
    found: dict[str, list[Call]] = {}
    for call in sorted(dump.calls, key=lambda call: call.first):
        if call.phase is Phase.FORWARD:
            found.setdefault(call.layer, []).append(call)
    return found
