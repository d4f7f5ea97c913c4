"""An edit of the port's own code that was run and came out right, as plain data; aligner.mending finds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Hunk:
    """Lines of a file as they stand, from `line` on, and as they shall; `column` is where they part."""

    file: str
    line: int
    column: int
    before: str
    after: str


@dataclass(frozen=True)
class Edit:
    """What was changed, and the error of the value before and after.

    `broken` are layers that run the same lines, are right, and would not be with the edit: there it is no change to be
    made, but tells what should happen here. `like` says that it was found at another layer, and puts this one right as
    well.
    """

    hunks: tuple[Hunk, ...]
    before: float
    after: float
    broken: tuple[str, ...] = ()
    like: bool = False
    sizes: tuple[int, ...] = ()
    """Numbers that the edit writes, and that are sizes of the values at hand: right for this input."""
    setting: str = ""
    """The cause that it mends, where it is the line that builds a layer: the layer was built so, and run."""

    @staticmethod
    def parsed(facts: Mapping[str, Any]) -> Edit:
        """From a finding.

        Raises:
            LookupError, TypeError, ValueError: it is damaged.
        """
        hunks = tuple(
            Hunk(
                str(one["file"]),
                int(one["line"]),
                int(one["column"]),
                *("\n".join(one[w]) for w in ("before", "after")),
            )
            for one in facts.get("edits", ())
        )
        broken = tuple(map(str, facts.get("broken", ())))
        sizes = tuple(map(int, facts.get("sizes", ())))
        return Edit(
            hunks,
            float(facts["before"]),
            float(facts["after"]),
            broken,
            "like" in facts,
            sizes,
            str(facts.get("setting", "")),
        )
