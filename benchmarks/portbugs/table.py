"""Judgements -> tables in markdown."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Optional

from corpus import KINDS
from judge import EDITS, LINES, Alarm, Judgement

QUESTIONS: tuple[tuple[str, Callable[[Judgement], Optional[bool]]], ...] = (
    ("origin top-1", lambda one: one.first),
    ("all origins", lambda one: one.every),
    ("no extra origin", lambda one: one.alone),
    ("where", lambda one: one.where),
    ("between", lambda one: one.between),
    ("cause in first two", lambda one: one.cause),
    ("confirmed", lambda one: one.confirmed),
)
PLAIN = (
    ("is the origin", "origin"),
    ("lies inside the origin", "inside"),
    ("is elsewhere", "elsewhere"),
    ("flags nothing", "nothing"),
)


def groups(judged: Sequence[Judgement]) -> Iterator[tuple[str, list[Judgement]]]:
    """The rows of a table: each kind, then all, then two selections of all."""
    for kind in KINDS:
        yield kind, [one for one in judged if one.kind == kind]
    yield "**all**", list(judged)
    yield "of these below 1e-3", [one for one in judged if one.below]
    yield "of these two at once", [one for one in judged if one.double]


def answers(judged: Sequence[Judgement]) -> str:
    """How often each question was answered rightly."""
    rows = []
    for name, members in groups(judged):
        cells = []
        for _, question in QUESTIONS:
            asked = [right for right in map(question, members) if right is not None]
            cells.append(share(sum(asked), len(asked)))
        rows.append([name, str(len(members)), *cells])
    return markdown(["kind", "bugs", *(name for name, _ in QUESTIONS)], rows)


def code_lines(judged: Sequence[Judgement]) -> str:
    """Which line of wrong code is shown."""
    asked = [one for one in judged if one.line is not None]
    counts = [share(sum(one.line == shown for one in asked), len(asked)) for shown in LINES]
    return markdown(["code", *LINES], [[str(len(asked)), *counts]])


def code_edits(judged: Sequence[Judgement]) -> str:
    """Which edits of wrong code were confirmed, and what the patches made of the ports."""
    rows = []
    for name, members in (("one", [o for o in judged if not o.double]), ("two", [o for o in judged if o.double])):
        asked = [one for one in members if one.edit is not None]
        counts = [share(sum(one.edit == told for one in asked), len(asked)) for told in EDITS]
        sure = share(sum(one.sure is True for one in asked), len(asked))
        tried = [one.mended for one in asked if one.mended is not None]
        rows.append([name, str(len(asked)), *counts, sure, share(sum(tried), len(tried))])
    heads = [
        "mistakes at once",
        "of code",
        *(f"edit: {told}" for told in EDITS),
        "line or edit",
        "patch makes it right",
    ]
    return markdown(heads, rows)


def patches(judged: Sequence[Judgement]) -> str:
    """What became of single mistakes of each kind with the edits that are told."""
    rows = []
    for kind in (*KINDS, None):
        tried = [one for one in judged if one.mended is not None and kind in (None, one.kind)]
        counts = [sum(one.told for one in tried), sum(one.mended is True for one in tried)]
        rows.append([kind or "**all**", str(len(tried)), *(share(count, len(tried)) for count in counts)])
    return markdown(["kind", "single mistakes", "an edit is told", "patch makes it right"], rows)


def plain_rule(judged: Sequence[Judgement]) -> str:
    """The same bugs under "the first layer over 1e-3 in execution order is the culprit"."""
    rows = []
    for name, members in groups(judged):
        cells = [share(sum(one.plain == key for one in members), len(members)) for _, key in PLAIN]
        rows.append([name, str(len(members)), *cells, share(sum(one.plain_every for one in members), len(members))])
    return markdown(["kind", "bugs", *(title for title, _ in PLAIN), "all origins"], rows)


def clean_nets(alarms: Sequence[Alarm]) -> str:
    """False alarms on correct ports."""
    rows = []
    for precision in sorted({one.precision for one in alarms}, reverse=True):
        members = [one for one in alarms if one.precision == precision]
        rows.append([precision, str(len(members)), str(sum(one.false for one in members))])
    return markdown(["correct ports", "nets", "false alarms"], rows)


def times(judged: Sequence[Judgement], alarms: Sequence[Alarm]) -> str:
    """What the forced pass and the trials cost next to the free captured run, where the dumps tell it."""
    rows = []
    for name, members in (("buggy ports", judged), ("correct ports", alarms)):
        told = [one.timing for one in members if one.timing.get("free_s")]
        if not told:
            rows.append([name, "0", "-", "-", "-", "-", "-"])
            continue
        free, forced, trials = (
            [float(one.get(key) or 0.0) for one in told] for key in ("free_s", "forced_s", "trials_s")
        )
        ratios = [(b + c) / a for a, b, c in zip(free, forced, trials)]
        seconds = [f"{median(values):.3f}" for values in (free, forced, trials)]
        rows.append([name, str(len(told)), *seconds, f"{median(ratios):.2f}", f"{max(ratios):.2f}"])
    heads = ["median of", "ports", "free run, s", "forced pass, s", "trials, s", "both / free", "largest"]
    return markdown(heads, rows)


def share(count: int, total: int) -> str:
    """ "12 (92.3 %)", or "-" where nothing was asked."""
    return f"{count} ({100 * count / total:.1f} %)" if total else "-"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
