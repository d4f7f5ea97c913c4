"""The steps of a training, a row for each; those in which nothing is wrong are folded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Optional

from aligner.compare.step_rows import StepRow
from aligner.compare.verdict import Comparison
from aligner.record import display
from aligner.report import lines
from aligner.report.terminal import Terminal
from aligner.report.words import say

FOLDED = 3
"""So many steps in a row, or more, of which nothing is to be said become one line."""

DIGITS = 6


def step_lines(comparison: Comparison, terminal: Terminal, limit: Optional[int]) -> list[str]:
    """The table; nothing where there was no training, or one step that is right."""
    rows = comparison.steps
    if not rows or (len(rows) == 1 and not rows[0].wrong):
        return []
    language = terminal.language
    titles = [say(f"step-{name}", language) for name in ("number", "data", "loss", "norm", "rate", "first")]
    cells: list[list[str]] = []
    for run in _runs(rows):
        told = run if limit is None or len(run) < FOLDED else run[:1]
        cells += [_cells(row, comparison, language) for row in told]
        if len(told) < len(run):
            cells[-1][0] = f"{run[0].step}-{run[-1].step}"
            cells[-1][2:5] = [say("step-folded", language, count=len(run)), "", ""]
    shown = cells if limit is None else cells[:limit]
    widths = [max(lines.width(row[i]) for row in (titles, *shown)) for i in range(5)]
    table = [_line(row, widths, terminal.width) for row in (titles, *shown)]
    if len(shown) < len(cells):
        table.append("  " + say("more", language, count=len(cells) - len(shown)))
    return table


def _runs(rows: Sequence[StepRow]) -> list[list[StepRow]]:
    """Steps that follow each other and of which nothing is to be said stand together, others alone."""
    runs: list[list[StepRow]] = []
    for row in rows:
        quiet = row.first is None and not row.inherited and row.same_data is not False
        joins = quiet and runs and runs[-1][-1].first is None and not runs[-1][-1].inherited
        if joins and runs[-1][-1].same_data is not False and runs[-1][-1].rates == row.rates:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


def _cells(row: StepRow, comparison: Comparison, language: str) -> list[str]:
    data = "-" if row.same_data is None else say("step-same" if row.same_data else "step-other", language)
    rates = [
        say("step-skipped", language)
        if skipped
        else ", ".join(f"{rate:g}" for rate in side[:2]) + (", ..." if len(side) > 2 else "")
        for skipped, side in zip(row.skipped, row.rates)
    ]
    return [str(row.step), data, _two(*row.loss), _two(*row.norm), " | ".join(rates), _first(row, comparison, language)]


def _two(reference: Optional[float], port: Optional[float]) -> str:
    return " | ".join("-" if one is None else f"{one:.{DIGITS}g}" for one in (reference, port))


def _first(row: StepRow, comparison: Comparison, language: str) -> str:
    """What is wrong first in a step, in its origin's words."""
    if row.first is None:
        return say("step-inherited", language, count=row.inherited) if row.inherited else "-"
    origin = comparison.origins[row.origin] if row.origin is not None else None
    place = lines.printable(f"{display(row.first.layer)} {row.first.slot}")
    word = (
        origin.where
        if origin is not None and origin.where in ("data", "loss", "clip", "update")
        else row.first.phase.value
    )
    return say(f"step-at-{word}", language, place=place)


def _line(row: Sequence[str], widths: Sequence[int], columns: int) -> str:
    text = "  ".join(lines.pad(cell, width) for cell, width in zip(row, widths))
    room = max(columns - lines.width(text) - 4, 12)
    return f"  {text}  {lines.cut_left(row[5], room)}".rstrip()
