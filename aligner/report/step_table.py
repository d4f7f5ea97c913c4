"""The steps of a training, a row for each; those in which nothing is wrong are folded.

What is wrong stands in the last column and is what the table is for. Where it has no room, numbers have fewer digits,
a column that is equal on both sides has one number, titles are set in two lines, equal columns are left out, and at
last what is wrong stands below its step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Optional

from aligner.compare.steps import LOST, StepRow
from aligner.compare.verdict import Comparison
from aligner.record import display
from aligner.report import lines
from aligner.report.terminal import Terminal
from aligner.report.words import say

FOLDED = 3
"""So many steps in a row, or more, of which nothing is to be said become one line."""

EQUAL = 4
"""Digits in which two numbers that are apart by more than the usual tolerance differ: not fewer are shown. In more of
them right sides differ by rounding."""

PLACE = 6
"""With fewer columns of a place that is wrong the stage alone is told."""


@dataclass(frozen=True)
class Layout:
    """How wide a table is made."""

    digits: int = 6
    joined: bool = False
    """One number, the reference's, where those of both sides are equal in EQUAL digits in all rows."""
    stacked: bool = False
    """Titles in two lines."""
    without: tuple[str, ...] = ()
    """Columns that are left out if they are equal on both sides."""
    below: bool = False
    """What is wrong stands in a line of its own."""
    room: int = 30
    """Columns that are enough for what is wrong: a layer's name may be of any length."""


LAYOUTS = (
    Layout(),
    Layout(5),
    Layout(6, True),
    Layout(5, True),
    Layout(EQUAL, True),
    Layout(EQUAL, True, True),
    Layout(EQUAL, True, True, ("rate",), room=22),
    Layout(EQUAL, True, True, ("rate", "data"), room=22),
    Layout(EQUAL, True, True, below=True),
)


@dataclass(frozen=True)
class Told:
    """What is said of one step, or of some in a row: text, pairs of numbers, and what is wrong by stage and place."""

    step: str
    data: str
    numbers: Sequence[tuple[object, object]]
    """Of loss, norm and rate the reference's and the port's; none of steps that are told as one."""
    stage: Optional[str]
    place: str
    words: str
    """In place of a stage."""


@dataclass(frozen=True)
class Column:
    """A title for each of its lines, and a cell for each step."""

    name: str
    titles: Sequence[str]
    cells: Sequence[str]
    equal: bool

    @property
    def width(self) -> int:
        """Of the widest cell."""
        return max(map(lines.width, (*self.titles, *self.cells)))


def step_lines(comparison: Comparison, terminal: Terminal, limit: Optional[int]) -> list[str]:
    """The table; nothing where there was no training, or one step that is right."""
    rows = comparison.steps
    if not rows or (len(rows) == 1 and not rows[0].wrong):
        return []
    language = terminal.language
    told: list[Told] = []
    for run in _runs(rows):
        whole = limit is None or len(run) < FOLDED
        told += [_told(row, language) for row in run] if whole else [_folded(run, language)]
    shown = told if limit is None else told[:limit]
    table = _table(shown, terminal.table_width, language)
    if len(shown) < len(told):
        table.append("  " + say("more", language, count=len(told) - len(shown)))
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


def _told(row: StepRow, language: str) -> Told:
    numbers = row.loss, row.norm, rates(row, language)
    return Told(str(row.step), data_word(row, language), numbers, row.stage, place(row), _words(row, language))


def _folded(run: Sequence[StepRow], language: str) -> Told:
    words = say("step-folded", language, count=len(run))
    return Told(f"{run[0].step}-{run[-1].step}", data_word(run[0], language), (), None, "", words)


def _words(row: StepRow, language: str) -> str:
    return say("step-inherited", language, count=row.inherited) if row.inherited else "-"


def rates(row: StepRow, language: str) -> tuple[object, object]:
    """Of both sides; a word where no update was made."""
    one, other = (say("step-skipped", language) if skipped else side for skipped, side in zip(row.skipped, row.rates))
    return one, other


def wrong(row: StepRow, language: str) -> str:
    """What is wrong first in a step, by stage and place, or that it comes of what is before."""
    return _words(row, language) if row.stage is None else say(f"step-at-{row.stage}", language, place=place(row))


