"""What a notebook shows of the steps of a training: a table, and both sides' losses and norms drawn."""

from __future__ import annotations

from collections.abc import Sequence

from aligner import messages
from aligner.compare.steps import StepRow
from aligner.notebook.markup import badge, block, line, quiet, table, text
from aligner.notebook.step_curve import step_curve
from aligner.report.step_table import data_word, number, rates, wrong
from aligner.report.words import say

ROWS = 20
AROUND = 2
"""Steps that are shown before the first one in which something is wrong."""


def steps_html(rows: Sequence[StepRow]) -> str:
    """The drawing of all steps, and a row for each of those that tell the most."""
    language = messages.language()
    if not rows:
        return block(line(text(say("step-none", language))))
    return block(step_curve(rows, language), *_table(rows, language))


def _table(rows: Sequence[StepRow], language: str) -> list[str]:
    """At most ROWS steps, from a little before the first that is wrong."""
    wrong_at = next((at for at, row in enumerate(rows) if row.first is not None), 0)
    start = max(0, min(wrong_at - AROUND, len(rows) - ROWS))
    shown = rows[start : start + ROWS]
    names = [say(f"step-{name}", language) for name in ("loss", "norm", "rate")]
    sides = [say(side, language) for side in ("reference", "port")]
    titles = [say("step-number", language), say("step-data", language), say("step-first", language)]
    titles += [f"{name}, {side}" for name in names for side in sides]
    parts = [table(titles, [_row(row, language) for row in shown], left=3)]
    if len(shown) < len(rows):
        parts.append(quiet(text(say("rows-more", language, count=len(rows) - len(shown)))))
    return parts


def _row(row: StepRow, language: str) -> list[str]:
    said = wrong(row, language)
    tint = "origin" if row.first is not None else "inherited" if row.inherited else ""
    pairs = (row.loss, row.norm, rates(row, language))
    numbers = [text(number(side)) for pair in pairs for side in pair]
    return [str(row.step), text(data_word(row, language)), badge(said, tint) if tint else text(said), *numbers]
