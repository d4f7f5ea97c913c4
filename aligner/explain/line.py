"""The line of the port's code that is not the reference's, as plain data; aligner.explain.fork finds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

OTHER, ARGUMENT, OPERAND, GIVEN = "other", "argument", "operand", "given"
MISSING, EXTRA, ELSEWHERE, HANDED = "missing", "extra", "elsewhere", "handed"
BETWEEN, FIRST = "between", "first"


@dataclass(frozen=True)
class Spot:
    """A line of somebody's code and the operation in it."""

    file: str
    line: int
    text: str
    operation: str


@dataclass(frozen=True)
class Fork:
    """`kind` says what is done in `port`'s line in place of `reference`'s.

    "other"      another operation
    "argument"   the same with another number
    "operand"    the same with another value, that both sides have
    "given"      the same with a value that the reference has nowhere and that nothing heard made
    "missing"    the port lacks what the reference's line does
    "extra"      the reference lacks what the port's line does
    "elsewhere"  the port hands on what this line made, not what that one did
    "handed"     the port hands on what came to this code as it came, where the reference has another value
    "between"    no more is known than that the mistake lies in the lines from these to `until`
    "first"      the likeliest, and the reference's first that makes, of what both sides have, what the port lacks
    """

    kind: str
    port: Optional[Spot]
    reference: Optional[Spot]
    until: tuple[Optional[Spot], Optional[Spot]] = (None, None)
    arguments: Optional[tuple[str, str]] = None
    """The number in question, of the reference and of the port."""

    @property
    def sure(self) -> bool:
        """Whether it is this very line."""
        return self.kind not in (BETWEEN, FIRST)
