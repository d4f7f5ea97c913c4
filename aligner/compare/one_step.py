"""What one dump tells of a training: which optimizers have updated, and of one step its losses, settings and moves."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.training import Owner, Update, as_it_begins, updates
from aligner.record import Attribute, Key, Phase
from aligner.words.training import LOSS

if TYPE_CHECKING:
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump


@dataclass(frozen=True)
class Optimizer:
    """One of a training, and how many updates of its were captured."""

    number: int
    kind: str
    type: str
    updates: int


@dataclass(frozen=True)
class Group:
    """Parameters that an optimizer is told to treat alike."""

    settings: Mapping[str, Attribute]
    parameters: Sequence[Owner]


@dataclass(frozen=True)
class Moved:
    """A parameter or buffer in a step: L2 norms of the gradient that the optimizer is given, of what it begins with and
    of what the step adds to it."""

    owner: Owner
    gradient: Optional[float]
    before: Optional[float]
    change: Optional[float]


@dataclass(frozen=True)
class Step:
    """One step; without updates where none ended it, or none was captured."""

    number: int
    updates: Sequence[Update]
    groups: Sequence[Group]
    losses: Sequence[float]
    seed: Optional[float]
    """What the backward run began with: one, or the loss scale."""
    records: Mapping[Phase, int]


def optimizers(dump: Dump) -> list[Optimizer]:
    """Those that have updated, in the order in which they were first seen."""
    found: dict[int, list[Update]] = {}
    for one in updates(dump):
        found.setdefault(one.optimizer, []).append(one)
    return [Optimizer(number, made[0].kind, made[0].type, len(made)) for number, made in found.items()]


def step_of(dump: Dump, number: int) -> Step:
    """What is told of a step."""
    made = [one for one in updates(dump) if one.step == number]
    records = Counter(entry.key.phase for entry in dump.entries if entry.key.step == number)
    seed = _number(dump.find(Key(number, Phase.BACKWARD, LOSS, 0, "output.0")))
    return Step(number, made, groups(made), _losses(dump, number), seed, records)


def groups(made: Sequence[Update]) -> list[Group]:
    """Parameters by what they are updated with, in the optimizers' own order."""
    found: list[tuple[Mapping[str, Attribute], list[Owner]]] = []
    for one in made:
        for owner, settings in one.settings.items():
            same = next((parameters for known, parameters in found if known == settings), None)
            if same is None:
                found.append((settings, [owner]))
            else:
                same.append(owner)
    return [Group(settings, parameters) for settings, parameters in found]


def settings_of(step: Step, layer: str) -> list[Group]:
    """Those of a layer's own parameters."""
    own = [Group(one.settings, [owner for owner in one.parameters if owner[0] == layer]) for one in step.groups]
    return [one for one in own if one.parameters]


def updated(dump: Dump, number: int) -> list[Entry]:
    """Each parameter that the step leaves, in the order of the dump; what optimizers keep beside them is left out."""
    known = {owner for one in updates(dump) for owner in one.settings}
    known |= {(e.key.layer, e.key.slot) for e in dump.entries if e.key.phase is Phase.PARAMETER}
    left = [e for e in dump.entries if e.key.step == number and e.key.phase is Phase.UPDATE]
    return [entry for entry in left if (entry.key.layer, entry.key.slot) in known]


def moved(dump: Dump, entry: Entry) -> Moved:
    """Of a parameter behind an update."""
    key = entry.key
    given = dump.find(key._replace(phase=Phase.GRADIENT))
    before = begins(dump, key)
    after = None if before is None or before.shape != entry.shape else _array(entry) - _array(before)
    return Moved((key.layer, key.slot), _norm(given), _norm(before), None if after is None else _size(after))


def begins(dump: Dump, key: Key) -> Optional[Entry]:
    """A parameter as the key's step begins."""
    return as_it_begins(dump, key)


def _losses(dump: Dump, number: int) -> list[float]:
    """One for each backward run."""
    found: list[float] = []
    while (entry := dump.find(Key(number, Phase.FORWARD, LOSS, len(found), "output.0"))) is not None:
        value = _number(entry)
        found.append(math.nan if value is None else value)
    return found


def _number(entry: Optional[Entry]) -> Optional[float]:
    return float(_array(entry).reshape(-1)[0]) if entry is not None and math.prod(entry.shape) == 1 else None


def _norm(entry: Optional[Entry]) -> Optional[float]:
    return None if entry is None else _size(_array(entry))


def _array(entry: Entry) -> Any:
    array = entry.load()
    return array.astype(np.result_type(array.dtype, np.float64))


def _size(array: Any) -> float:
    return float(np.linalg.norm(array.reshape(-1)))
