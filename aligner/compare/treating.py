"""Why the gradients that an optimizer is given are wrong, where those of the backward runs agree.

How each side treats them is read from all steps; what was done in one step alone (a batch that is left out, gradients
that were not set to zero, two that were exchanged) from that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect
from aligner.record import Key, Phase
from aligner.training import numbers
from aligner.training.losses import SCALE
from aligner.training.ways import Seen, Way, seen, way

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.compare.training import Owner, Training
    from aligner.compare.verdict import Origin
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

    Floats = npt.NDArray[np.float64]
    _Row = tuple[list[Floats], Floats, Floats]
    _Told = tuple[str, Mapping[str, Fact], float]

STEPS = 12
"""So many steps are looked at."""

LARGE = 1 << 24
"""Elements of all gradients of a step, at most: the way that a larger net's are treated is not read."""


TREATMENT = "treatment"
"""The reference's way, as if it were a setting: a trial's change."""

BATCHES, EARLIER = 16, 8
"""Of one update, and steps before it, that are looked at together."""

LOOKED = 64
"""Parameters whose numbers are looked into, the smallest first."""


def raws(reference: Dump, step: int, owner: Owner) -> list[Floats]:
    """What each backward run of a step made for a parameter."""
    found: list[Floats] = []
    while (entry := reference.find(Key(step, Phase.BACKWARD, owner[0], len(found), owner[1]))) is not None:
        found.append(np.asarray(entry.load(), np.float64))
    return found


def way_of(reference: Dump, given: Dump, ports: Mapping[Owner, Owner], times: Sequence[float] = ()) -> Optional[Way]:
    """How the gradients that `given` has follow from the reference's backward runs, `times` as large in each step.

    `ports` are its parameters by the reference's.
    """
    steps: list[list[Seen]] = []
    known: dict[int, dict[Owner, Entry]] = {}
    for entry in given.entries:
        if entry.key.phase is Phase.GRADIENT and "." not in entry.key.slot:  # else an optimizer keeps it
            known.setdefault(entry.key.step, {})[entry.key.layer, entry.key.slot] = entry
    for step in sorted(known)[:STEPS]:
        entries = known[step]
        mine = [(owner, entries[other]) for owner, other in ports.items() if other in entries]
        if not mine or sum(math.prod(entry.shape) for _, entry in mine) > LARGE:
            continue
        rows = []
        for owner, entry in mine:
            made = raws(reference, step, owner)
            if made and made[0].shape == entry.shape:
                whole = sum(made[1:], made[0]) * (times[step] if step < len(times) else 1.0)
                rows.append(seen(whole, np.asarray(entry.load(), np.float64)))
        if rows and all(math.isfinite(one.raw) for one in rows):
            steps.append(rows)
    return way(steps)


