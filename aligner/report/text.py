"""The report for terminals and logs: the answer first, then why, then what was compared and what to type next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Optional, TextIO

from aligner.compare.verdict import Comparison, Outcome, Side, Verdict
from aligner.record import Phase, display
from aligner.report import lines
from aligner.report.casts import cast_lines
from aligner.report.causes import unproved
from aligner.report.cautions import warning_lines
from aligner.report.compared import compared_lines, unmatched_lines
from aligner.report.families import families
from aligner.report.figures import exact, figure
from aligner.report.origins import origin_lines
from aligner.report.terminal import Terminal
from aligner.report.words import say, told

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
        cast_lines(comparison, terminal, limit),
        *_origin_parts(comparison, terminal, limit),
        compared_lines(comparison, terminal, limit),
        unmatched_lines(comparison, terminal, limit),
        _table(comparison, terminal, limit),
        warning_lines(comparison, terminal, limit),
        _next(comparison, terminal),
    ]
    return [line for part in parts if part for line in (*part, "")][:-1]


def answer(comparison: Comparison, language: str) -> str:
    """The one sentence: which layer is the first that differs, and by how much."""
    return _answer(comparison, language).replace(lines.NO_BREAK, " ")


def _answer(comparison: Comparison, language: str) -> str:
    """The same with no-break spaces between words that belong together on a line."""
    tolerance = exact(comparison.tolerance)
    both = [v for v in comparison.verdicts if v.reference is not None and v.port is not None]
    pairs = [v for v in both if v.outcome is not Outcome.COVERED]
    if comparison.outcome == "aligned":
        return _aligned(comparison, pairs, language)
    first = comparison.first
    wrong_input = next((origin for origin in comparison.origins if origin.where == "inputs"), None)
    if wrong_input is not None:
        return say("answer-input", language, slot=lines.printable(wrong_input.slot)) + _sizes(
            first, comparison, language
        )
    if first is None or first.outcome is Outcome.UNMATCHED:
        count = comparison.counts.get("unmatched", 0)
        if not count:
            return say("answer-nothing", language)
        alone = first or next(v for v in comparison.verdicts if v.outcome is Outcome.UNMATCHED)
        name = lines.printable(display(alone.key.layer))
        return say("answer-unmatched", language, pairs=len(pairs), count=count, tolerance=tolerance, layer=name)
    place = {"layer": lines.printable(display(first.key.layer)), "kind": lines.printable(first.kind)}
    place["slot"] = lines.printable(first.key.slot)
    word = "answer-parameter" if first.key.phase is Phase.PARAMETER else "answer-layer"
    if first.outcome is Outcome.INCOMPARABLE:
        word = "answer-shapes"
    elif first.outcome is Outcome.NONFINITE or (first.deviation is not None and first.deviation.nonfinite):
        word = "answer-nonfinite"
    return say(word, language, tolerance=tolerance, **place) + _sizes(first, comparison, language)


def _aligned(comparison: Comparison, pairs: list[Verdict], language: str) -> str:
    """How far the worst pair is off; what is over the tolerance by rounding alone, and what is wrong below it."""
    tolerance = exact(comparison.tolerance)
    largest = max((v.error for v in pairs if v.error is not None), default=0.0)
    error = figure(largest, comparison.tolerance)
    rounding = (v.error for v in pairs if v.outcome is Outcome.ROUNDING and v.error is not None)
    grown = sum(error > comparison.tolerance for error in rounding)
    known = {"pairs": len(pairs), "error": error, "tolerance": tolerance, "count": grown}
    sentence = say("answer-grown" if grown else "answer-aligned", language, **known)
    if comparison.suspects:
        word = "answer-casts" if all(place.cast for place in comparison.suspects) else "answer-suspects"
        return sentence + say(word, language, count=len(comparison.suspects))
    return sentence + (say("answer-none-wrong", language) if grown and comparison.checked else "")


def _sizes(verdict: Optional[Verdict], comparison: Comparison, language: str) -> str:
    """How far off, in words that stay together when the line is broken."""
    if verdict is None:
        return ""
    deviation = verdict.deviation
    if deviation is None:
        shown = [_shapes(verdict, language)]
    elif deviation.nonfinite:
        shown = [f"NaN {deviation.nan[0]}/{deviation.nan[1]}", f"Inf {deviation.inf[0]}/{deviation.inf[1]}"]
    else:
        shown = [say("max-abs", language, value=figure(deviation.max_abs))]
        shown.append(say("error", language, value=figure(verdict.error, comparison.tolerance)))
    return "".join("  " + text.replace(" ", lines.NO_BREAK) for text in shown if text)


def answer_lines(comparison: Comparison, terminal: Terminal) -> list[str]:
    """The outcome's word and the sentence, hung beside it."""
    word = say(comparison.outcome, terminal.language)
    indent = lines.width(word) + 2
    shown = lines.hang(word, _answer(comparison, terminal.language), terminal.width, indent)
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
    if not failing:
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
            table += lines.hang("", lines.printable(_shapes(verdict, language)), terminal.width, 8)
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


def _shapes(verdict: Verdict, language: str) -> str:
    """The two shapes where they differ, else why the pair cannot be compared."""
    reference, port = verdict.reference, verdict.port
    if reference is not None and port is not None and reference.shape != port.shape:
        return say("shapes", language, reference=_shape(reference), port=_shape(port))
    return told(verdict.reason, verdict.facts, language) if verdict.reason else ""


def _shape(side: Side) -> str:
    return "(" + ", ".join(str(n) for n in side.shape) + ")"


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
    if None in paths or (comparison.outcome == "aligned" and not wrong):
        return None
    layer = comparison.first.key.layer if comparison.first is not None else ""
    if wrong and wrong[0].where != "glue":  # of wrong code, the place it shows at says more
        layer = wrong[0].layer
    elif wrong and wrong[0].place is not None and comparison.first is None and wrong[0].place.key is not None:
        layer = wrong[0].place.key.layer
    reference, port = (lines.shell_word(str(path)) for path in paths)
    return f"aligner show {reference} {lines.shell_word(layer)} --against {port}"
