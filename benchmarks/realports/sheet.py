"""Verdicts -> tables in markdown."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from verdicts import Verdict

sys.path.append(str(Path(__file__).resolve().parents[1] / "portbugs"))
from table import markdown, share  # the other benchmark's

COMMANDS = ("capture", "capture --from", "compare")
WIDTH = 160

DEAR = 4
"""So many times a plain run of both nets a capture may take."""


def report(verdicts: Sequence[Verdict]) -> str:
    """All tables; the pairs that are held out stand apart."""
    parts = []
    for held_out in (False, True):
        for title, planted, mended in (
            ("Published ports", False, False),
            ("Wrong ports, mended", False, True),
            ("Planted mistakes", True, False),
        ):
            members = [
                one for one in verdicts if (one.held_out, one.planted, one.mended) == (held_out, planted, mended)
            ]
            if members:
                parts += [f"## {title}{', held out' * held_out}", totals(members), cases(members)]
    return "\n\n".join([*parts, "## Forced passes", held(verdicts), "## Times", times(verdicts)])


def held(verdicts: Sequence[Verdict]) -> str:
    """Of each pair: how many calls the forced pass held to the reference, and how many layers it left alone."""
    rows = [
        [one.id, str(one.held), str(one.left)] for one in verdicts if one.id == one.pair or one.left or not one.held
    ]
    return markdown(["port", "calls held", "layers left with their own values"], rows)


def totals(verdicts: Sequence[Verdict]) -> str:
    """What the goals are about, over these cases."""
    right = [one for one in verdicts if not one.differences]
    wrong = [one for one in verdicts if one.differences]
    differences = sum(one.differences for one in wrong)
    large = differences - sum(one.small for one in wrong)
    rows = [
        ["right ports that read ALIGNED, nothing named", share(sum(one.clean for one in right), len(right))],
        ["true differences named", share(sum(one.named for one in wrong), differences)],
        ["of these over 1e-3", share(sum(one.named - one.small_named for one in wrong), large)],
        ["with the right cause", share(sum(one.caused for one in wrong), differences)],
        ["confirmed", share(sum(one.proved for one in wrong), differences)],
        ["wrong ports where the first named is true", share(sum(one.first for one in wrong), len(wrong))],
        *of_code([one for one in wrong if one.code]),
        ["answers ALIGNED in which an origin stands", str(sum(one.promised for one in verdicts))],
        ["false origins", str(sum(one.false_origins for one in verdicts))],
        ["false origins called confirmed", str(sum(one.false_confirmed for one in verdicts))],
        ["captured again with --allow-missing, as advised", str(sum(one.advised for one in verdicts))],
        ["refused", share(sum(one.outcome == "refused" for one in verdicts), len(verdicts))],
    ]
    return markdown(["of these ports", ""], rows)


def of_code(wrong: Sequence[Verdict]) -> list[list[str]]:
    """Of planted mistakes in code: whether the line is told, and what the edits came to, if that was asked."""
    if not wrong:
        return []
    rows = [
        [
            "mistakes in code where the wrong line, or an edit of it, is told",
            share(sum(one.lined for one in wrong), len(wrong)),
        ]
    ]
    if any(one.patched is not None for one in wrong):
        right = sum(one.patched is True for one in wrong)
        rows.append(["... where the port is right with the edits that are told", share(right, len(wrong))])
        rows.append(["... where it is not", share(sum(one.patched is False for one in wrong), len(wrong))])
    return rows


def cases(verdicts: Sequence[Verdict]) -> str:
    """A row for each case, with the reasons for its misses."""
    heads = [
        "port",
        "truth",
        "said",
        "named",
        "cause",
        "first",
        "false",
        "of these confirmed",
        "patch",
        "CPU s",
        "misses",
    ]
    rows = []
    for one in verdicts:
        truth = f"{one.differences} wrong" if one.differences else "right"
        named = f"{one.named}/{one.differences}" if one.differences else "-"
        cause = f"{one.caused}/{one.differences}" if one.differences else "-"
        first = ("yes" if one.first else "no") if one.differences else "-"
        seconds = " + ".join(f"{one.figures[key]['seconds']:.0f}" for key in COMMANDS if key in one.figures)
        false = [str(one.false_origins), str(one.false_confirmed)]
        patch = {None: "-", True: "right", False: "not right"}[one.patched]
        rows.append([one.id, truth, one.outcome, named, cause, first, *false, patch, seconds, _reasons(one)])
    return markdown(heads, rows)


def summary(one: Verdict) -> str:
    """A case in one line."""
    truth = f"{one.named} of {one.differences} named" if one.differences else "a right port"
    seconds = ", ".join(f"{key} {value['seconds']:.1f} s" for key, value in one.figures.items())
    return f"{one.outcome}, {truth}, {one.false_origins} false ({one.false_confirmed} confirmed); {seconds}"


def times(verdicts: Sequence[Verdict]) -> str:
    """Processor time and peak memory of each command, importing the frameworks included."""
    rows = []
    for key in ("plain", *COMMANDS):
        told = [(one.figures[key]["seconds"], one.id) for one in verdicts if key in one.figures]
        memory = [(one.figures[key]["peak_mib"], one.id) for one in verdicts if key in one.figures]
        if told:
            middle = sorted(told)[len(told) // 2][0]
            slowest, largest = max(told), max(memory)
            rows.append([key, f"{middle:.1f}", f"{slowest[0]:.1f} ({slowest[1]})", f"{largest[0]:,.0f} ({largest[1]})"])
    heads = ["command", "median, CPU s", "slowest", "largest peak, MiB"]
    return "\n\n".join([markdown(heads, rows), dearness(verdicts)])


def dearness(verdicts: Sequence[Verdict]) -> str:
    """What both captures of a pair cost, with the forced pass, as parts of a plain run of both nets."""
    told = [one for one in verdicts if {"plain", "capture", "capture --from", "edits"} <= one.figures.keys()]
    lines = []
    for words, spared in (("with the forced pass", True), ("and with the search for edits of wrong code", False)):
        ratios = sorted((_ratio(one.figures, spared), one.id) for one in told)
        if ratios:
            over = sum(ratio > DEAR for ratio, _ in ratios)
            middle, (most, case) = ratios[len(ratios) // 2][0], ratios[-1]
            lines.append(
                f"Both captures against a plain run of both nets (`plain`), {words}: median {middle:.1f} times, "
                f"most {most:.1f} ({case}); over {DEAR}: {over} of {len(ratios)}."
            )
    return "\n\n".join(lines)


def _ratio(figures: Any, spared: bool) -> float:
    """The search tells of its own processor time."""
    seconds = figures["capture"]["seconds"] + figures["capture --from"]["seconds"]
    return float((seconds - spared * figures["edits"]["seconds"]) / figures["plain"]["seconds"])


def _reasons(one: Verdict) -> str:
    """The misses of a case, short enough for a cell."""
    told = "; ".join(one.misses[:3]) + (f"; {len(one.misses) - 3} more" if len(one.misses) > 3 else "")
    told = told.replace("|", "/").replace("\n", " ")
    return told if len(told) <= WIDTH else f"{told[:WIDTH]}..."
