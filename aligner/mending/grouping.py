"""The values of a port that the forced pass looked at, by the call in whose code each was made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aligner.compare.checks import OTHER_BORDER, Check
from aligner.compare.net import is_input
from aligner.mending.ground import Ground
from aligner.mending.rerun import SMALL
from aligner.record import Call, Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Dump


@dataclass
class Group:
    """A call of a layer of this class, with the values of its code."""

    owner: str
    call: Call
    kind: type
    checks: list[Check] = field(default_factory=list)

    @property
    def fails(self) -> bool:
        return any(check.fails for check in self.checks)

    @property
    def is_little(self) -> bool:
        """Whether all that is wrong in it is so little off that a kernel of the framework's may make it."""
        return all(check.error <= SMALL for check in self.checks if check.fails)


def ending(checks: Iterable[Check], own: Callable[[str], bool]) -> set[str]:
    """The user's layers that end elsewhere than their counterparts, and hand on what is the port's own."""
    others: dict[str, bool] = {}
    for check in checks:
        layer = check.port.layer
        if check.where != "inputs" and layer and (check.by_effect or not is_input(check.port.slot)):
            others[layer] = others.get(layer, True) and check.reason == OTHER_BORDER
    return {layer for layer, elsewhere in others.items() if elsewhere and own(layer)}


def grouped(checks: Iterable[Check], port: Dump, ground: Ground, own: Callable[[str], bool]) -> list[Group]:
    """Those of the user's own code, in the order of the run: by what first is wrong in them, as code that a layer
    shares with those around it is that layer's. Then those in which nothing is.
    """
    known = {(call.step, call.layer, call.number): call for call in port.calls if call.phase is Phase.FORWARD}
    ports = {one: other for other, one in reversed([*ground.plan.layers.items()])}
    found: dict[int, Group] = {}
    takes: dict[str, bool] = {}
    """By layer, asked in the first call that needs it: what it takes in one, it takes in all."""
    checks = [*checks]
    made = [(check, (check.port.layer, check.port.call)) for check in checks if not is_input(check.port.slot)]
    sound = {call for _, call in made} - {call for check, call in made if check.suspicious or check.reason}
    for check in checks:
        call = known.get((check.port.step, check.port.layer, check.port.call))
        if call is None or check.where == "inputs" or (check.where == "layer" and not own(check.port.layer)):
            continue
        strange = is_input(check.port.slot) and own(check.port.layer) and _is_other_size(check, port, ground)
        made_right = check.by_effect or (check.port.layer, check.port.call) in sound
        if strange and not made_right and check.fails and call.layer not in takes:
            takes[call.layer] = ground.takes(call)
        if strange and not made_right and not (check.fails and takes[call.layer]):
            continue  # what the reference's layer is given is not what the port's takes: no value proves it right
        if check.where == "glue":
            try:
                around = ground.around(call, ports.get(check.owner, check.owner))
            except StopIteration:
                continue
            if around is call and is_input(check.port.slot):
                continue  # an earlier call has written it
            call = around
        kind = type(ground.layer(call.layer))
        found.setdefault(call.first, Group(check.owner, call, kind)).checks.append(check)
    places = {id(check): place for place, check in enumerate(checks)}
    wrong = {first: [places[id(one)] for one in group.checks if one.fails] for first, group in found.items()}
    return [found[first] for first in sorted(found, key=lambda first: (min(wrong[first], default=len(checks)), first))]


def _is_other_size(check: Check, port: Dump, ground: Ground) -> bool:
    """Whether a value has not as many numbers as the reference's."""
    sizes = [math.prod(one.shape) for one in (ground.plan.entries.get(check.port), port.find(check.port)) if one]
    return len({*sizes}) > 1
