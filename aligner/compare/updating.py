"""Why an update, or what is made of gradients before it, is wrong: both optimizers' settings, and the numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.training import Owner, Training, as_it_begins
from aligner.explain.suspect import Cause, Suspect
from aligner.findings import TRIAL
from aligner.record import Key, Phase
from aligner.training import batches, numbers, scores
from aligner.training.losses import SCALE
from aligner.training.settings import OPTIMIZED, Difference, differences

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.compare.verdict import Origin
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

    Floats = npt.NDArray[np.float64]

UPDATES = "(update)"
"""Stands for the layer in the trials of updates."""

MOST = 5
"""Causes that are told."""

BATCHES, EARLIER = 16, 8
"""Of one update, and steps before it, that are looked at together."""

LOOKED = 64
"""Parameters whose numbers are looked into, the smallest first."""


class Updating:
    """Of one comparison."""

    def __init__(self, reference: Dump, port: Dump, training: Training) -> None:
        self._dumps = reference, port
        self._training = training
        self._ports = training.ports
        self._trials = [facts for kind, facts in port.findings if kind == TRIAL and facts.get("layer") == UPDATES]

    def explained(self, origin: Origin) -> Origin:
        """The origin with its causes, the likeliest first, those that were run before the others."""
        rules = {
            "data": self._of_data,
            "loss": self._of_loss,
            "update": self._of_update,
            "clip": self._of_treatment,
        }
        found = [*rules[origin.where](origin)]
        causes = [self._cause(suspect) for suspect in found]
        told = tuple(sorted(causes, key=lambda cause: not cause.confirmed)[:MOST])
        return replace(origin, causes=told, of=max(len(self._training.settings(side, origin.step)) for side in (0, 1)))

    def _cause(self, suspect: Suspect) -> Cause:
        change = dict(suspect.change)
        trials = [trial for trial in self._trials if change and trial.get("change") == change]
        trial = next((one for one in trials if one.get("proved") is True), trials[0] if trials else {})
        before, after = (_number(trial.get(name)) for name in ("before", "after"))
        proved = trial.get("proved") is True
        return Cause(suspect.cause, proved, suspect.facts, before, after, suspect.change, after is not None)

    def _of_data(self, origin: Origin) -> Iterator[Suspect]:
        """Another order, other numbers of the same, or rows of another batch."""
        key = origin.measured
        if key is None:
            return
        theirs = self._value(1, key)
        steps = [step for step in self._dumps[0].steps if self._dumps[0].find(key._replace(step=step)) is not None]
        known = {step: value for step in steps if (value := self._value(0, key._replace(step=step))) is not None}
        if theirs is not None:
            yield from batches.suspects(theirs, known, key.step)

    def _of_loss(self, origin: Origin) -> Iterator[Suspect]:
        """What the gradients at the scores tell of the losses."""
        times = self._training.scale(origin.step)
        for slot in sorted(
            {e.key.slot for e in self._dumps[0].entries if e.key[:4] == (origin.step, Phase.BACKWARD, "", 0)}
        ):
            key = Key(origin.step, Phase.BACKWARD, "", 0, slot)
            made = self._value(0, key._replace(phase=Phase.FORWARD))
            both = self._value(0, key), self._value(1, key)
            found = [] if made is None else [*scores.suspects(made, *both, times)]
            if found:
                yield from found
                return

    def _of_update(self, origin: Origin) -> Iterator[Suspect]:
        ours, theirs = (
            {owner: told for owner, (_, told) in self._training.settings(side, origin.step).items()} for side in (0, 1)
        )
        updates = [self._training.of_step(side, origin.step)[:1] for side in (0, 1)]
        skipped = self._training.skipped(origin.step)
        if skipped is not None:
            yield Suspect(("update-not-skipped", "update-skipped")[skipped], {}, weight=0.95)
            return
        yield from self._missing(ours, theirs)
        if all(updates) and updates[0][0].kind != updates[1][0].kind:
            (ours_by, *_), (by, *_) = updates
            facts = {"port_kind": by.kind, "port_type": by.type, "reference_kind": ours_by.kind}
            yield Suspect("optimizer-kind", facts, {"kind": ours_by.kind}, weight=0.95)
        different = differences(ours, theirs, origin.owners)
        names = self._names()
        for one in different:
            yield one.suspect(len(ours), names, self._is_filtered(one, origin.step))
        if not different:
            yield from self._term(origin, len(ours))

    def _missing(self, ours: Mapping[Owner, Any], theirs: Mapping[Owner, Any]) -> Iterator[Suspect]:
        """Parameters that one side's optimizers alone have."""
        names = self._names()
        for cause, wanted, those in (
            ("parameter-not-optimized", True, [owner for owner in ours if owner not in theirs]),
            ("frozen-params-trained", False, [owner for owner in theirs if owner not in ours]),
        ):
            if those:
                shown = ", ".join(names.get(owner, _plain(owner)) for owner in those[:3])
                more = ", ..." if len(those) > len(shown.split(", ")) else ""
                facts: dict[str, Any] = {"count": len(those), "parameters": shown + more}
                yield Suspect(cause, facts, {OPTIMIZED: wanted}, weight=0.95)

    def _is_filtered(self, one: Difference, step: int) -> bool:
        """Whether MindSpore's own rule leaves these out: ungrouped, they are called gamma or beta."""
        if one.setting != "weight_decay" or one.port != 0.0:
            return False
        names = self._names()
        mindspore = any(update.type.startswith("mindspore.nn.") for update in self._training.of_step(1, step))
        return mindspore and all(any(word in names.get(o, "") for word in ("gamma", "beta")) for o in one.owners)

    def _names(self) -> Mapping[Owner, str]:
        """The port's own names, by the reference's parameter."""
        rows = self._dumps[1].header.get("parameters")
        known = {(str(row[0]), str(row[1])): str(row[2]) for row in rows or () if len(row) > 2}
        return {owner: known.get(port, _plain(port)) for owner, port in self._ports.items()}

    def _term(self, origin: Origin, total: int) -> Iterator[Suspect]:
        """What is too much, as a multiple of the parameter, of its gradient or of what is kept of it."""
        found = []
        for owner in origin.owners[:LOOKED]:
            after = self._both(origin.step, Phase.UPDATE, owner)
            before = self._before(0, origin.step, owner)
            if after is None or before is None:
                return
            parts = {"weight": before}
            gradient = self._value(0, Key(origin.step, Phase.GRADIENT, owner[0], 0, owner[1]))
            parts.update({} if gradient is None else {"gradient": gradient})
            kept = self._before(0, origin.step, owner, ".momentum")
            parts.update({} if kept is None else {"momentum": kept})
            if (after[1] != after[0]).any():
                found.append(numbers.term(after[1] - after[0], parts))
        known = [one for one in found if one is not None]
        if known and len(known) == len(found) and len({one.of for one in known}) == 1:
            middle = sorted(one.factor for one in known)[len(known) // 2]
            if all(abs(one.factor - middle) <= 0.01 * abs(middle) for one in known):
                left = max(one.left for one in known)
                facts = {"factor": f"{middle:.6g}", "term": known[0].of, "left": f"{left:.1e}"}
                yield Suspect("update-term", {**facts, "count": len(known), "total": total}, weight=0.6)

    def _of_treatment(self, origin: Origin) -> Iterator[Suspect]:
        """How the port's gradients follow from those of the backward runs, and the reference's from the same."""
        owners = origin.owners[:LOOKED]
        found = [(owner, row) for owner in owners if (row := self._gradients(origin.step, owner)) is not None]
        rows = [row for _, row in found]
        if not rows:
            return
        times = self._training.scale(origin.step)
        sums = [sum(raw[1:], raw[0]) for raw, *_ in rows]
        large = numbers.telling(sums)
        rows = [row for row, tells in zip(rows, large) if tells]
        sums = [one for one, tells in zip(sums, large) if tells]
        raws, wanted, given = zip(*rows)
        port = numbers.treatment([one * times for one in sums], given)
        reference = numbers.treatment(sums, wanted)
        batches = len(raws[0])
        if port.factor is not None:
            yield from self._one_factor(port.factor, reference.factor, batches, (sums, wanted, given), origin)
            return
        for which in range(batches if batches > 1 else 0):
            alone = numbers.treatment([raw[which] for raw in raws], given).factor
            if alone is not None:
                yield Suspect("gradients-of-some-batches", {"which": which + 1, "batches": batches}, weight=0.9)
                return
        kept = self._not_zeroed(origin.step, [owner for (owner, _), tells in zip(found, large) if tells], sums, given)
        if kept:
            yield Suspect("gradients-not-zeroed", {"steps": kept}, weight=0.95)
            return
        factors = numbers.shares(raws, given) if 1 < batches <= BATCHES else None
        if factors is not None:
            yield Suspect("clip-per-batch", {"factors": ", ".join(f"{one:.4g}" for one in factors)}, weight=0.9)
            return
        crossed = numbers.crossed([row[1] for row in rows], [row[2] for row in rows])
        if crossed:
            names = self._names()
            those = [owner for (owner, _), tells in zip(found, large) if tells]
            shown = ", ".join(names.get(those[at], _plain(those[at])) for at in crossed[:3])
            yield Suspect("gradients-crossed", {"parameters": shown}, weight=0.95)
        elif port.bound is not None:
            yield Suspect("clip-value-vs-norm", {"bound": f"{port.bound:g}"}, weight=0.9)
        elif all(factor is not None for factor in port.factors):
            known = [factor for factor in port.factors if factor is not None]
            facts = {"least": f"{min(known):.3g}", "most": f"{max(known):.3g}"}
            yield Suspect("clip-per-tensor-vs-global", facts, weight=0.9)

    def _not_zeroed(self, step: int, owners: Sequence[Owner], sums: Sequence[Floats], given: Sequence[Floats]) -> int:
        """How many earlier steps' gradients are in those of this step, if they are."""
        whole = [*sums]
        for back in range(1, min(step, EARLIER) + 1):
            before = [self._gradients(step - back, owner) for owner in owners]
            known = [one[0] for one in before if one is not None]
            if len(known) < len(owners):
                return 0
            whole = [one + sum(raws[1:], raws[0]) for one, raws in zip(whole, known)]
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
    ) -> Iterator[Suspect]:
        """All gradients are one multiple of the backward runs'."""
        raw, ours, theirs = (numbers.norm(one) for one in values)
        times = theirs / ours
        facts: dict[str, Any] = {"factor": f"{times:.6g}"}
        scale = self._training.scale(origin.step, 1)
        if batches > 1 and (_near(times, batches) or _near(times, 1 / batches)):
            yield Suspect("grad-accumulation-mean-vs-sum", {**facts, "batches": batches}, weight=0.9)
        elif scale != 1.0 and _near(factor, 1.0):
            yield Suspect("loss-scale-not-removed", {**facts, "scale": f"{scale:g}"}, weight=0.95)
        elif _near(factor, 1.0) and (wanted is None or not _near(wanted, 1.0)):
            yield Suspect("gradients-untreated", {"norm": f"{theirs:.6g}", "wanted": f"{ours:.6g}"}, weight=0.9)
        elif (inside := _power(ours / theirs)) is not None:  # a loss scale inside of both losses
            facts.update(norm=f"{ours:.6g}", scale=f"{inside:g}")
            yield Suspect("loss-scale-clip-before-unscale", facts, weight=0.8)
        elif scale != 1.0 and _near(theirs * scale, _round(theirs * scale)):
            norm = f"{_round(theirs * scale):g}"
            yield Suspect("loss-scale-clip-before-unscale", {**facts, "norm": norm, "scale": f"{scale:g}"}, weight=0.8)
        elif _near(theirs, _round(theirs)) or _near(ours, _round(ours)):
            norms = {"norm": f"{theirs:.6g}", "wanted": f"{ours:.6g}", "raw": f"{raw:.6g}"}
            yield Suspect("clip-global-norm", norms, weight=0.8)
        else:
            yield Suspect("gradient-scaled", facts, weight=0.7)

    def _gradients(self, step: int, owner: Owner) -> Optional[tuple[list[Floats], Floats, Floats]]:
        """What the reference's backward runs made for a parameter, and what both optimizers are given."""
        given = self._both(step, Phase.GRADIENT, owner)
        raws: list[Floats] = []
        while (raw := self._value(0, Key(step, Phase.BACKWARD, owner[0], len(raws), owner[1]))) is not None:
            raws.append(raw)
        return None if given is None or not raws else (raws, *given)

    def _both(self, step: int, phase: Phase, owner: Owner) -> Optional[tuple[Floats, Floats]]:
        other = self._ports.get(owner, owner)
        one = self._value(0, Key(step, phase, owner[0], 0, owner[1]))
        two = self._value(1, Key(step, phase, other[0], 0, other[1]))
        return None if one is None or two is None or one.shape != two.shape else (one, two)

    def _before(self, side: int, step: int, owner: Owner, word: str = "") -> Optional[Floats]:
        """A parameter, or what is kept of it, as a step begins."""
        key = Key(step, Phase.UPDATE, owner[0], 0, f"{owner[1]}{word}")
        return _floats(as_it_begins(self._dumps[side], key, bool(word)))

    def _value(self, side: int, key: Key) -> Optional[Floats]:
        return _floats(self._dumps[side].find(key))


def _floats(entry: Optional[Entry]) -> Optional[Floats]:
    return None if entry is None else np.asarray(entry.load(), np.float64)


def _plain(owner: Owner) -> str:
    return ".".join(owner).lstrip(".")


def _power(ratio: float) -> Optional[float]:
    """The power of two that it is, of those that are loss scales."""
    power = 2.0 ** round(np.log2(ratio)) if ratio > 0 else 0.0
    return power if power >= SCALE and _near(ratio, power) else None


def _near(one: float, other: float) -> bool:
    return abs(one - other) <= numbers.ALIKE * abs(other)


def _round(value: float) -> float:
    """The nearest number that somebody would write: two figures."""
    return float(f"{value:.1e}") if value else 0.0


def _number(value: Any) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
