"""The report for terminals and logs: the answer first, then why, then what was compared and what to type next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional, TextIO

from aligner.compare.moved import UNJUDGED
from aligner.compare.verdict import Comparison, Outcome, Verdict
from aligner.record import Phase, display
from aligner.report import lines
from aligner.report.answer import shapes, unbroken
from aligner.report.casts import cast_lines
from aligner.report.causes import unproved
from aligner.report.cautions import warning_lines
from aligner.report.compared import compared_lines, unmatched_lines
from aligner.report.families import families
from aligner.report.figures import figure
from aligner.report.origins import origin_lines
from aligner.report.step_table import step_lines
from aligner.report.terminal import Terminal
from aligner.report.words import say

STYLES = {
    "aligned": ("green",),
    "rounding": ("cyan",),
    "origin": ("bold", "red"),
    "inherited": ("yellow",),
    "nonfinite": ("bold", "magenta"),
    "unmatched": ("yellow",),
    "incomparable": ("red",),
    "diverged": ("bold", "red"),
}
ORIGINS_SHOWN = 5


def write(comparison: Comparison, out: TextIO, terminal: Terminal, limit: Optional[int] = 20) -> None:
    """Write the whole report; `limit` rows in each list, None for all."""
    for line in report_lines(comparison, terminal, limit):
        out.write(line + "\n")


def report_lines(comparison: Comparison, terminal: Terminal, limit: Optional[int] = 20) -> list[str]:
    """The report, line by line."""
    parts = [
        answer_lines(comparison, terminal),
        step_lines(comparison, terminal, limit),
        cast_lines(comparison, terminal, limit),
        *_origin_parts(comparison, terminal, limit),
        compared_lines(comparison, terminal, limit),
        unmatched_lines(comparison, terminal, limit),
        _table(comparison, terminal, limit),
        warning_lines(comparison, terminal, limit),
        _next(comparison, terminal),
    ]
    return [line for part in parts if part for line in (*part, "")][:-1]


def answer_lines(comparison: Comparison, terminal: Terminal) -> list[str]:
    """The outcome's word and the sentence, hung beside it."""
    word = say(comparison.outcome, terminal.language)
    indent = lines.width(word) + 2
    shown = lines.hang(word, unbroken(comparison, terminal.language), terminal.width, indent)
    shown[0] = terminal.paint(word, *STYLES.get(comparison.outcome, ())) + shown[0][len(word) :]
    return shown


def _origin_parts(comparison: Comparison, terminal: Terminal, limit: Optional[int]) -> Iterable[list[str]]:
    """A block for each mistake, however many places it was made in."""
    found = families(comparison.origins, comparison.specs)
    shown = found if limit is None else found[:ORIGINS_SHOWN]
    for number, family in enumerate(shown, 1):
        label = say("origin", terminal.language)
        if len(found) > 1:
            label = say("origins", terminal.language, number=number, count=len(found))
        yield origin_lines(family, comparison, label, terminal, limit)
    if len(shown) < len(found):
        yield [say("more-origins", terminal.language, count=len(found) - len(shown))]


def _table(comparison: Comparison, terminal: Terminal, limit: Optional[int]) -> list[str]:
    """The paired records that fail, in execution order; numbers and outcome are never cut, names from the left."""
    failing = [v for v in comparison.verdicts if v.outcome.fails and v.outcome is not Outcome.UNMATCHED]
    if not failing or (comparison.mixup is not None and comparison.mixup.void):
        return []
    language = terminal.language
    shown = failing[:limit]
    titles = [say(f"column-{name}", language) for name in ("order", "outcome", "error", "max", "layer")]
    rows = [_row(verdict, comparison, language) for verdict in shown]
    widths = [max(lines.width(row[i]) for row in (titles, *rows)) for i in range(4)]
    room = max(terminal.width - sum(widths) - 4 - 2, 12)
    table = [say("table", language), "  " + _line(titles, widths, room)]
    for row, verdict in zip(rows, shown):
        line = "  " + _line(row, widths, room)
        styled = terminal.paint(row[1], *STYLES.get(verdict.outcome.value, ()))
        table.append(line.replace(row[1], styled, 1))
        if verdict.deviation is None:
            table += lines.hang("", lines.printable(shapes(verdict, language)), terminal.width, 8)
    if len(shown) < len(failing):
        table.append("  " + say("more", language, count=len(failing) - len(shown)))
    return table


def _row(verdict: Verdict, comparison: Comparison, language: str) -> list[str]:
    side = verdict.reference or verdict.port
    place = f"{display(verdict.key.layer)} {verdict.key.slot}"
    if verdict.key.call:
        place += f" #{verdict.key.call}"
    if verdict.key.phase not in (Phase.FORWARD, Phase.PARAMETER):
        place += f" {say('phase-' + verdict.key.phase.value, language)}"
    return [
        str(side.order) if side is not None and verdict.key.phase is not Phase.PARAMETER else "-",
        say(f"outcome-{verdict.outcome.value}", language),
        figure(verdict.error, comparison.tolerance),
        figure(verdict.deviation.max_abs if verdict.deviation is not None else None),
        lines.printable(place),
    ]


def _line(row: list[str], widths: list[int], room: int) -> str:
    cells = [
        lines.pad(row[0], widths[0], right=True),
        lines.pad(row[1], widths[1]),
        lines.pad(row[2], widths[2], right=True),
        lines.pad(row[3], widths[3], right=True),
        lines.cut_left(row[4], room),
    ]
    return " ".join(cells).rstrip()


def _next(comparison: Comparison, terminal: Terminal) -> list[str]:
    """The command to type next, and the one that takes a layer out of its net where nothing tells why it is wrong."""
    commands = (("next", next_command(comparison)), ("repro", repro_command(comparison)))
    return [say(word, terminal.language, command=command) for word, command in commands if command]


def repro_command(comparison: Comparison) -> Optional[str]:
    """What writes a program that shows the error without the net, for each layer that is wrong for no proved reason."""
    paths = _paths(comparison)
    return f"aligner compare {paths} --repro repro" if paths and unproved(comparison) else None


def _paths(comparison: Comparison) -> Optional[str]:
    paths = [comparison.reference.get("path"), comparison.port.get("path")]
    return None if None in paths else " ".join(lines.shell_word(str(path)) for path in paths)


def next_command(comparison: Comparison) -> Optional[str]:
    """Look at the origin's layer, else at the first record that fails; a shell takes the command as it stands."""
    paths = [comparison.reference.get("path"), comparison.port.get("path")]
    wrong = (*comparison.origins, *comparison.suspects)
    if comparison.mixup is not None and comparison.mixup.message == "mixup-swapped" and None not in paths:
        return f"aligner compare {' '.join(lines.shell_word(str(path)) for path in reversed(paths))}"
    if comparison.first is None and comparison.outcome == "incomparable":
        return None
    if comparison.first is not None and comparison.first.reason in UNJUDGED:
        return None  # no layer is to be looked at
    if None in paths or (comparison.outcome == "aligned" and not wrong):
        return None
    layer = comparison.first.key.layer if comparison.first is not None else ""
    if comparison.first is None and comparison.stops:
        stop = comparison.stops[-1]
        layer = stop.layer if stop.side == "reference" else stop.partner or ""
    if wrong and wrong[0].where != "glue":  # of wrong code, the place it shows at says more
        layer = wrong[0].layer
    elif wrong and wrong[0].place is not None and comparison.first is None and wrong[0].place.key is not None:
        layer = wrong[0].place.key.layer
    reference, port = (lines.shell_word(str(path)) for path in paths)
    return f"aligner show {reference} {lines.shell_word(layer)} --against {port}"
