"""What came of the search for edits of one call's code, and what a dump keeps of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Optional

from aligner.compare.checks import Check
from aligner.mending.frameworks import ByFramework
from aligner.mending.leaving import Leaving
from aligner.record import Call, Key, Record


@dataclass
class Mended:
    """What came of one call's code. `like` is the call whose edits put this one right as well."""

    owner: str
    call: Call
    check: Check
    before: float
    after: float
    trials: int = 0
    why: tuple[str, ...] = ()
    proved: bool = False
    edits: Sequence[Mapping[str, Any]] = ()
    broken: Sequence[str] = ()
    """Layers that run the same lines and are right, and would not be with the edits."""
    unseen: Sequence[str] = ()
    """Wrong calls of the same layer that cannot be run again, as their objects hold what this code made."""
    like: str = ""
    leaving: Optional[Leaving] = None
    own: bool = False
    """All edits stand in the class of the call's layer."""
    sizes: Sequence[int] = ()
    """Numbers that the edits write, and that are sizes of the values at hand."""
    right: Sequence[Key] = ()
    """Where the edits put only some of its wrong values right, and something is still wrong: these."""
    left: Sequence[Key] = ()
    """And these are still wrong."""
    framework: Optional[ByFramework] = None
    """No line is wrong: this operation gives another result than the reference's."""

    @property
    def facts(self) -> dict[str, Any]:
        """Plain facts for a dump."""
        key = self.check.key
        facts: dict[str, Any] = {
            "layer": self.owner,
            "at": [key.step, key.layer, key.call, key.slot],
            "before": self.before,
            "after": self.after,
            "proved": self.proved,
            "trials": self.trials,
        }
        for name in ("edits", "why", "broken", "unseen", "sizes"):
            if getattr(self, name):
                facts[name] = [*getattr(self, name)]
        if self.leaving is not None and self.leaving.home:
            facts["home"] = self.leaving.home
        if self.leaving is not None and self.leaving.port is not None and not self.proved:
            facts["first"] = [spot and asdict(spot) for spot in self.leaving[:2]]
        if self.own:
            facts["own"] = True
        for name in ("right", "left"):
            if getattr(self, name):
                facts[name] = [[key.step, key.layer, key.call, key.slot] for key in getattr(self, name)]
        site = None if self.framework is None else self.framework.operation.port.site
        if self.framework is not None and site is not None:
            port, reference, _ = self.framework.operation
            facts["framework"] = {"operation": port.word, "names": [port.name, reference.name]}
            facts["framework"].update(file=site.file, line=site.line, reference=reference.text)
            if self.framework.witness is not None:
                facts["framework"]["call"] = {**self.framework.witness.facts(), "at": [*self._at]}
        return {**facts, "like": self.like} if self.like else facts

    def records(self, order: int) -> Iterator[Record]:
        """Values that a program takes to show the framework's operation; the first after this one in order."""
        if self.framework is not None and self.framework.witness is not None:
            yield from self.framework.witness.records(*self._at, order)

    @property
    def _at(self) -> tuple[int, str, int]:
        return self.call.step, self.call.layer, self.call.number
