"""A suspected cause, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Optional

from aligner.explain.phrase import Fact
from aligner.record import Attribute


@dataclass(frozen=True)
class Suspect:
    """A cause that fits a case. `facts` fill the catalogue's sentences; numbers stand in them ready to be printed.

    What they hold can be told in any language: numbers, names, code (of values in hand too: "mean([net.a output.0],
    axis=1)"), and phrases by their ids.

    A cause with `change`, `parameters`, `turned` or `training` is tried on a copy of the port's layer, one with `built`
    on the layer that this builds. One with `error` was looked at in numbers: with this mistake undone in the port, or
    done to the reference, that relative L2 is left.
    """

    cause: str
    facts: Mapping[str, Fact] = field(default_factory=dict)
    change: Mapping[str, Attribute] = field(default_factory=dict)
    """Settings of the reference that a copy of the port's layer is given, in canonical words."""
    dtype: str = ""
    """The float type in which a copy of the port's layer computes, where the port computes in a shorter one."""
    parameters: tuple[str, ...] = ()
    """Roles whose values a copy of the port's layer is given anew from the reference."""
    turned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Roles whose values a copy of the port's layer is given with their axes in another order."""
    built: str = ""
    """Python that builds another layer in the port's words, which runs with the reference's weights instead."""
    training: Optional[bool] = None
    """The mode, train or eval, that a copy of the port's layer runs in."""
    error: Optional[float] = None
    weight: float = 0.5
    """How far the suspicion is to be believed before any trial, 0 to 1: the order among causes not confirmed."""

    @property
    def name(self) -> str:
        """What tells suspects of one case apart, also after they were stored."""
        changes = ",".join(f"{name}={value!r}" for name, value in sorted(self.change.items()))
        others = [f"{role}{axes}" for role, axes in self.turned.items()] + [self.built] * bool(self.built)
        others += [] if self.training is None else [f"training={self.training}"]
        return f"{self.cause}({changes}{','.join((*self.parameters, *others))}{self.dtype})"

    @property
    def to_try(self) -> bool:
        """Whether a layer with this undone can be run."""
        return bool(
            self.change or self.parameters or self.dtype or self.turned or self.built or self.training is not None
        )

    def confirmed(self, before: Optional[float], after: Optional[float]) -> Cause:
        """It was run, and left this of the error."""
        return Cause(self.cause, True, self.facts, before, after, self.change)


REFUTED = 0.9
"""A trial that leaves more of the error than this share of it speaks against its cause."""


@dataclass(frozen=True)
class Cause:
    """A suspect after its trial: `confirmed` only if the error fell to rounding."""

    id: str
    confirmed: bool
    facts: Mapping[str, Fact]
    error_before: Optional[float]
    error_after: Optional[float]
    change: Mapping[str, Attribute] = field(default_factory=dict)
    ran: bool = True
    """Else what is left is only worked out from the numbers."""

    @property
    def refuted(self) -> bool:
        """It was tried and the error stayed."""
        if self.confirmed or self.error_before is None or self.error_after is None:
            return False
        return not self.error_after < REFUTED * self.error_before