class Treating:
    """Of one comparison; `names` are the port's own of the reference's parameters."""

    def __init__(self, dumps: tuple[Dump, Dump], training: Training, names: Mapping[Owner, str]) -> None:
        self._dumps, self._training, self._names = dumps, training, names
        self._ports = training.ports
        self._known: dict[frozenset[Owner], tuple[Optional[Way], Optional[Way]]] = {}

    def _ways(self, step: int) -> tuple[Optional[Way], Optional[Way]]:
        """The reference's and the port's, of what is updated in this step: each of several nets has its own."""
        moved = self._training.settings(0, step)
        ports = {owner: port for owner, port in self._ports.items() if not moved or owner in moved}
        known = frozenset(ports)
        if known not in self._known:
            reference, port = self._dumps
            times = [self._training.scale(one) for one in range(max(reference.steps, default=-1) + 1)]
            mine = {owner: owner for owner in ports}
            self._known[known] = way_of(reference, reference, mine), way_of(reference, port, ports, times)
        return self._known[known]

    def suspects(self, origin: Origin) -> Iterator[Suspect]:
        """How the port's gradients follow from those of the backward runs, and the reference's from the same."""
        found = self._found(origin)
        ours, theirs = self._ways(origin.step)
        if found is None:
            return
        alone = self._alone(origin, *found)
        other = ours is not None and theirs is not None and not self._alike(ours, theirs, origin.step)
        if alone is not None:
            yield self._suspect(*alone, origin.step, ours)
        elif ours is not None and theirs is not None and other:
            yield self._suspect(*self._between(ours, theirs, origin, found[1]), origin.step, ours)
        else:
            rest = self._by_numbers(origin, found[1])
            yield from () if rest is None else (self._suspect(*rest, origin.step, None),)

    def _suspect(self, cause: str, facts: Mapping[str, Fact], weight: float, step: int, ours: Optional[Way]) -> Suspect:
        """With what the reference does; where all that is known, a trial may prove it."""
        told = ours or self._ways(step)[0]
        norm = f"{self._training.norm(0, step) or 0.0:.6g}"
        facts = {**facts, "ours": told.told if told is not None else phrase("way-seen", norm)}
        return Suspect(cause, facts, {} if ours is None else {TREATMENT: ours.word}, weight=weight)

    def _alike(self, ours: Way, theirs: Way, step: int) -> bool:
        """Whether both make the same; what is left of a loss scale that one side alone has is not."""
        return ours.same(theirs) and near(self._training.scale(step), 1.0)

    def _found(self, origin: Origin) -> Optional[tuple[list[Owner], list[_Row]]]:
        """Parameters whose gradients tell something, and these."""
        owners = origin.owners[:LOOKED]
        found = [(owner, row) for owner in owners if (row := self._gradients(origin.step, owner)) is not None]
        if not found:
            return None
        large = numbers.telling([_sum(raw) for _, (raw, *_) in found])
        kept = [one for one, tells in zip(found, large) if tells]
        return [owner for owner, _ in kept], [row for _, row in kept]

    def _alone(self, origin: Origin, owners: list[Owner], rows: list[_Row]) -> Optional[_Told]:
        """What is seen in this step alone."""
        made, wanted, given = zip(*rows)
        sums, batches = [_sum(raw) for raw in made], len(made[0])
        times = self._training.scale(origin.step)
        if numbers.treatment([one * times for one in sums], given).factor is not None:
            return None
        for which in range(batches if batches > 1 else 0):
            if numbers.treatment([raw[which] for raw in made], given).factor is not None:
                return "gradients-of-some-batches", {"which": which + 1, "batches": batches}, 0.9
        kept = self._not_zeroed(origin.step, owners, sums, given)
        if kept:
            return "gradients-not-zeroed", {"steps": kept}, 0.95
        factors = numbers.shares(made, given) if 1 < batches <= BATCHES else None
        if factors is not None:
            return "clip-per-batch", {"factors": ", ".join(f"{one:.4g}" for one in factors)}, 0.9
        crossed = numbers.crossed(wanted, given)
        if crossed:
            shown = ", ".join(self._names.get(owners[at], plain(owners[at])) for at in crossed[:3])
            return "gradients-crossed", {"parameters": shown}, 0.95
        return None

    def _between(self, ours: Way, theirs: Way, origin: Origin, rows: list[_Row]) -> _Told:
        """What is another in the port's way, which explains its gradients in every step."""
        factor, batches = theirs.factor / ours.factor, len(rows[0][0])
        scale = self._training.scale(origin.step, 1)
        facts: dict[str, Fact] = {"factor": f"{factor:.6g}"}
        bare = theirs.kind == "none" and near(theirs.factor, 1.0)
        if bare and batches > 1 and (near(scale, batches) or near(scale, 1 / batches)):
            return "grad-accumulation-mean-vs-sum", {"factor": f"{scale:.6g}", "batches": batches}, 0.9
        if bare and scale != 1.0:
            return "loss-scale-not-removed", {**facts, "scale": f"{scale:g}"}, 0.95
        if theirs.kind == ours.kind and (ours.kind == "none" or near(theirs.bound, ours.bound)):
            if batches > 1 and (near(factor, batches) or near(factor, 1 / batches)):
                return "grad-accumulation-mean-vs-sum", {**facts, "batches": batches}, 0.9
            carried = _power(1 / ours.factor) if bare and ours.kind == "none" else None
            if carried is not None:
                return "loss-scale-not-removed", {**facts, "scale": f"{carried:g}"}, 0.95
            if not bare:
                return "gradient-scaled", facts, 0.9
        if theirs.kind == "none":
            norms = {
                "norm": f"{self._training.norm(1, origin.step) or 0.0:.6g}",
                "wanted": f"{self._training.norm(0, origin.step) or 0.0:.6g}",
            }
            return "gradients-untreated", norms, 0.9
        inside = _power(ours.bound / theirs.bound) if ours.kind == theirs.kind == "norm" else None
        if inside is not None:
            facts.update(norm=f"{ours.bound:.6g}", scale=f"{inside:g}", factor=f"{theirs.bound / ours.bound:.6g}")
            return "loss-scale-clip-before-unscale", facts, 0.9
        if theirs.kind == "value":
            return "clip-value-vs-norm", {"bound": f"{theirs.bound:.6g}"}, 0.9
        if theirs.kind == "each" and ours.kind != "each":
            return self._each(numbers.treatment([_sum(raw) for raw, *_ in rows], [row[2] for row in rows]))
        norms = {"norm": f"{theirs.bound:.6g}", "wanted": f"{self._training.norm(0, origin.step) or 0.0:.6g}"}
        return "clip-global-norm", {**norms, "raw": f"{self._raw_norm(rows):.6g}"}, 0.9

    def _by_numbers(self, origin: Origin, rows: list[_Row]) -> Optional[_Told]:
        """A guess from this step's numbers, where no way explains them all."""
        made, wanted, given = zip(*rows)
        sums, times = [_sum(raw) for raw in made], self._training.scale(origin.step)
        port = numbers.treatment([one * times for one in sums], given)
        if port.factor is not None:
            reference = numbers.treatment(sums, wanted)
            return self._one_factor(port.factor, reference.factor, len(made[0]), (sums, wanted, given), origin)
        if port.bound is not None:
            return "clip-value-vs-norm", {"bound": f"{port.bound:g}"}, 0.9
        return self._each(port) if None not in port.factors else None

    @staticmethod
    def _each(port: numbers.Treatment) -> _Told:
        known = [factor for factor in port.factors if factor is not None] or [1.0]
        facts: dict[str, Fact] = {"least": f"{min(known):.3g}", "most": f"{max(known):.3g}"}
        return "clip-per-tensor-vs-global", facts, 0.9

    def _not_zeroed(self, step: int, owners: Sequence[Owner], sums: Sequence[Floats], given: Sequence[Floats]) -> int:
        """How many earlier steps' gradients are in those of this step, if they are."""
        whole = [*sums]
        for back in range(1, min(step, EARLIER) + 1):
            before = [self._gradients(step - back, owner) for owner in owners]
            known = [one[0] for one in before if one is not None]
            if len(known) < len(owners):
                return 0
            whole = [one + _sum(made) for one, made in zip(whole, known)]
            if numbers.treatment(whole, given).factor is not None:
                return back
        return 0

    def _one_factor(
        self,
        factor: float,
        wanted: Optional[float],
        batches: int,
        values: tuple[Sequence[Floats], Sequence[Floats], Sequence[Floats]],
        origin: Origin,
    ) -> _Told:
        """All gradients are one multiple of the backward runs'."""
        raw, ours, theirs = (numbers.norm(one) for one in values)
        times = theirs / ours
        facts: dict[str, Fact] = {"factor": f"{times:.6g}"}
        scale = self._training.scale(origin.step, 1)
        if batches > 1 and (near(times, batches) or near(times, 1 / batches)):
            return "grad-accumulation-mean-vs-sum", {**facts, "batches": batches}, 0.9
        if scale != 1.0 and near(factor, 1.0):
            return "loss-scale-not-removed", {**facts, "scale": f"{scale:g}"}, 0.95
        if near(factor, 1.0) and (wanted is None or not near(wanted, 1.0)):
            return "gradients-untreated", {"norm": f"{theirs:.6g}", "wanted": f"{ours:.6g}"}, 0.9
        if (inside := _power(ours / theirs)) is not None:  # a loss scale inside of both losses
            facts.update(norm=f"{ours:.6g}", scale=f"{inside:g}")
            return "loss-scale-clip-before-unscale", facts, 0.8
        if scale != 1.0 and near(theirs * scale, _round(theirs * scale)):
            norm = f"{_round(theirs * scale):g}"
            return "loss-scale-clip-before-unscale", {**facts, "norm": norm, "scale": f"{scale:g}"}, 0.8
        if near(theirs, _round(theirs)) or near(ours, _round(ours)):
            norms = {"norm": f"{theirs:.6g}", "wanted": f"{ours:.6g}", "raw": f"{raw:.6g}"}
            return "clip-global-norm", norms, 0.8
        return "gradient-scaled", facts, 0.7

    def _gradients(self, step: int, owner: Owner) -> Optional[_Row]:
        """What the reference's backward runs made for a parameter, and what both optimizers are given."""
        other = self._ports.get(owner, owner)
        sides = zip(self._dumps, (owner, other))
        entries = [dump.find(Key(step, Phase.GRADIENT, one[0], 0, one[1])) for dump, one in sides]
        values = [np.asarray(entry.load(), np.float64) for entry in entries if entry is not None]
        given = (values[0], values[1]) if len(values) == 2 and values[0].shape == values[1].shape else None
        made = raws(self._dumps[0], step, owner)
        return None if given is None or not made else (made, *given)

    @staticmethod
    def _raw_norm(rows: list[_Row]) -> float:
        return numbers.norm([_sum(raw) for raw, *_ in rows])


def _sum(made: Sequence[Floats]) -> Floats:
    return sum(made[1:], made[0])


def plain(owner: Owner) -> str:
    """A parameter's path."""
    return ".".join(owner).lstrip(".")


def _power(ratio: float) -> Optional[float]:
    """The power of two that it is, of those that are loss scales."""
    power = 2.0 ** round(np.log2(ratio)) if ratio > 0 else 0.0
    return power if power >= SCALE and near(ratio, power) else None


def near(one: float, other: float) -> bool:
    """Whether two factors are one."""
    return abs(one - other) <= numbers.ALIKE * abs(other)


def _round(value: float) -> float:
    """The nearest number that somebody would write: two figures."""
    return float(f"{value:.1e}") if value else 0.0
