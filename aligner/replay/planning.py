"""Which of the reference's values each value of the port is to be, by what the free runs of both recorded."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from functools import partial

from aligner.compare import reformed
from aligner.compare.arranged import arranged
from aligner.compare.casts import lowered, switched
from aligner.compare.folded import ends
from aligner.compare.formed import Formed
from aligner.compare.hot import hot
from aligner.compare.layers import Pairing
from aligner.compare.looped import loops
from aligner.compare.net import CallId, is_input
from aligner.compare.pairing import Pair, pair_records
from aligner.compare.pieces import pieces
from aligner.compare.reduced import reduced
from aligner.dump.reader import Dump, Entry
from aligner.fingerprint import LARGEST
from aligner.record import Key, Phase
from aligner.replay import inner
from aligner.replay.axed import axed
from aligner.replay.frames import Plan
from aligner.replay.precision import usual
from aligner.replay.recalled import of_other_calls, often, recalled, recounted
from aligner.replay.routed import route
from aligner.replay.steered import differing
from aligner.replay.uses import uses
from aligner.replay.within import Within
from aligner.vocabulary import KINDS

MOST = 256
"""Calls that a port did not come to by itself."""


def planned(reference: Dump, port: Dump, pairing: Pairing, around: Set[str]) -> Plan:
    """The plan of a forced pass behind the free run of this port; `around` are its layers that hold others."""
    pairs = pair_records(reference, port, pairing)
    calls = {other: one for one, other in pairing.calls.items()}
    entries = {
        pair.port.key: pair.reference
        for pair in pairs
        if pair.reference is not None and pair.port is not None and pair.key.phase is Phase.FORWARD
    }
    layers: dict[str, str] = {}
    for found in pairing.layers:
        layers.setdefault(found.port, found.reference)
    made = reformed.made(reference, port)
    entries.update(reformed.counterparts(made, reference))  # type: ignore[arg-type]  # they read like records
    for part in made:
        (one, other) = part.whole
        if CallId(other.layer, other.call) not in calls:
            calls[CallId(other.layer, other.call)] = CallId(one.layer, one.call)
            layers.setdefault(other.layer, one.layer)
            given = reference.find(one._replace(slot="input.0"))
            if given is not None:
                entries.setdefault(other._replace(slot="input.0"), given)
    folded = ends(reference, port)
    entries.update(folded.given)  # type: ignore[arg-type]  # as above
    for call, counterpart in folded.calls.items():
        calls[call] = counterpart
        layers.setdefault(call.layer, counterpart.layer)
    for part in arranged(reference, port):
        if not part.more[1]:  # of several values of the port each is looked at by itself
            entries[part.whole[1]] = part.reference  # type: ignore[assignment]  # as above
    entries = {**inner.counterparts(pairs, port.calls, missing := _missing(pairs, pairing)), **entries}
    for loop in loops(reference, port, pairing):
        entries.update(loop.entries)  # type: ignore[arg-type]  # as above
        calls.update(dict.fromkeys(loop.port, loop.reference))
    for _, values in pieces(reference, port, pairing):
        entries.update(values)  # type: ignore[arg-type]  # as above
    entries.update(axed(pairs, calls))  # type: ignore[arg-type]  # as above
    entries.update(_told(reference, port, pairs))  # type: ignore[arg-type]  # as above
    route(reference, port, layers, calls, entries)
    _further(reference, port, calls, entries)
    short = usual(pairs, port.header.get("amp"))
    cast = {layers[layer]: dtype for layer, dtype in switched(port).items() if layer in layers}
    layers.update(_uncalled(reference, port, layers))
    moved = replace(uses(pairs, port.calls, around | _recut(pairs)), rewritten=_rewritten(reference, port, layers))
    known = entries, calls, missing, _uneven(pairs, pairing), _results(pairs), layers
    numbers = differing(reference, port, calls)
    plan = Plan(*known, short, lowered(reference), cast, uses=moved, numbers=numbers, made=Within(reference).makes)
    return replace(
        plan,
        recounted=partial(recounted, reference, port),
        recalled=partial(recalled, reference, port),
        of_other_calls=partial(of_other_calls, reference, port),
    )


def _told(reference: Dump, port: Dump, pairs: Sequence[Pair]) -> Mapping[Key, Formed]:
    """What the reference chooses and loses as the port tells it, by the port's address, where it tells it otherwise."""
    found: dict[Key, Formed] = {}
    for pair in pairs:
        one, other = pair.reference, pair.port
        if one is None or other is None or pair.key.phase is not Phase.FORWARD:
            continue
        if max(math.prod(one.shape), math.prod(other.shape)) > LARGEST:
            continue
        ours, theirs = reference.layers.get(one.key.layer), port.layers.get(other.key.layer)
        told = hot(one, other)
        if told is None and ours is not None and theirs is not None and not is_input(other.key.slot):
            told = reduced(one, other, (ours.spec, theirs.spec))
            if told is not None and _handed_on(reference, one) and _handed_on(port, other):
                told = None  # no code around takes the mean
        found.update({} if told is None else {other.key: told})
    return found


