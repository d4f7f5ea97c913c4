"""At which step of a whole training a resumed one begins: its state is, bit by bit, the one that this step begins with.

The parameters tell; where these were not loaded, what optimizers keep, and else how many updates they have made.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.shifted import is_kept, optimized
from aligner.compare.training import HELD, updates
from aligner.dump.identity import lineage
from aligner.errors import IncomparableError, UsageError
from aligner.record import Key, Phase, Scalar

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

    Floats = npt.NDArray[np.float64]

NEAR = 0.1
"""Parameters are those of a step if they are off by no more than this part of what a step changes."""

MOST = 0.5
"""Of the parameters that move, so many at least tell a step by their bits."""


@dataclass(frozen=True)
class Beginning:
    """Of a resumed run, counted as the whole one counts."""

    step: int
    by: str
    """"parameters", "rounding" (they are nearly those of the step), "state", "counter", or "option" (`--from-step`)."""
    steps: int = 0
    """Steps that both have."""
    left: tuple[int, int] = (0, 0)
    """Steps behind these, that one side alone has."""
    others: tuple[int, ...] = ()
    """Steps that begin with the same."""


@dataclass(frozen=True)
class Nowhere:
    """The second run begins at no step of the first one."""

    nearest: int
    off: float
    """From the nearest step's parameters, relative to these."""
    steps: int


class States:
    """What the steps of one training begin with, by layer and slot."""

    def __init__(self, dump: Dump) -> None:
        self.last = max((update.step for update in updates(dump)), default=-1) + 1
        self.steps = sorted({step for step in dump.steps if step < self.last} | {self.last})
        """Those that may begin another run; the last one begins behind all."""
        self.owners = optimized(dump)
        self.parameters: dict[tuple[str, str], dict[int, Entry]] = {}
        self.kept: dict[tuple[str, str], dict[int, Entry]] = {}
        for entry in dump.entries:
            key = entry.key
            if is_kept(key, self.owners):
                step = key.step + (key.phase is Phase.UPDATE)
                self.kept.setdefault((key.layer, key.slot), {}).setdefault(step, entry)
            elif key.phase in (Phase.PARAMETER, Phase.UPDATE):
                step = key.step + (key.phase is Phase.UPDATE)
                known = self.parameters.setdefault((key.layer, key.slot), {})
                if step not in known or key.call > known[step].key.call:
                    known[step] = entry

    def at(self, key: Key, step: int) -> Optional[Entry]:
        """A parameter, a buffer, or what is kept of a parameter, as a step begins."""
        table = self.kept if (key.layer, key.slot) in self.kept else self.parameters
        known = table.get((key.layer, key.slot), {})
        before = [at for at in known if at <= step]
        return known[max(before)] if before else None

    def same(self, entry: Entry) -> frozenset[int]:
        """The steps that begin with these very bits in this place."""
        found = ((step, self.at(entry.key, step)) for step in self.steps)
        return frozenset(step for step, one in found if one is not None and alike(one, entry))


def alike(one: Entry, other: Entry) -> bool:
    """Whether two records have the same bits."""
    return one.shape == other.shape and one.content == other.content


def found(reference: Dump, port: Dump, wanted: Optional[int]) -> Optional[Beginning]:
    """Where the port's run begins in the reference's; None where it begins as that does, or nothing tells.

    Raises:
        UsageError: `wanted` is no step of the reference's, or one of the two is no training.
        IncomparableError: it begins where the reference ends.
    """
    ours = States(reference)
    if wanted is not None:
        if not (ours.last and updates(port)) or port.header.get(HELD) is True:
            raise UsageError("from-step-untrained", reference=str(reference.path), port=str(port.path))
        if not 0 <= wanted < ours.last:
            raise UsageError("from-step-unknown", step=wanted, last=ours.last - 1, reference=str(reference.path))
        return _with_steps(Beginning(wanted, "option"), ours.last, port)
    if not _may_be(reference, port):
        return None
    known = _by_content(ours, reference, port)
    if known is None:
        return None
    if known.step >= ours.last:
        facts = {"reference": str(reference.path), "port": str(port.path), "steps": ours.last}
        raise IncomparableError("resumed-at-end", **facts)
    return _with_steps(known, ours.last, port)


def _may_be(reference: Dump, port: Dump) -> bool:
    """Whether both are trainings by one framework, and run freely."""
    free = port.header.get(HELD) is not True and not lineage(port.header)
    alike = reference.header.get("framework") == port.header.get("framework")
    return bool(free and alike and updates(reference) and updates(port))


