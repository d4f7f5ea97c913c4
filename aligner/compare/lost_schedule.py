"""Of what a resumed run has lost: the position in its schedule, and the loss scale."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.lost import BACKWARD, RATE, SCALE, UPDATE, Lost, Resumed, floats, no_record
from aligner.compare.training import Owner, Training
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect
from aligner.record import Key, Phase
from aligner.training.settings import differences, told

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

ONE = 1e-3
"""Gradients are one multiple of others if they are off from it by no more than this part."""


def counts(run: Resumed) -> tuple[int, int]:
    """Updates that the resumed run's optimizer had made as it began, and the whole one's."""
    ours, theirs = (next(iter(run.training.of_step(side, 0)), None) for side in (0, 1))
    return (0, 0) if ours is None or theirs is None else (theirs.count, ours.count)


def settings(run: Resumed, known: Collection[str]) -> Iterator[Lost]:
    """A learning rate, or another setting, that is not what the schedule of the whole run makes it in this step.

    `known` have been told.
    """
    made, wanted = counts(run)
    for step, setting, ours, theirs, owners in different(run):
        if setting in known or (run.words == "mindspore" and made != wanted):
            continue  # MindSpore's schedules go by the optimizer's counter
        cause = "resume-learning-rate" if setting == RATE else "resume-setting"
        facts: dict[str, Fact] = {
            "step": step + run.begun.step,
            "reference_value": told(ours),
            "port_value": told(theirs),
        }
        facts.update(setting=setting, how=_when(run, setting, theirs), fix=run.fix("schedule"))
        yield Lost(Suspect(cause, facts), "schedule", step, UPDATE, no_record(step, setting), owners=owners)


def rate_of_optimizer(run: Resumed) -> list[str]:
    """Whether the rate is another one from the first step on, and moves on as the whole run's.

    torch's schedules make each rate of the one before, which stands in the optimizer's groups and is lost with its
    state. MindSpore's go by the optimizer's counter.
    """
    rates = [[_rates(run, side, step) for step in range(run.begun.steps)] for side in (0, 1)]
    if not all(one and all(one) for one in rates) or rates[0][0] == rates[1][0]:
        return []
    if run.words == "mindspore":
        return [RATE]
    times = [np.array(theirs) / np.array(ours) for ours, theirs in zip(*rates) if len(ours) == len(theirs)]
    moves = len(times) == run.begun.steps and all(np.allclose(one, times[0], rtol=1e-6) for one in times)
    return [RATE] if moves else []


def _rates(run: Resumed, side: int, step: int) -> list[float]:
    told = [settings.get(RATE) for _, settings in run.training.settings(side, step).values()]
    return [float(one) for one in told if isinstance(one, (int, float)) and one]


def different(run: Resumed) -> list[tuple[int, str, Any, Any, tuple[Owner, ...]]]:
    """The settings that differ in some step: the first step, both values, of which parameters."""
    found: dict[str, tuple[int, str, Any, Any, tuple[Owner, ...]]] = {}
    for step in range(run.begun.steps):
        sides = ({o: told for o, (_, told) in run.training.settings(side, step).items()} for side in (0, 1))
        ours, theirs = sides
        for one in differences(ours, theirs, ours):
            found.setdefault(one.setting, (step, one.setting, one.reference, one.port, one.owners))
    return list(found.values())


def _when(run: Resumed, setting: str, value: Any) -> Fact:
    """In which step of the whole run this setting has that value."""
    if not isinstance(value, (int, float)):
        return phrase("value-of-no-step")
    whole = Training(run.whole, run.whole)
    for step in run.states.steps:
        values = [settings.get(setting) for _, settings in whole.settings(0, step).values()]
        if any(isinstance(one, (int, float)) and math.isclose(one, value, rel_tol=1e-6) for one in values):
            return phrase("value-of-step", step) if step else phrase("value-of-the-beginning")
    return phrase("value-of-no-step")


def scale(run: Resumed) -> Iterator[Lost]:
    """Another loss scale, in the first step or where it would have grown."""
    for step in range(run.begun.steps):
        if _times(run, step) != 1.0:
            ours, theirs = (_scaled(dump, run, step, side) for side, dump in enumerate((run.reference, run.port)))
            facts: dict[str, Fact] = {"step": step + run.begun.step, "wanted": ours, "scale": theirs}
            cause = "resume-scale-growth" if step else "resume-loss-scale"
            yield Lost(
                Suspect(cause, {**facts, "fix": run.fix("scaler")}), "state", step, BACKWARD, no_record(step, SCALE)
            )
            return


def _times(run: Resumed, step: int) -> float:
    """How many times the whole run's loss is what the resumed one's is multiplied by: all that comes back to what the
    net has handed on is this multiple, of equal values."""
    key = Key(step, Phase.BACKWARD, next(iter(run.roots), ""), 0, "output.0")
    ours, theirs = (dump.find(key) for dump in (run.reference, run.port))
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return run.training.scale(step)
    one, other = floats(ours), floats(theirs)
    size = float(np.vdot(one, one))
    times = float(np.vdot(one, other)) / size if size else 1.0
    alike = (
        math.isfinite(times)
        and times > 0
        and float(np.linalg.norm(other - times * one)) <= ONE * math.sqrt(size) * times
    )
    return times if alike and abs(times - 1) > ONE else 1.0


def _scaled(dump: Dump, run: Resumed, step: int, side: int) -> str:
    """How many times what an optimizer gets the gradients of the backward runs are."""
    for owner in run.training.settings(side, step):
        layer, role = owner if not side else run.training.ports.get(owner, owner)
        given = dump.find(Key(step, Phase.GRADIENT, layer, 0, role))
        raw = _summed(dump, Key(step, Phase.BACKWARD, layer, 0, role))
        size = 0.0 if given is None else float(np.linalg.norm(floats(given)))
        if size and raw is not None:
            return f"{float(np.linalg.norm(raw)) / size:.6g}"
    return "?"


def _summed(dump: Dump, key: Key) -> Optional[Any]:
    total, number = None, 0
    while (entry := dump.find(key._replace(call=number))) is not None:
        total = floats(entry) if total is None else total + floats(entry)
        number += 1
    return total
