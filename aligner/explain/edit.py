"""An edit of the port's own code that was run and came out right, as plain data; aligner.mending finds it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Optional

from aligner.record import Key, Phase


def is_among(key: Key, keys: Collection[Key]) -> bool:
    """Whether one of them is this value, of whatever call."""
    return any(key.layer == one.layer and key.slot == one.slot for one in keys)


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
    made, but tells what should happen here. `unseen` are calls of the layer that could not be run with it. `like` says
    that it was found at another layer, and puts this one right as well.
    """

    hunks: tuple[Hunk, ...]
    before: float
    after: float
    broken: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    like: bool = False
    sizes: tuple[int, ...] = ()
    """Numbers that the edit writes, and that are sizes of the values at hand: right for this input."""
    right: frozenset[Key] = frozenset()
    """Where something else in the code is still wrong: the values that it puts right, by the reference's address."""
    left: frozenset[Key] = frozenset()
    """And those that are wrong with it, too."""
    setting: str = ""
    """The cause that it mends, where it is the line that builds a layer: the layer was built so, and run."""
    own: bool = False
    """All lines stand in the class of the port's layer whose code was run, and in that of no layer inside it."""

    def mends(self, key: Optional[Key]) -> bool:
        """Whether this value is right with it, of whatever call."""
        return not self.right or (key is not None and is_among(key, self.right))

    @staticmethod
    def parsed(facts: Mapping[str, Any]) -> Edit:
        """From a finding.

        Raises:
            LookupError, TypeError, ValueError: it is damaged.
        """
        hunks = tuple(
            Hunk(str(o["file"]), int(o["line"]), int(o["column"]), *("\n".join(o[w]) for w in ("before", "after")))
            for o in facts.get("edits", ())
        )
        errors = float(facts["before"]), float(facts["after"])
        broken, unseen = (tuple(map(str, facts.get(name, ()))) for name in ("broken", "unseen"))
        sizes, like = tuple(map(int, facts.get("sizes", ()))), "like" in facts
        right, left = (
            frozenset(
                Key(int(step), Phase.FORWARD, str(layer), int(call), str(slot))
                for step, layer, call, slot in facts.get(name, ())
            )
            for name in ("right", "left")
        )
        setting, own = str(facts.get("setting", "")), bool(facts.get("own", False))
        return Edit(hunks, *errors, broken, unseen, like, sizes, right, left, setting, own)
