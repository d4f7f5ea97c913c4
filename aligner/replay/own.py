"""Arguments that a layer of the port takes in a way of its own: the sum of two of the reference's, a table beside its
angles. What stands for the reference's by its place is not the same thing there, though both have one shape.

With the reference's in its stead such a layer makes something wrong, and with its own it makes what is right; or it is
given what the reference's code makes inside its own call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from typing import Optional

from aligner.compare.checks import OTHER_FORM, OTHER_SHAPE, Check
from aligner.compare.held import Held
from aligner.compare.net import CallId, is_input
from aligner.dtypes import DTYPES
from aligner.record import Array, Key
from aligner.replay import prints
from aligner.replay.frames import Frame, Plan
from aligner.replay.handed import excused

NEAR = 1e-2
"""What is off by less is the same thing, made by another kernel."""

Made = Callable[[CallId, Array], bool]
"""Whether the reference's code makes a value inside of a call of its own."""


class Own:
    """Which they are, as runs of a forced pass tell."""

    def __init__(self, made: Made) -> None:
        self.keys: set[Key] = set()
        """Where they go into a layer."""
        self.apart: set[Key] = set()
        """Those that are right in neither reading, of calls that get more or fewer than the reference's: what their
        layers make of them comes of that."""
        self.heard: dict[Key, bool] = {}
        """Of numbers with a point in another form whether the reference's code makes them anywhere."""
        self._made = made
        self._made_inside: set[Key] = set()
        self._values: set[prints.Print] = set()

    def begin(self) -> None:
        """A run begins."""
        self._values.clear()

    def excused(self, check: Check, found: Held, call: Optional[CallId]) -> Optional[Check]:
        """The check of such an argument of a call of the reference's, or of one that is handed on inside the layer."""
        if not check.suspicious or not is_input(check.port.slot) or not (self.keys or self._values):
            return None
        value = prints.taken(found.raw())
        if check.port in self.keys:
            self._values.add(value)
            if call is not None and not DTYPES[found.dtype].exact and self._made(call, found.load()):
                self._made_inside.add(check.port)
        elif value not in self._values:
            return None
        return replace(check, error=0.0, deviation=None, reason=OTHER_FORM)

    def look(self, found: Held) -> None:
        """See whether the reference's code makes an argument in another form anywhere."""
        if not DTYPES[found.dtype].exact and found.key not in self.heard:
            self.heard[found.key] = self._made(CallId("", 0), found.load())

    def inside(self, check: Check, found: Held, frame: Frame, checks: list[Check]) -> Optional[Check]:
        """The check of what a call hands on in another shape, where the reference's code around makes just that value:
        it stands at another border, and so does what the call was given in another shape.
        """
        around = None if frame.around is None else frame.around.call
        if check.reason != OTHER_SHAPE or is_input(check.port.slot) or around is None:
            return None
        if DTYPES[found.dtype].exact or not self._made(around, found.load()):
            return None
        for at in range(frame.first, len(checks)):
            one = checks[at]
            if (
                one.suspicious
                and one.reason == OTHER_SHAPE
                and (one.port.layer, one.port.call) == (frame.path, frame.number)
            ):
                checks[at] = excused(one)
        frame.doubtful = [at for at in frame.doubtful if checks[at].suspicious]
        return excused(check)

    @staticmethod
    def asked(checks: Sequence[Check], plan: Plan) -> set[Key]:
        """Arguments that are wrong as they are, of layers that make something wrong of the reference's."""
        spoiled = _makers(checks)
        return {
            check.port
            for check in checks
            if check.suspicious and check.where == "glue" and is_input(check.port.slot) and check.deviation is not None
            if check.error > NEAR
            if CallId(check.port.layer, check.port.call) in plan.calls
            and not {(check.port.layer, check.port.call), (check.port.layer, None)}.isdisjoint(spoiled)
        }

    def tried(self, asked: Set[Key], checks: Sequence[Check], plan: Plan) -> set[Key]:
        """Those of which a run in which they were left as they are shows that they are to be left so."""
        spoiled = _makers(checks)
        clean = (
            {key for key in asked if {(key.layer, key.call), (key.layer, None)}.isdisjoint(spoiled)}
            if checks
            else set()
        )
        found = clean | (self._made_inside & asked)
        left = asked - found
        self.apart |= {key for key in left if (key.step, CallId(key.layer, key.call)) in plan.uneven}
        return found

    def judged(self, checks: Sequence[Check], plan: Plan) -> list[Check]:
        """The checks, with those inside the layers that are given what is `apart`, all that get the same value; of that
        itself what its layer makes of it tells whether it is right.
        """
        contents = {entry.content for key in self.apart if (entry := plan.entries.get(key)) is not None}
        ports = (check.port for check in checks if is_input(check.port.slot))
        given = {key for key in ports if (entry := plan.entries.get(key)) is not None and entry.content in contents}
        layers = {(key.layer, key.call) for key in given}
        found = []
        for check in checks:
            if check.suspicious and check.port in given:
                check = replace(check, by_effect=True)
            elif check.suspicious and any(_inside(check.port, layer, call) for layer, call in layers):
                check = replace(check, follows=True)
            found.append(check)
        return found


def _makers(checks: Sequence[Check]) -> set[tuple[str, Optional[int]]]:
    """Calls that hand on something wrong, and layers that have something wrong inside, in whichever call."""
    found: set[tuple[str, Optional[int]]] = set()
    for check in checks:
        if check.suspicious:
            port = check.port
            found |= set() if is_input(port.slot) else {(port.layer, port.call)}
            parts = port.layer.split(".")
            found |= {(".".join(parts[:size]), None) for size in range(1, len(parts))}
    return found


def _inside(port: Key, layer: str, call: int) -> bool:
    """Whether a value is made in this call, or in any of a layer inside."""
    return port.layer.startswith(f"{layer}.") or ((port.layer, port.call) == (layer, call) and not is_input(port.slot))
