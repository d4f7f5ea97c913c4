"""Why an update, or what is made of gradients before it, is wrong: both optimizers' settings, and the numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.backing import Backing
from aligner.compare.by_program import ByProgram
from aligner.compare.cases import words_of
from aligner.compare.training import Owner, Training, Update, as_it_begins
from aligner.compare.treating import LOOKED, Treating, plain
from aligner.explain.phrase import phrase
from aligner.explain.suspect import Cause, Suspect
from aligner.findings import TRIAL
from aligner.record import Key, Phase, display
from aligner.training import batches, numbers, scores
from aligner.training.settings import OPTIMIZED, Difference, differences
from aligner.words.optimizers import KEPT as STATE_WORDS

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.compare.verdict import Origin
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

    Floats = npt.NDArray[np.float64]

LOST = "loss"
"""What is changed in the trial of a loss."""

DATA = "data"
"""What is changed where the port's own batches are undone what is told of them."""

SAME = 1e-5
"""Batches that are apart by less than this part are the same."""

UPDATES = "(update)"
"""Stands for the layer in the trials of updates."""

MOST = 5
"""Causes that are told."""

COUNTED = 1e-3
"""A factor of a loss is a share of rows if it is off by less than this part."""

NAMED = 3
"""Parameters that are named."""

BEGUN = 1e-3
"""What optimizers begin with is another number if it is off by more than this part of itself."""


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
            "program": ByProgram(self._dumps, self._ports, self._names()).suspects,
            "clip": Treating(self._dumps, self._training, self._names()).suspects,
        }
        rule = rules.get(origin.where)
        found = [] if rule is None else [*rule(origin)]
        if origin.where == "layer" and origin.phase == Phase.UPDATE.value:
            found = [*self._of_statistics(origin)]
        if not found and origin.phase == Phase.BACKWARD.value:
            found = [*self._backing().suspects(origin, self._training.scale(origin.step))]
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
        known, own = (
            {s: v for s in dump.steps if (v := self._value(side, key._replace(step=s))) is not None}
            for side, dump in enumerate(self._dumps)
        )
        theirs = own.get(key.step)
        for one in batches.suspects(theirs, known, key.step) if theirs is not None else ():
            wrong = [step for step in origin.steps if step in known] or [key.step]
            after = batches.undone(one.cause, own, known, wrong)
            change = {DATA: one.cause}
            if math.isfinite(after):  # the port's loader has made these very numbers
                facts = {"change": change, "before": origin.own_error, "after": after, "proved": after <= SAME}
                self._trials.append(facts)
            yield replace(one, change=change if math.isfinite(after) else {})

    def _of_statistics(self, origin: Origin) -> Iterator[Suspect]:
        """A layer that is called more often takes more batches into its running statistics."""
        ours, theirs = (
            sum((call.step, call.layer) == (origin.step, name) for call in dump.calls)
            for dump, name in zip(self._dumps, (origin.layer, origin.port_layer))
        )
        if ours != theirs:
            facts: dict[str, Any] = {"layer": display(origin.port_layer), "reference_value": ours, "port_value": theirs}
            yield Suspect("statistics-other-runs", facts, weight=0.8)

    def _of_loss(self, origin: Origin) -> Iterator[Suspect]:
        """What the gradients at the scores tell of the losses."""
        times = self._training.scale(origin.step)
        for key in self._training.ends(origin.step):
            made = self._value(0, key._replace(phase=Phase.FORWARD))
            both = self._value(0, key), self._value(1, key)
            found = [] if made is None else [*scores.suspects(made, *both, times)]
            if found:
                told = (replace(one, change={LOST: one.cause}) for one in found)
                yield from (self._counted(one, key) or self._part(one, key) or one for one in told)
                return

    def _part(self, one: Suspect, key: Key) -> Optional[Suspect]:
        """The layer whose output counts otherwise, where a loss is made of several."""
        first = self._dumps[0].find(key._replace(slot="output.1"))
        several = first is not None and self._dumps[0].find(key._replace(slot="output.0")) is not None
        if one.cause != "loss-factor" or not several:
            return None
        return replace(one, cause="loss-part-factor", facts={**one.facts, "layer": self._maker(key) or key.slot})

    def _maker(self, key: Key) -> str:
        """The layer that hands on what the net hands on there."""
        made = self._dumps[0].find(key._replace(phase=Phase.FORWARD))
        here = (e.key for e in self._dumps[0].entries if e.key.step == key.step and made and e.content == made.content)
        return next((one.layer for one in here if one.layer and one.slot.startswith("output.")), "")

    def _counted(self, one: Suspect, key: Key) -> Optional[Suspect]:
        """What the loss is divided by, where its factor tells that."""
        if one.cause != "loss-factor":
            return None
        given, factor = self._dumps[0].find(key), float(str(one.facts["factor"]))
        ours = None if given is None else self._value(0, key)
        if given is None or ours is None or not given.shape:
            return None
        rows = given.shape[0]
        by = self._divisor(key)
        if by is not None and abs(factor * by - rows) <= COUNTED * rows:
            return replace(one, cause="loss-batch-size-fixed", facts={**one.facts, "rows": rows, "by": by})
        counts = ours.reshape(rows, -1).any(axis=1), (ours.reshape(-1) != 0)
        for some in (each for each in counts if not each.all()):
            if abs(factor - float(some.mean())) <= COUNTED:
                facts = {"counted": int(some.sum()), "all": some.size}
                return replace(one, cause="loss-mean-over-all", facts={**one.facts, **facts})
        return None

    def _divisor(self, key: Key) -> Optional[int]:
        """The rows that the port divides by in all steps, where only steps with as many are right."""
        found: list[tuple[int, float]] = []
        for step in self._dumps[0].steps:
            ours, theirs = (self._value(side, key._replace(step=step)) for side in (0, 1))
            if ours is not None and theirs is not None and ours.shape == theirs.shape and ours.any():
                sizes = np.linalg.norm(theirs), np.linalg.norm(ours) * self._training.scale(step)
                found.append((len(ours), float(sizes[0] / sizes[1])))
        right = {rows for rows, factor in found if abs(factor - 1) <= COUNTED}
        by = next(iter(right)) if len(right) == 1 else 0
        told = by and any(rows != by for rows, _ in found)
        return by if told and all(abs(factor * by - rows) <= COUNTED * rows for rows, factor in found) else None

    def _of_update(self, origin: Origin) -> Iterator[Suspect]:
        ours, theirs = (
            {owner: told for owner, (_, told) in self._training.settings(side, origin.step).items()} for side in (0, 1)
        )
        updates = [self._training.of_step(side, origin.step) for side in (0, 1)]
        skipped = self._training.skipped(origin.step)
        if skipped is not None:
            yield Suspect(("update-not-skipped", "update-skipped")[skipped], {}, weight=0.95)
            return
        cut = [*self._backing().unmoved(origin, self._without(updates))]
        if cut:
            yield from cut
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
        begins = [] if different else [*self._begins(origin, len(ours))]
        yield from begins
        if not different and not begins:
            yield from self._term(origin, len(ours))

    def _begins(self, origin: Origin, total: int) -> Iterator[Suspect]:
        """What optimizers keep of a parameter before the first update, where the two begin with other numbers."""
        for owner in origin.owners[:1]:
            other = self._ports.get(owner, owner)
            for word in STATE_WORDS:
                ours, theirs = (
                    self._value(side, Key(origin.step, Phase.GRADIENT, name[0], 0, f"{name[1]}.{word}"))
                    for side, name in enumerate((owner, other))
                )
                own, mine = (0.0 if one is None else float(np.mean(one)) for one in (ours, theirs))
                if not origin.step and abs(own - mine) > BEGUN * max(abs(own), abs(mine)):
                    facts: dict[str, Any] = {
                        "word": phrase(f"state-{word}"),
                        "count": len(origin.owners),
                        "total": total,
                    }
                    facts.update(reference_value=f"{own:.4g}", port_value=f"{mine:.4g}")
                    facts["parameters"] = self._named(origin.owners)
                    yield Suspect("optimizer-state-begins", facts, weight=0.9)

    def _backing(self) -> Backing:
        return Backing(self._dumps, words_of(self._dumps[1]), self._ports)

    def _without(self, updates: Sequence[Sequence[Update]]) -> tuple[frozenset[Owner], frozenset[Owner]]:
        """Parameters that the optimizers of each side have been given no gradient of."""
        whose = {port: reference for reference, port in self._ports.items()}
        ours, theirs = (frozenset(owner for one in side for owner in one.without) for side in updates)
        return ours, frozenset(whose.get(owner, owner) for owner in theirs)

    def _missing(self, ours: Mapping[Owner, Any], theirs: Mapping[Owner, Any]) -> Iterator[Suspect]:
        """Parameters that one side's optimizers alone have."""
        for cause, wanted, those in (
            ("parameter-not-optimized", True, [owner for owner in ours if owner not in theirs]),
            ("frozen-params-trained", False, [owner for owner in theirs if owner not in ours]),
        ):
            if those:
                facts: dict[str, Any] = {"count": len(those), "parameters": self._named(those)}
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
        return {owner: known.get(port, plain(port)) for owner, port in self._ports.items()}

    def _named(self, owners: Sequence[Owner]) -> str:
        """The first of some parameters, as the port calls them."""
        names = self._names()
        return ", ".join(names.get(one, plain(one)) for one in owners[:NAMED]) + (", ..." if owners[NAMED:] else "")

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


def _number(value: Any) -> Optional[float]:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None
