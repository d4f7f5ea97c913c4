"""`aligner capture --estimate`: what a dump would hold, and of a training how long its steps would take."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Optional

from aligner import messages
from aligner.capture.progress import size

if TYPE_CHECKING:
    from aligner.capture.tally import Tally

MEASURED = 2
"""Steps of a training that are run for an estimate: the first has what is made once, and those behind it are alike."""


def to_measure(steps: int, trains: bool) -> int:
    """How many of the wanted steps are run: of a training the first ones tell of the rest."""
    return min(steps, MEASURED) if trains else steps


def tell_estimate(
    tally: Tally, model: str, steps: int, done: Optional[int], trains: bool, options: argparse.Namespace
) -> None:
    """Print what the measured steps come to; `done` of them were run where that is not a training."""
    from aligner.capture.factory import free_space

    facts: dict[str, object] = {"model": model, "free": size(free_space(options.output or "."))}
    if not trains:
        facts.update(steps=done, records=tally.records, size=size(tally.bytes_written))
        print(messages.text("estimate", options.lang, facts))
        return
    found = tally.estimate(steps)
    facts.update(steps=found.steps, measured=found.measured, records=found.records, size=size(found.bytes))
    facts.update({name: size(getattr(found, name)) for name in ("weights", "step", "forward", "backward", "update")})
    print(messages.text("estimate-training", options.lang, {**facts, "time": _time(found.seconds)}))
    if options.reference and not options.free_only:
        print(messages.text("estimate-forced", options.lang, {}))


def _time(seconds: float) -> str:
    """As a clock has it, in hours, minutes and seconds; in the same form in every language."""
    whole = max(round(seconds), 1)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
