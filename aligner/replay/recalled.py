"""Which call of a layer stands for which of the reference's where the free run did not tell: by their numbers, or by
what they are given in a run that is held.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from typing import TYPE_CHECKING

from aligner.compare.formed import likewise
from aligner.compare.net import CallId
from aligner.record import Key, Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry
    from aligner.replay.frames import Plan

MOST = 256
"""Calls of a layer."""


def recounted(reference: Dump, port: Dump, plan: Plan, layers: Set[str]) -> Plan:
    """The plan where layers inside of these are called as often as the reference's, call by call."""
    ours, theirs = often(reference), often(port)
    uneven = {call.layer for call, one in plan.calls.items() if call.number != one.number}
    uneven |= {path for path, other in plan.layers.items() if ours.get(other, 0) != theirs.get(path, 0)}
    inside = {
        path: other
        for path, other in plan.layers.items()
        if path in uneven and any(not layer or path.startswith(f"{layer}.") for layer in layers)
    }
    return _renumbered(
        reference, plan, inside, {path: {n: n for n in range(ours.get(inside[path], 0))} for path in inside}
    )


def recalled(reference: Dump, port: Dump, plan: Plan, like: Mapping[Key, Set[object]]) -> Plan:
    """The plan where calls of a layer that are given wrong values stand for those calls that are given the very values:
    the free run tells no order where what it gave was wrong before. None where two would be the same one.
    """
    theirs, told = often(port), dict[str, dict[int, int]]()
    for at, contents in like.items():
        one, wanted = plan.calls.get(CallId(at.layer, at.call)), plan.entries.get(at)
        if one is None or wanted is None or wanted.key.layer != one.layer:
            continue
        given = ((n, reference.find(wanted.key._replace(call=n))) for n in range(min(theirs.get(at.layer, 0), MOST)))
        same = [n for n, entry in given if entry is not None and entry.content in contents]
        if len(same) == 1 and same[0] != one.number:
            told.setdefault(at.layer, {})[at.call] = same[0]
    layers, numbers = dict[str, str](), dict[str, dict[int, int]]()
    for layer, known in told.items():
        if {*known} == {*known.values()}:
            inside = [path for path in plan.layers if path == layer or path.startswith(f"{layer}.")]
            alike = [path for path in inside if theirs.get(path) == theirs[layer]]
            layers.update((path, plan.layers[path]) for path in alike)
            numbers.update((path, {n: known.get(n, n) for n in range(theirs[layer])}) for path in alike)
    return _renumbered(reference, plan, layers, numbers) if layers else plan


def _renumbered(
    reference: Dump, plan: Plan, layers: Mapping[str, str], numbers: Mapping[str, Mapping[int, int]]
) -> Plan:
    """The plan where calls of these layers of the port's stand for those of the reference's that `numbers` tells."""
    slots: dict[str, dict[tuple[int, str], Entry]] = {}
    for key, entry in plan.entries.items():
        if key.layer in layers and entry.key.layer == layers[key.layer]:
            slots.setdefault(key.layer, {})[key.step, key.slot] = entry
    calls = {call: one for call, one in plan.calls.items() if call.layer not in layers}
    entries = {key: entry for key, entry in plan.entries.items() if key.layer not in layers}
    for path, other in layers.items():
        for number, its in [*numbers[path].items()][:MOST]:
            calls[CallId(path, number)] = CallId(other, its)
            for (step, slot), one in slots.get(path, {}).items():
                due = reference.find(Key(step, Phase.FORWARD, other, its, one.key.slot))
                entries.update(
                    {} if due is None else {Key(step, Phase.FORWARD, path, number, slot): likewise(one, due)}
                )
    return replace(plan, calls=calls, entries=entries)


def of_other_calls(reference: Dump, port: Dump, plan: Plan, like: Mapping[Key, Set[object]]) -> Set[Key]:
    """Of the port's wrong arguments those that another call of the reference's layer is given, for which the port has
    none: that one may be meant, and then the call that lacks is the mistake."""
    ours, theirs = often(reference), often(port)
    known = {one for call, one in plan.calls.items() if call.number < theirs.get(call.layer, 0)}
    found = set[Key]()
    for at, contents in like.items():
        one, wanted = plan.calls.get(CallId(at.layer, at.call)), plan.entries.get(at)
        if one is None or wanted is None or wanted.key.layer != one.layer:
            continue
        free = (n for n in range(min(ours.get(one.layer, 0), MOST)) if CallId(one.layer, n) not in known)
        given = (reference.find(wanted.key._replace(call=number)) for number in free)
        found |= {at} if any(entry is not None and entry.content in contents for entry in given) else set()
    return found


def often(dump: Dump) -> Mapping[str, int]:
    """How often each layer was called in a step."""
    found: dict[str, int] = {}
    for call in dump.calls:
        if call.phase is Phase.FORWARD:
            found[call.layer] = max(found.get(call.layer, 0), call.number + 1)
    return found
