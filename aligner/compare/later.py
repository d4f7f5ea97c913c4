"""Where the gradients and updates of a training step go wrong: stage by stage, as one hands on to the next.

    loss -> backward, from the loss to the first layer -> what is made of gradients -> update -> the next step

A port that was captured with --from was given what the reference has between two stages: what is wrong there is wrong
by itself. In a free run all that follows a wrong value comes of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING

from aligner.compare.net import is_input
from aligner.record import Key, Phase
from aligner.words.training import BY_PROGRAM, LOSS

if TYPE_CHECKING:
    from aligner.compare.reading import Reading


class Stage(Enum):
    """What a value of a step was made by."""

    LOSS = "loss"
    BACKWARD = "backward"
    TREATMENT = "clip"
    """What is made of gradients between the backward run and the optimizer: unscaled, clipped, summed."""
    UPDATE = "update"
    BUFFER = "buffer"
    PROGRAM = "program"
    """What a program makes by itself of what an update has left."""

    @property
    def where(self) -> str:
        """The word for an origin there: backward runs and buffers are a layer's doing."""
        return "layer" if self in (Stage.BACKWARD, Stage.BUFFER) else self.value


ORDER = (Stage.LOSS, Stage.BACKWARD, Stage.TREATMENT, Stage.UPDATE, Stage.PROGRAM)


def stage_of(key: Key, optimized: frozenset[tuple[str, str]]) -> Stage:
    """By which stage a record was made; `optimized` are the parameters, by layer and role, that optimizers update."""
    if key.phase is Phase.GRADIENT:
        return Stage.TREATMENT
    if key.phase is Phase.UPDATE and key.call == BY_PROGRAM:
        return Stage.PROGRAM
    if key.phase is Phase.UPDATE:
        own = any((key.layer, role) in optimized for role in (key.slot, key.slot.rpartition(".")[0]))
        return Stage.UPDATE if own else Stage.BUFFER
    return Stage.LOSS if key.layer == LOSS or is_end(key) else Stage.BACKWARD


def is_end(key: Key) -> bool:
    """Whether it is the gradient that comes back to what the net has handed on."""
    return key.phase is Phase.BACKWARD and not key.layer and key.slot.startswith("output.")


def is_handed_back(key: Key) -> bool:
    """Whether it is a gradient that the net hands on to what it was called on."""
    return key.phase is Phase.BACKWARD and not key.layer and is_input(key.slot)


@dataclass
class Step:
    """What is known so far of one step, of a port whose stages were held to the reference's or were not."""

    held: bool
    births: dict[Stage, list[int]] = field(default_factory=dict)

    def sources(
        self, stage: Stage, forward: Sequence[int], earlier: Sequence[int], relayed: bool = False
    ) -> tuple[int, ...]:
        """The births that a wrong value of this stage comes of, the nearest first; none: it is born wrong.

        `forward` are those of the net's values in this step, `earlier` those of the steps before. With `relayed` it has
        come back through a later call of the net.
        """
        if stage is Stage.BACKWARD or (relayed and self.held):
            stage = Stage.BACKWARD
            return (*reversed(self.births.get(stage, ())), *self._before(stage, forward, earlier))
        if stage in (Stage.BUFFER, Stage.PROGRAM) and (self.held or stage is Stage.BUFFER):
            return (*reversed(forward), *(() if self.held else reversed(earlier)))
        return self._before(stage, forward, earlier)

    def _before(self, stage: Stage, forward: Sequence[int], earlier: Sequence[int]) -> tuple[int, ...]:
        if stage is Stage.BACKWARD and self.held:
            return tuple(reversed(forward))
        if self.held:
            return ()
        known: list[int] = [*earlier, *forward]
        for one in ORDER[: ORDER.index(stage)]:
            known += self.births.get(one, ())
        return tuple(reversed(known))

    def add(self, stage: Stage, birth: int) -> None:
        """A value of this stage is born wrong."""
        self.births.setdefault(stage, []).append(birth)


def in_time(readings: Iterable[Reading]) -> list[Reading]:
    """As the reference made them; what programs do is behind all updates, also of those that the port alone makes."""

    def time(reading: Reading) -> tuple[bool, int]:
        key = reading.pair.key
        return key.phase is Phase.UPDATE and key.call == BY_PROGRAM, reading.pair.entry.order

    return sorted(readings, key=time)