def _with_steps(known: Beginning, last: int, port: Dump) -> Beginning:
    theirs = States(port).last
    both = min(last - known.step, theirs)
    return Beginning(known.step, known.by, both, (last - known.step - both, theirs - both), known.others)


def _by_content(ours: States, reference: Dump, port: Dump) -> Optional[Beginning]:
    theirs = States(port)
    state = _most([entry for known in theirs.kept.values() for at, entry in known.items() if not at], ours)
    counter = _counted(reference, port)
    exact = _most(_moving(ours, theirs), ours)
    fits, by = exact, "parameters"
    if not fits and (near := nearest(ours, theirs)) is not None and near.off <= NEAR:
        fits, by = frozenset({near.nearest}), "rounding"
    if not fits or 0 in fits:
        fits, by = (state, "state") if state else (counter, "counter")
    if not fits or 0 in fits:
        return None
    for other in (state, counter, _batches(ours, reference, port)):
        fits = fits & other or fits
    return Beginning(min(fits), by, others=tuple(sorted(fits - {min(fits)})))


def _moving(ours: States, theirs: States) -> list[Entry]:
    """The parameters that the second run begins with, of those that the first one changes."""
    places = [place for place, known in ours.parameters.items() if place in ours.owners and len(known) > 1]
    return [theirs.parameters[place][0] for place in places if 0 in theirs.parameters.get(place, {})]


def _most(entries: Sequence[Entry], ours: States) -> frozenset[int]:
    """The steps that begin with most of these."""
    same = [ours.same(entry) for entry in entries]
    votes = {step: sum(step in one for one in same) for step in ours.steps}
    best = max(votes.values(), default=0)
    return frozenset(step for step in votes if votes[step] == best) if best > MOST * len(entries) else frozenset()


def _counted(reference: Dump, port: Dump) -> frozenset[int]:
    """The steps before which the first run's optimizer had made as many updates as the second's at its beginning."""
    first = next(iter(updates(port)), None)
    if first is None or not first.count:
        return frozenset()
    same = (one for one in updates(reference) if one.optimizer == first.optimizer)
    return frozenset(one.step for one in same if one.count == first.count)


def _batches(ours: States, reference: Dump, port: Dump) -> frozenset[int]:
    """The steps that begin with the second run's first batch."""
    first = port.find(Key(0, Phase.FORWARD, "", 0, "input.0"))
    if first is None:
        return frozenset()
    found = ((step, reference.find(first.key._replace(step=step))) for step in ours.steps)
    return frozenset(step for step, one in found if one is not None and alike(one, first))


def nearest(ours: States, theirs: States) -> Optional[Nowhere]:
    """The step whose parameters are the nearest; `off` is a part of what the step before or behind it changes."""
    moving = _moving(ours, theirs)
    if not moving:
        return None
    samples = {step: [_sample(ours.at(entry.key, step)) for entry in moving] for step in ours.steps}
    own = [_sample(entry) for entry in moving]
    far = {step: _apart(one, own) for step, one in samples.items()}
    best = min(far, key=lambda step: far[step])
    steps = [_apart(samples[best], samples[at]) for at in (best - 1, best + 1) if at in samples]
    moved = min((one for one in steps if one), default=0.0)
    return Nowhere(best, far[best] / moved if moved else float("inf"), ours.last)


def _sample(entry: Optional[Entry]) -> Floats:
    return np.zeros(0) if entry is None else np.asarray(entry.sample(), np.float64)


def _apart(one: Sequence[Floats], other: Sequence[Floats]) -> float:
    """The distance of all of them together; of other sizes, endless."""
    if any(a.shape != b.shape for a, b in zip(one, other)):
        return float("inf")
    return float(np.sqrt(sum(float(np.square(a - b).sum()) for a, b in zip(one, other))))


def nowhere(reference: Dump, port: Dump) -> Optional[Mapping[str, Scalar]]:
    """What is to be told of a second run of the same program whose parameters are those of no step of the first."""
    targets = [str(dump.header.get("target")).split(" ")[0] for dump in (reference, port)]
    if targets[0] != targets[1] or not _may_be(reference, port):
        return None
    ours, theirs = States(reference), States(port)
    if _most(_moving(ours, theirs), ours):
        return None
    near = nearest(ours, theirs)
    if near is None or near.off <= NEAR:
        return None
    return {"reference": str(reference.path), "port": str(port.path), "steps": near.steps, "step": near.nearest}
