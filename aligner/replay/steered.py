"""Plain numbers that calls are given: how often to turn, the height of what is flat, where to begin.

The reference's stands in the place of the port's where less is wrong so: then it is the number that is wrong, and not
the layer that is given it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import TYPE_CHECKING, Union

from aligner.compare.checks import OTHER_NUMBER, Check
from aligner.compare.formed import likewise
from aligner.compare.net import CallId
from aligner.record import Key, Phase
from aligner.structure import numbers

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry
    from aligner.replay.frames import Frame, Plan

Number = Union[bool, int, float]
Numbers = Mapping[tuple[int, CallId], Mapping[str, Number]]

MOST = 256
"""Calls of a layer inside."""

EACH = 3
"""Layers that are looked at one by one, where all at once are no better."""


def differing(reference: Dump, port: Dump, calls: Mapping[CallId, CallId]) -> Numbers:
    """What the reference gives in the place of another number of its kind, by step and the port's call."""
    ours = {(c.step, CallId(c.layer, c.number)): c.inputs for c in reference.calls if c.phase is Phase.FORWARD}
    found: dict[tuple[int, CallId], Mapping[str, Number]] = {}
    for call in port.calls:
        this = CallId(call.layer, call.number)
        theirs = ours.get((call.step, calls[this])) if call.phase is Phase.FORWARD and this in calls else None
        own = numbers(call.inputs) if theirs is not None else {}
        wanted = numbers(theirs) if own else {}
        others = {slot: wanted[slot] for slot, one in own.items() if slot in wanted and _differ(one, wanted[slot])}
        if others:
            found[call.step, this] = others
    return found


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
    slots: dict[str, dict[tuple[int, str], Entry]] = {}
    for key, entry in plan.entries.items():
        if key.layer in inside and entry.key.layer == inside[key.layer]:
            slots.setdefault(key.layer, {})[key.step, key.slot] = entry
    calls = {call: one for call, one in plan.calls.items() if call.layer not in inside}
    entries = {key: entry for key, entry in plan.entries.items() if key.layer not in inside}
    for path, other in inside.items():
        for number in range(min(ours.get(other, 0), MOST)):
            calls[CallId(path, number)] = CallId(other, number)
            for (step, slot), one in slots.get(path, {}).items():
                due = reference.find(Key(step, Phase.FORWARD, other, number, one.key.slot))
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


def _differ(one: Number, other: Number) -> bool:
    return type(one) is type(other) and one != other


class Steered:
    """Of one forced pass. `layers` are those that get the reference's numbers."""

    def __init__(self, plan: Plan) -> None:
        self.layers: set[str] = set()
        self._numbers = plan.numbers
        self._asked: set[int] = set()

    def readings(self, step: int, checks: Sequence[Check]) -> Iterator[Set[str]]:
        """Layers that may be given others in a step: those in which something is wrong, together and each alone."""
        if step in self._asked:
            return
        self._asked.add(step)
        wrong = {check.port.layer for check in checks if check.fails}
        known = dict.fromkeys(call.layer for at, call in self._numbers if at == step)
        asked = [layer for layer in known if any(f"{one}.".startswith(f"{layer}.") for one in wrong)]
        yield from [{*asked}] if asked else []
        yield from ({one} for one in asked[: EACH if asked[1:] else 0])

    def given(self, step: int, frame: Frame, structure: object, checks: list[Check]) -> Mapping[str, Number]:
        """The reference's numbers for a call; the check of its first value stands for what was wrong."""
        wanted = self._numbers.get((step, CallId(frame.path, frame.number)), {}) if frame.path in self.layers else {}
        own = numbers(structure) if wanted else {}
        others = {slot: one for slot, one in wanted.items() if slot in own and _differ(own[slot], one)}
        at = next((n for n in range(frame.first, len(checks)) if not checks[n].suspicious), None)
        if others and at is not None:
            slot, number = next(iter(others.items()))
            facts = {"slot": slot, "reference": number, "port": own[slot]}
            checks[at] = replace(checks[at], error=math.inf, deviation=None, reason=OTHER_NUMBER, facts=facts)
        return others if at is not None else {}
