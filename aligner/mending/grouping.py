"""The values of a port that the forced pass looked at, by the call in whose code each was made."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Optional

from aligner.compare.checks import OTHER_BORDER, Check
from aligner.compare.net import CallId, is_input
from aligner.mending.ground import Ground
from aligner.mending.rerun import SMALL
from aligner.record import Call, Key, Phase

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry

FEW = 8
"""So few numbers may be handed on as another value's by chance."""


@dataclass
class Group:
    """A call of a layer of this class, with the values of its code."""

    owner: str
    call: Call
    kind: type
    checks: list[Check] = field(default_factory=list)
    within: Optional[Call] = None
    """The call of the port's in which it is made, where what it hands on is of another layer of the reference's."""

    @property
    def told(self) -> CallId:
        """The call whose counterpart tells what is to be made."""
        call = self.within or self.call
        return CallId(call.layer, call.number)

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
    found: dict[tuple[int, bool], Group] = {}
    takes: dict[str, bool] = {}
    """By layer, asked in the first call that needs it: what it takes in one, it takes in all."""
    checks, handed = [*checks], _Handed(port, ground, own)
    made = [(check, (check.port.layer, check.port.call)) for check in checks if not is_input(check.port.slot)]
    sound = {call for _, call in made} - {call for check, call in made if check.suspicious or check.reason}
    places = {id(check): place for place, check in enumerate(checks)}
    for place, check in enumerate(checks):
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
        at, inner, within = handed.on(check, call), call, None
        if at is not None:  # it is that layer's code
            check, within = replace(check, port=at, against=check.key), call
            inner, places[id(check)] = known[at.step, at.layer, at.call], place
        kind = type(ground.layer(inner.layer))
        address = inner.first, at is not None
        found.setdefault(address, Group(check.owner, inner, kind, within=within)).checks.append(check)
    wrong = {first: [places[id(one)] for one in group.checks if one.fails] for first, group in found.items()}
    return [found[first] for first in sorted(found, key=lambda first: (min(wrong[first], default=len(checks)), first))]


class _Handed:
    """What layers of the user's hand on beside what their counterparts do: a pooling of all, and of parts, in one."""

    def __init__(self, port: Dump, ground: Ground, own: Callable[[str], bool]) -> None:
        self._port, self._plan = port, ground.plan
        self._made: dict[object, Entry] = {}
        held = (entry for entry in port.entries if entry.key.phase is Phase.FORWARD and entry.key.layer)
        for entry in held:
            key, known = entry.key, CallId(entry.key.layer, entry.key.call) in ground.plan.calls
            if known and not is_input(key.slot) and key not in ground.plan.entries and own(key.layer):
                self._made.setdefault((key.step, entry.content), entry)

    def on(self, check: Check, call: Call) -> Optional[Key]:
        """The value that is handed on as the one that is looked at, by a layer inside this call."""
        wanted, entry = self._plan.entries.get(check.port), self._port.find(check.port)
        if check.where != "glue" or wanted is None or entry is None or wanted.key != check.key or check.against:
            return None
        made = self._made.get((check.port.step, entry.content))
        inside = made is not None and (not call.layer or made.key.layer.startswith(f"{call.layer}."))
        if made is None or not inside or made.order >= entry.order or made.shape != entry.shape:
            return None
        return made.key if math.prod(made.shape) >= FEW else None


def _is_other_size(check: Check, port: Dump, ground: Ground) -> bool:
    """Whether a value has not as many numbers as the reference's."""
    sizes = [math.prod(one.shape) for one in (ground.plan.entries.get(check.port), port.find(check.port)) if one]
    return len({*sizes}) > 1
