"""Values that are born wrong, and what is known of those that a value was made from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Optional

from aligner.compare.checks import Check
from aligner.compare.reading import Reading
from aligner.record import Key

CARRIED = 16
"""The number of births that are followed at a time, the latest ones: a net where more meet is wrong all over."""


TOGETHER = ("data", "clip", "update", "program")
"""Where all inputs or parameters of the net go through one place."""


@dataclass(frozen=True)
class Birth:
    """A value that is wrong by itself. `layer` is the reference's."""

    layer: str
    where: str
    reading: Reading
    key: Key
    order: int
    input_error: Optional[float]
    between: Optional[tuple[str, str]] = None
    check: Optional[Check] = None
    """What the forced pass found here."""
    owner: Optional[tuple[str, str]] = None
    """The parameter whose update it is, by layer and role."""

    @property
    def place(self) -> tuple[str, str, Optional[tuple[str, str]]]:
        """Births at one place are one origin, however many calls and tensors show it; an optimizer's update and what
        is made of gradients before it are one place for all parameters."""
        return "" if self.where in TOGETHER else self.layer, self.where, self.between


@dataclass
class Sources:
    """What is known of the values that another one was made from."""

    severity: float = 0.0
    over: bool = False
    nonfinite: bool = False
    error: Optional[float] = None
    births: dict[int, float] = field(default_factory=dict)
    """Births that reach here, by the severity of what carries them."""

    def add(self, state: State) -> None:
        """One more source."""
        self.severity = max(self.severity, state.severity)
        self.over |= state.over
        self.nonfinite |= state.nonfinite
        if state.error is not None:
            self.error = state.error if self.error is None else max(self.error, state.error)
        for birth in state.births:
            self._reach(birth, state.severity)

    def join(self, other: Sources) -> None:
        """All of the other's sources as well."""
        self.severity = max(self.severity, other.severity)
        self.over |= other.over
        self.nonfinite |= other.nonfinite
        if other.error is not None:
            self.error = other.error if self.error is None else max(self.error, other.error)
        self.reached_by(other)

    def reached_by(self, other: Sources) -> None:
        """The other's births, without what carries them."""
        for birth, severity in other.births.items():
            self._reach(birth, severity)

    def _reach(self, birth: int, severity: float) -> None:
        self.births[birth] = max(self.births.get(birth, 0.0), severity)
        if len(self.births) > CARRIED:
            del self.births[next(iter(self.births))]


@dataclass
class State:
    """A value's part in the flow: how bad it is, and the births it goes back to."""

    severity: float
    over: bool
    nonfinite: bool
    error: Optional[float]
    births: tuple[int, ...]
    time: int
