"""Calls of layers that were right, run with edits: do these make something wrong there?"""

from __future__ import annotations

from collections.abc import Sequence
from types import FunctionType

from aligner.compare.checks import Check
from aligner.mending.rerun import FailedError, LostError
from aligner.mending.running import Parent, Running
from aligner.mending.sources import Sources
from aligner.mending.stepping import wrong_of
from aligner.record import Call, Key

KEPT = 4
"""Calls whose layers' outputs are kept to be handed on again."""


class Others:
    """Such calls. Those whose code has none of the edits in it are not run again."""

    def __init__(self, running: Running) -> None:
        self._running = running
        self._known: dict[int, tuple[Sources, set[Key], Parent, frozenset[FunctionType]]] = {}
        """What is wrong in a call with the edits so far, by its first event."""
        self._kept: list[Parent] = []

    def breaks(self, call: Call, checks: Sequence[Check], before: Sources, sources: Sources) -> bool:
        """Whether something in a call is wrong that is not with the edits `before`; of one that is wrong as it is,
        whether it cannot be run. False where nobody can tell.
        """
        if call.first not in self._known or self._known[call.first][0] is not before:
            parent = self._running.parent(call, checks)
            try:
                was = {check.port for check in wrong_of(checks, parent.trial(before))}
            except (LostError, FailedError):
                return False
            self._known[call.first] = before, was, parent, parent.used
        _, was, parent, used = self._known[call.first]
        if not parent.concerned(used, before, sources):
            parent.forget()
            return False
        self._keep(parent)
        try:
            wrong = {check.port for check in wrong_of(checks, parent.trial(sources))}
            return not wrong <= was and not any(check.fails for check in checks)
        except LostError:
            return False
        except FailedError:
            return True

    def _keep(self, parent: Parent) -> None:
        self._kept = [one for one in self._kept if one is not parent] + [parent]
        if len(self._kept) > KEPT:
            self._kept.pop(0).forget()
