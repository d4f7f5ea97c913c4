"""What a resumed run may lose: each part of a training's state is set against the whole run's, in the order of a step.

    parameters, buffers, data -> loss scale -> what optimizers keep, updates counted, settings

State is saved and loaded bit by bit. It is lost where it is off by more than a tenth of what the step before changed:
the run that was stopped is another one than the whole, and may round otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from aligner.compare.beginning import NEAR, Beginning, States, alike
from aligner.compare.reading import SEEN, Reading
from aligner.compare.training import Owner, Training
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect
from aligner.record import Key, Phase
from aligner.words.training import LOSS

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

    Floats = npt.NDArray[np.float64]

SHOWN = 3
"""Parameters that are named."""

FORWARD, BACKWARD, UPDATE = 0, 1, 3
"""From where on in a step something lost may show: the order of its phases."""

STAGES: Mapping[Phase, int] = {
    Phase.PARAMETER: FORWARD,
    Phase.FORWARD: FORWARD,
    Phase.BACKWARD: BACKWARD,
    Phase.GRADIENT: 2,
    Phase.UPDATE: UPDATE,
}

RATE, SCALE, COUNT, GRADIENTS = "lr", "loss_scale", "step", "gradients"
"""What stands for a record where the lost thing is none."""


@dataclass(frozen=True)
class Lost:
    """One lost thing. `where` is the word of its origin, `step` is the resumed run's."""

    suspect: Suspect
    where: str
    step: int
    stage: int
    key: Key
    readings: tuple[Reading, ...] = ()
    owners: tuple[Owner, ...] = ()
    of: int = 0


@dataclass(frozen=True)
class Resumed:
    """Both runs: the whole one, and what it is from where the other begins."""

    whole: Dump
    reference: Dump
    port: Dump
    begun: Beginning
    states: States
    training: Training
    readings: Sequence[Reading]
    roots: frozenset[str]

    @property
    def words(self) -> str:
        """Whose words tell what to do: "torch" or "mindspore"."""
        return "mindspore" if self.port.header.get("framework") == "mindspore" else "torch"

    def fix(self, name: str) -> Fact:
        """What to save and load, in the words of the framework."""
        return phrase(f"resume-{name}-{self.words}")


def is_lost(reading: Reading, run: Resumed) -> bool:
    """Whether a part of the state is off by more than the runs may round otherwise."""
    one, other = reading.pair.reference, reading.pair.port
    if one is None or other is None or alike(one, other):
        return False
    if reading.deviation is None or reading.deviation.nonfinite:
        return True
    off = reading.deviation.rel_l2 * reading.deviation.rms * math.sqrt(reading.deviation.total)
    before = run.states.at(reading.pair.key, run.begun.step - 1) if run.begun.step else None
    moved = 0.0 if before is None or before.shape != one.shape else float(np.linalg.norm(floats(one) - floats(before)))
    return off_by(reading) > SEEN and off > NEAR * moved


def off_by(reading: Reading) -> float:
    return math.inf if reading.deviation is None else reading.deviation.rel_l2


def floats(entry: Entry) -> Floats:
    return np.asarray(entry.load(), np.float64)


def how(off: Sequence[Reading], run: Resumed) -> Fact:
    """Of which step of the whole run these are, if they are those of one."""
    ports = [r.pair.port for r in off]
    if not any(ports):
        return phrase("of-nothing")
    steps = [run.states.same(port) for port in ports if port is not None]
    same = frozenset.intersection(*steps) if len(steps) == len(ports) else frozenset()
    if not same:
        return phrase("of-no-step")
    return phrase("of-step", min(same)) if min(same) else phrase("of-the-beginning")


def named(off: Sequence[Reading], run: Resumed) -> str:
    owners = (run.training.owner(r.pair.key) or (r.pair.key.layer, r.pair.key.slot) for r in off)
    names = list(dict.fromkeys(".".join(owner).lstrip(".") for owner in owners))
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def no_record(step: int, word: str) -> Key:
    """An address for what is told in no record."""
    phase = {SCALE: Phase.BACKWARD, GRADIENTS: Phase.GRADIENT}.get(word, Phase.UPDATE)
    return Key(step, phase, "", 0, word)


def moment(key: Key) -> tuple[int, int]:
    """When in a training something stands, by step and stage. A loss may be multiplied by its scale."""
    return key.step, BACKWARD if key.layer == LOSS else STAGES.get(key.phase, FORWARD)
