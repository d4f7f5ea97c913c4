"""Nets that stopped with an exception: what the answer says of them first, and what did not run because of that."""

from __future__ import annotations

import os

from aligner.compare.stop import Stop, together
from aligner.compare.verdict import Comparison, Outcome
from aligner.record import display
from aligner.report.lines import printable
from aligner.report.words import say

LONG = 110
"""Characters of an error's own words that stand in the answer; the document and the header have more."""


def stop_sentence(comparison: Comparison, language: str) -> str:
    """Which net stopped, in which layer, with which error and at which line; the port's first."""
    found = comparison.stops
    if together(found):
        reference, port = (_error(stop, language) for stop in found)
        place, step = _place(found[1]), _step(found[1], comparison, language)
        return say("answer-stopped-both", language, place=place, step=step, port=port, reference=reference)
    said = [
        say(
            "answer-stopped",
            language,
            side=say(stop.side, language),
            place=_place(stop),
            step=_step(stop, comparison, language),
            error=_error(stop, language),
        )
        for stop in reversed(found)
    ]
    return ("；" if language == "zh" else "; ").join(said)


def stopped_in(stop: Stop, language: str) -> str:
    """The same of one net, for a reader who looks at its dump alone."""
    return say("stopped-in", language, place=_place(stop), error=_error(stop, language))


def _place(stop: Stop) -> str:
    return printable(f"{display(stop.layer)} ({stop.kind})")


def _step(stop: Stop, comparison: Comparison, language: str) -> str:
    """Which step it was, where there is more than one."""
    several = stop.step or any(verdict.key.step for verdict in comparison.verdicts)
    return say("stopped-step", language, step=str(stop.step)) if several else ""


def _error(stop: Stop, language: str) -> str:
    if not stop.error:
        return say("stopped-caught", language)
    said = stop.said if len(stop.said) <= LONG else stop.said[: LONG - 3].rstrip() + "..."
    error = printable(f"{stop.error}: {said}" if said else stop.error)
    if not stop.file:
        return error
    line = printable(f"{os.path.basename(stop.file)}:{stop.line}" + (f" `{stop.text}`" if stop.text else ""))
    return say("stopped-late" if stop.late else "stopped-at", language, error=error, line=line)


def not_run(comparison: Comparison, language: str) -> list[str]:
    """What either side has only because it ran on, in one line for each."""
    lines = []
    for side, other in (("reference", "port"), ("port", "reference")):
        found = [v for v in comparison.verdicts if v.outcome is Outcome.NOT_RUN and getattr(v, side) is not None]
        if found:
            first = printable(display(found[0].key.layer))
            layers = len({verdict.key.layer for verdict in found})
            names = {"side": say(side, language), "stopped": say(other, language), "first": first}
            lines.append(say("not-run-count", language, count=len(found), layers=layers, **names))
    return lines