def _handed_on(dump: Dump, made: Entry) -> bool:
    """Whether what a layer makes is what the layer around it makes."""
    around = dump.of_layer(made.key.layer.rpartition(".")[0])[0] if made.key.layer else ()
    forward = (one for one in around if one.key.phase is Phase.FORWARD and not is_input(one.key.slot))
    return any(one.content == made.content for one in forward)


def _further(reference: Dump, port: Dump, calls: dict[CallId, CallId], entries: dict[Key, Entry]) -> None:
    """Calls that only the reference's free run came to: held to the reference, the port's loop turns as often.

    Not where a layer was called more often: it may have been called in another one's place.
    """
    (ours, theirs), rows = map(often, (reference, port)), dict[str, list[tuple[CallId, CallId]]]()
    for other, one in calls.items():
        rows.setdefault(other.layer, []).append((other, one))
    if any(theirs.get(layer, 0) > ours.get(row[0][1].layer, 0) for layer, row in rows.items()):
        return
    slots: dict[CallId, list[tuple[Key, Entry]]] = {}
    for key, entry in entries.items():
        if isinstance(entry, Entry):  # what is made of others is so for that call alone
            slots.setdefault(CallId(key.layer, key.call), []).append((key, entry))
    for layer, row in rows.items():
        last, one = max(row, key=lambda pair: pair[0].number)
        if len(row) != last.number + 1 or any(a.number != b.number or b.layer != one.layer for a, b in row):
            continue  # they are each other's in another order
        for number in range(len(row), min(ours.get(one.layer, 0), len(row) + MOST)):
            calls[CallId(layer, number)] = CallId(one.layer, number)
            for key, entry in slots.get(last, ()):
                further = reference.find(entry.key._replace(call=number)) if entry.key.layer == one.layer else None
                entries.update({} if further is None else {key._replace(call=number): further})


def _uncalled(reference: Dump, port: Dump, layers: Mapping[str, str]) -> Mapping[str, str]:
    """Layers of the port's that are never called, by the reference's of that name in the same layer: nothing else
    tells of them, where they have no weights."""
    called, taken = {call.layer for call in port.calls}, {*layers.values()}
    found = {}
    for path in port.layers:
        outer, _, name = path.rpartition(".")
        if name and path not in called and path not in layers and (outer in layers or not outer):
            other = f"{layers[outer]}.{name}" if layers.get(outer) else name
            if other in reference.layers and other not in taken:
                found[path] = other
    return found


def _missing(pairs: Sequence[Pair], pairing: Pairing) -> Mapping[tuple[int, CallId], list[Entry]]:
    """Arguments that only the reference's calls were given, but for a value that they were given more than once."""
    found: dict[tuple[int, CallId], list[Entry]] = {}
    given: set[tuple[int, CallId, object]] = set()
    for pair in pairs:
        key = pair.key
        call = pairing.calls.get(CallId(key.layer, key.call))
        if pair.reference is None or call is None or key.phase is not Phase.FORWARD or not is_input(key.slot):
            continue
        if pair.port is None:
            found.setdefault((key.step, call), []).append(pair.entry)
        else:
            given.add((key.step, call, pair.reference.content))
    return {
        (step, call): [entry for entry in entries if (step, call, entry.content) not in given]
        for (step, call), entries in found.items()
    }


def _recut(pairs: Sequence[Pair]) -> Set[str]:
    """The port's layers that take or hand on what their counterparts do not: they have other code inside."""
    both = {pair.port.key.layer for pair in pairs if pair.reference is not None and pair.port is not None}
    alone = {pair.key.layer for pair in pairs if pair.reference is None and pair.key.phase is Phase.FORWARD}
    return both & alone - {""}


def _rewritten(reference: Dump, port: Dump, layers: Mapping[str, str]) -> Set[str]:
    """The port's layers of the user's own kinds whose counterparts are the framework's: they may do more than those."""
    kinds = ((own, port.layers.get(own), reference.layers.get(theirs)) for own, theirs in layers.items())
    known = (
        (own, one.spec.kind, other.spec.kind) for own, one, other in kinds if one is not None and other is not None
    )
    return {own for own, kind, wanted in known if kind not in KINDS and wanted in KINDS}


def _uneven(pairs: Sequence[Pair], pairing: Pairing) -> Set[tuple[int, CallId]]:
    sizes: dict[tuple[int, CallId], tuple[list[int], list[int]]] = {}
    for pair in pairs:
        for side, entry in enumerate((pair.reference, pair.port)):
            if entry is not None and entry.key.phase is Phase.FORWARD and is_input(entry.key.slot):
                this = CallId(entry.key.layer, entry.key.call)
                call = this if side else pairing.calls.get(this)
                if call is not None:
                    sizes.setdefault((entry.key.step, call), ([], []))[side].append(math.prod(entry.shape))
    return {call for call, (ours, theirs) in sizes.items() if sorted(ours) != sorted(theirs)}


def _results(pairs: Sequence[Pair]) -> Mapping[tuple[int, CallId], list[Pair]]:
    """What the free run's calls made, where both sides have it."""
    found: dict[tuple[int, CallId], list[Pair]] = {}
    for pair in pairs:
        if pair.reference is not None and pair.port is not None and pair.key.phase is Phase.FORWARD:
            key = pair.port.key
            if not is_input(key.slot):
                found.setdefault((key.step, CallId(key.layer, key.call)), []).append(pair)
    return found
