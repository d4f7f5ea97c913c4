"""The steps of a training side by side: data, loss, norm of the gradients, rate, and what is wrong first."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Optional

from aligner.compare.sorting import is_given
from aligner.compare.steps import STAGES, StepRow, Steps, Two
from aligner.compare.training import Training
from aligner.compare.verdict import Origin, Outcome, Verdict
from aligner.record import Key, Phase
from aligner.words.training import LOSS

if TYPE_CHECKING:
    from aligner.dump.reader import Dump


def step_rows(
    dumps: tuple[Dump, Dump],
    training: Training,
    verdicts: Sequence[Verdict],
    roots: frozenset[str],
    origins: Sequence[Origin],
) -> Steps:
    """The steps that both sides have, with those whose update was skipped; none where nothing is trained."""
    steps = [{*training.steps(side)} for side in (0, 1)]
    by_step: dict[int, list[Verdict]] = {}
    for verdict in verdicts:
        by_step.setdefault(verdict.key.step, []).append(verdict)
    shared = sorted(steps[0] & steps[1])
    return Steps(_row(step, dumps, training, by_step.get(step, ()), roots, origins) for step in shared)


def _row(
    step: int,
    dumps: tuple[Dump, Dump],
    training: Training,
    verdicts: Sequence[Verdict],
    roots: frozenset[str],
    origins: Sequence[Origin],
) -> StepRow:
    wrong = [
        v
        for v in verdicts
        if v.outcome is Outcome.ORIGIN
        or (v.outcome is Outcome.NONFINITE and v.fails)
        or (v.outcome in (Outcome.UNMATCHED, Outcome.INCOMPARABLE) and v.origin is not None)
    ]
    given = [v for v in verdicts if is_given(v.key, roots) and v.reference is not None and v.port is not None]
    settings = [[told for _, told in training.settings(side, step).values()] for side in (0, 1)]
    rates = [tuple(sorted({_number(told.get("lr")) for told in one})) for one in settings]
    return StepRow(
        step,
        all(not v.outcome.fails for v in given) if given else None,
        _two(training.loss(side, step) if step in training.joined else _loss(dumps[side], step) for side in (0, 1)),
        _two(training.norm(side, step) for side in (0, 1)),
        (rates[0], rates[1]),
        (not training.of_step(0, step), not training.of_step(1, step)),
        wrong[0].key if wrong else None,
        wrong[0].origin if wrong else None,
        _stage(wrong[0], origins) if wrong else None,
        len(wrong),
        sum(v.outcome is Outcome.INHERITED for v in verdicts),
    )


def _stage(wrong: Verdict, origins: Sequence[Origin]) -> str:
    where = origins[wrong.origin].where if wrong.origin is not None else ""
    phase: str = wrong.key.phase.value
    right = where == "loss" and wrong.key.phase is Phase.BACKWARD  # the loss itself
    return where if where in STAGES and not right else phase


def _two(values: Iterable[Optional[float]]) -> Two:
    one, other = values
    return one, other


def _loss(dump: Dump, step: int) -> Optional[float]:
    """The mean of the losses of a step."""
    found: list[float] = []
    while (entry := dump.find(Key(step, Phase.FORWARD, LOSS, len(found), "output.0"))) is not None:
        if math.prod(entry.shape) != 1:
            return None
        found.append(float(entry.load().reshape(-1)[0]))
    return sum(found) / len(found) if found else None


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else math.nan
