"""The other calls of layers whose code has an edit in it: what was right is to stay so, and what is as wrong as the
call that the edit was found in should be put right by it too.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from types import FunctionType
from typing import Optional

from aligner.compare.checks import OTHER_BORDER
from aligner.mending.failing import FailedError, LostError
from aligner.mending.grouping import Group
from aligner.mending.hunks import shared
from aligner.mending.right import wrong_of
from aligner.mending.running import Parent, Running
from aligner.mending.sources import Sources
from aligner.record import Call, Key

KEPT = 4
"""Calls whose layers' outputs are kept to be handed on again."""

CALLS = 48
"""Other calls that are run with an edit."""

SAME = 4
"""Of these, which are run while it is looked for: they run other ways through the same code, as a rule."""

BREAKING = 100.0
"""What it costs that layers which are right would be wrong: more than any edit that leaves them right."""

STAYS = 0.9
"""Of an error, what is left where an edit does nothing for it."""

LEAVING = 6.0
"""What it costs that another call of the same class would stay as wrong as it is."""


class Others:
    """Such calls. Those whose code has none of the edits in it are not run again."""

    def __init__(self, running: Running, groups: Sequence[Group]) -> None:
        self._running, self._groups = running, groups
        self._known: dict[int, tuple[Sources, set[Key], Parent, frozenset[FunctionType]]] = {}
        """What is wrong in a call with the edits so far, by the group: one call may have several."""
        self._kept: list[Parent] = []

    def harm(self, group: Group, before: Sources, sources: Sources) -> float:
        """What these edits of a call should cost by what becomes of a few others, beside the edits `before`."""
        most = CALLS if shared(before, sources) else SAME
        if any(True for _ in self.broken(group, before, sources, most)):  # the net's own name is empty
            return BREAKING
        alike = [one for one in self._groups if one is not group and one.fails and one.kind is group.kind]
        return LEAVING * any(self._leaves(one, before, sources) for one in alike[:SAME])

    def broken(self, group: Group, before: Sources, sources: Sources, most: int = CALLS) -> Iterator[str]:
        """Layers whose code was right and is not, those of the same class first; and other calls of the very layer that
        cannot be run then.
        """
        layer = group.call.layer
        others = [one for one in self._groups if one is not group and (not one.fails or one.call.layer == layer)]
        others.sort(key=lambda one: one.kind is not group.kind)
        for other in others[:most]:
            was, wrong = self._wrong(other, before, sources)
            if wrong is None or (not wrong <= was and not other.fails):
                yield other.owner if other.owner != group.owner else f"{other.owner} #{other.call.number}"

    def unseen(self, group: Group) -> list[str]:
        """Other wrong calls of this layer that cannot be run again, as objects of the user's are lost."""
        same = [one for one in self._groups if one is not group and one.fails and one.call.layer == group.call.layer]
        return [f"{other.owner} #{other.call.number}" for other in same if self._is_lost(other.call)]

    def left(self, group: Group, values: Collection[Key], sources: Sources) -> Iterator[str]:
        """Other calls of the same code in which a value that was put right is as wrong as it was: what does in one
        turn may be right by chance, as a rotation that is none yet. Of those that hand on values of their own, as a
        cache, or of another size, nobody can tell.
        """
        alike = [one for one in self._groups if one is not group and one.fails and one.kind is group.kind]
        alike = [one for one in alike if all(check.reason != OTHER_BORDER for check in one.checks)]
        for other in alike[:SAME]:
            right = {(f"{other.call.layer}{one.layer[len(group.call.layer) :]}", one.slot) for one in values}
            with suppress(FailedError):
                parent = self._running.parent(other.call, other.checks)
                errors = [parent.trial(each) for each in (Sources({}), sources)]
                for check in wrong_of(other.checks, errors[0]):
                    same = (check.port.layer, check.port.slot) in right
                    before, after = (each.get(check.port, 0.0) for each in errors)
                    if same and math.isfinite(before) and after >= STAYS * before > 0.0:
                        yield f"{other.owner} #{other.call.number}"
                        break

    def _is_lost(self, call: Call) -> bool:
        try:
            self._running.ground.arguments(call)
        except LookupError:
            return True
        return False

    def _leaves(self, other: Group, before: Sources, sources: Sources) -> bool:
        was, wrong = self._wrong(other, before, sources)
        return wrong is None or (bool(was) and was <= wrong)

    def _wrong(self, other: Group, before: Sources, sources: Sources) -> tuple[set[Key], Optional[set[Key]]]:
        """What is wrong in a call with the edits `before`, and then; None where it cannot be run. The same where nobody
        can tell.
        """
        call, checks = other.call, other.checks
        if id(other) not in self._known or self._known[id(other)][0] is not before:
            parent = self._running.parent(call, checks)
            try:
                was = {check.port for check in wrong_of(checks, parent.trial(before))}
            except (LostError, FailedError):
                return set(), set()
            self._known[id(other)] = before, was, parent, parent.used
        _, was, parent, used = self._known[id(other)]
        if not parent.concerned(used, before, sources):
            parent.forget()
            return was, was
        self._keep(parent)
        try:
            return was, {check.port for check in wrong_of(checks, parent.trial(sources))}
        except LostError:
            return was, was
        except FailedError:
            return was, was if parent.stops else None

    def _keep(self, parent: Parent) -> None:
        self._kept = [one for one in self._kept if one is not parent] + [parent]
        if len(self._kept) > KEPT:
            self._kept.pop(0).forget()