def data_word(row: StepRow, language: str) -> str:
    """Whether both sides' own batches are the same."""
    return "-" if row.same_data is None else say("step-same" if row.same_data else "step-other", language)


def place(row: StepRow) -> str:
    """Layer and slot of what is wrong first in a step; of the loss nothing, it has a stage of its own."""
    if row.first is None or row.stage == "loss":
        return ""
    if row.stage in LOST and not row.first.layer:
        return lines.printable(row.first.slot)  # of the whole training, a loss scale say
    return lines.printable(f"{display(row.first.layer)} {row.first.slot}")


def number(value: object, digits: int = 6) -> str:
    """A number, some of them, or words, as the table has them."""
    if isinstance(value, tuple):
        return ", ".join(f"{one:.{digits}g}" for one in value[:2]) + (", ..." if len(value) > 2 else "")
    return f"{value:.{digits}g}" if isinstance(value, float) else "-" if value is None else str(value)


def _table(told: Sequence[Told], width: int, language: str) -> list[str]:
    """By the first layout in which what is wrong has room."""
    title = say("step-first", language)
    longest = max(lines.width(title), *(lines.width(_wrong(one, width, language)) for one in told))
    for layout in LAYOUTS:
        columns = _columns(told, layout, language)
        kept = [one for one in columns if not (one.equal and one.name in layout.without)]
        left = width - sum(one.width + 2 for one in kept) - 2
        if layout.below or left >= min(longest, layout.room):
            break
    table = _titles(kept, title, layout.below)
    for index, one in enumerate(told):
        row = "  ".join(lines.pad(column.cells[index], column.width) for column in kept)
        if not layout.below:
            table.append(f"  {row}  {_wrong(one, left, language)}".rstrip())
            continue
        table.append(f"  {row}".rstrip())
        table += [f"        {_wrong(one, width - 8, language)}"] if one.stage or one.words != "-" else []
    gone = [" ".join(one.titles).strip() for one in columns if one not in kept]
    note = say("step-left-out", language, names=", ".join(gone)) if gone else ""
    return table + [f"  {row}" for row in lines.wrap(note, width - 2)]


def _columns(told: Sequence[Told], layout: Layout, language: str) -> list[Column]:
    same = say("step-same", language)
    found = [Column("step", [say("step-number", language)], [one.step for one in told], False)]
    equal = all(one.data == same for one in told)
    found.append(Column("data", [say("step-data", language)], [one.data for one in told], equal))
    for index, name in enumerate(("loss", "norm", "rate")):
        pairs = [one.numbers[index] if one.numbers else None for one in told]
        equal = layout.joined and all(
            pair is None or len({number(side, EQUAL) for side in pair}) == 1 for pair in pairs
        )
        shown = [[] if pair is None else [number(side, layout.digits) for side in pair] for pair in pairs]
        cells = [" | ".join(sides[:1] if equal else sides) for sides in shown]
        titles = [say(f"step-{name}", language)] + ([] if equal else [say("step-sides", language)])
        found.append(Column(name, titles if layout.stacked else [" ".join(titles)], cells, equal))
    return found


def _titles(columns: Sequence[Column], last: str, below: bool) -> list[str]:
    """One line, or two; what is wrong stands behind, or below what it is told of."""
    rows = [list(row) for row in zip_longest(*(column.titles for column in columns), fillvalue="")]
    text = ["  " + "  ".join(lines.pad(cell, one.width) for cell, one in zip(row, columns)) for row in rows]
    if below:
        return [*(row.rstrip() for row in text), f"        {last}"]
    return [f"{text[0]}  {last}", *(row.rstrip() for row in text[1:])]


def _wrong(one: Told, room: int, language: str) -> str:
    """Stage and place in so many columns: the place is cut, never the stage."""
    if one.stage is None:
        return one.words
    named = say(f"step-at-{one.stage}", language, place=one.place)
    if lines.width(named) <= room:
        return named
    stage = say(f"step-at-{one.stage}", language, place="")
    left = room - lines.width(stage)
    return stage + lines.cut_left(one.place, left) if left >= PLACE else stage.rstrip(" :：")
