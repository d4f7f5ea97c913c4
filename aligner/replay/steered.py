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
from aligner.compare.net import CallId
from aligner.record import Phase
from aligner.structure import numbers

if TYPE_CHECKING:
    from aligner.dump.reader import Dump
    from aligner.replay.frames import Frame, Plan

Number = Union[bool, int, float]
Numbers = Mapping[tuple[int, CallId], Mapping[str, Number]]

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
