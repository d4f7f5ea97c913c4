"""Two checkpoints against each other, as text: the answer, what differs and what it looks like, what does not map."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Optional, TextIO

from aligner import messages
from aligner.explain.catalogue import sentences
from aligner.report import lines
from aligner.report.figures import exact, figure, size
from aligner.report.terminal import Terminal
from aligner.weights.comparison import CLOSE, ROUNDING, Alone, Row, Side, WeightComparison
from aligner.weights.stored import Left

ANSWERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "equal": ("weights-equal", ("green",)),
    "different": ("weights-different", ("bold", "red")),
    "unmatched": ("weights-unmatched", ("yellow",)),
    "incomparable": ("weights-incomparable", ("red",)),
}
"""Outcome -> its word, and how it is painted."""

FOUND_BY: Mapping[str, str] = {
    "same": "pairs-by-same",
    "name": "pairs-by-name",
    "prefix": "pairs-by-prefix",
    "map": "pairs-by-map",
    "order": "pairs-by-order",
    "values": "pairs-by-values",
}

ALONE = ("weights-label-alone-0", "weights-label-alone-1")

NAMES = 3
"""Names that stand for a group of what was left out."""

Say = Callable[..., str]


def write(comparison: WeightComparison, out: TextIO, terminal: Terminal, limit: Optional[int] = 20) -> None:
    """Write the whole report; `limit` rows in each list, None for all."""

    def say(message: str, **facts: object) -> str:
        return messages.text(message, terminal.language, facts)

    parts = [
        answer_lines(comparison, terminal, say),
        _different(comparison, terminal, say, limit),
        *(_alone(comparison.alone[side], side, terminal, say, limit) for side in (0, 1)),
        _facts(comparison, terminal, say),
    ]
    for number, part in enumerate(part for part in parts if part):
        out.write("\n" * bool(number) + "".join(line + "\n" for line in part))


def answer_lines(comparison: WeightComparison, terminal: Terminal, say: Say) -> list[str]:
    """The outcome's word and the sentence, hung beside it."""
    message, styles = ANSWERS[comparison.outcome]
    word = say(message)
    text = lines.printable(_answer(comparison, say))
    shown = lines.hang(word, text, terminal.width, lines.width(word) + 2)
    shown[0] = terminal.paint(word, *styles) + shown[0][len(word) :]
    return shown


def _answer(comparison: WeightComparison, say: Say) -> str:
    rows, failing = comparison.rows, comparison.failing
    if comparison.outcome == "equal":
        rounded = [row for row in rows if row.outcome == ROUNDING]
        close = comparison.counts.get(CLOSE, 0)
        words = ", ".join(dict.fromkeys(row.word for row in rounded))
        more = say("weights-answer-rounded", count=len(rounded), words=words) if rounded else ""
        more += say("weights-answer-close", count=close, tolerance=exact(comparison.tolerance)) if close else ""
        return say("weights-answer-equal", count=len(rows), more=more)
    if comparison.outcome == "different":
        first = comparison.different[0].pair.port.name
        return say("weights-answer-different", count=len(comparison.different), total=len(rows), name=first)
    if comparison.outcome == "unmatched":
        return say("weights-answer-unmatched", count=len(failing), total=len(rows), name=failing[0].name)
    paths = {"reference": comparison.reference.path, "port": comparison.port.path}
    return say("weights-answer-incomparable", **paths)


def _different(comparison: WeightComparison, terminal: Terminal, say: Say, limit: Optional[int]) -> list[str]:
    """What differs, with figures and what it looks like."""
    rows = comparison.different
    if not rows:
        return []
    shown = [say("weights-title-different")]
    for row in rows[:limit]:
        names = dict.fromkeys((row.pair.reference.name, row.pair.port.name))
        shown += lines.hang("", lines.printable(" = ".join(names)), terminal.width, 2)
        shown += lines.hang("", _figures(row, say), terminal.width, 4)
        title, evidence, _ = sentences(row.cause, row.facts, terminal.language) if row.cause else ("", "", "")
        for text in (title, "" if "left" in row.facts else evidence):
            shown += lines.hang("", lines.printable(text), terminal.width, 4) if text else []
    return shown + _more(len(rows), limit, say)


def _figures(row: Row, say: Say) -> str:
    one, other, deviation = row.pair.reference, row.pair.port, row.deviation
    forms = [f"{list(weight.shape)} {weight.dtype}" for weight in (one, other)]
    shape = forms[0] if forms[0] == forms[1] else say("weights-shapes", shape=forms[0], other=forms[1])
    if deviation is None:
        return shape
    text = say("weights-figures", shape=shape, max_abs=figure(deviation.max_abs), rel=figure(deviation.rel_l2))
    return text + (say("weights-nonfinite", count=deviation.nonfinite) if deviation.nonfinite else "")


def _alone(side: Sequence[Alone], number: int, terminal: Terminal, say: Say, limit: Optional[int]) -> list[str]:
    """What has no counterpart; what must have one first."""
    if not side:
        return []
    ranked = sorted(side, key=lambda one: not one.fails)
    shown = [f"{say(ALONE[number])} ({len(side)})"]
    for one in ranked[:limit]:
        why = "" if one.fails else f"  ({say('weights-may-lack')})"
        text = f"{one.name}  {list(one.shape)} {one.dtype}{why}"
        shown += lines.hang("", lines.printable(text), terminal.width, 2)
    return shown + _more(len(side), limit, say)


def _more(count: int, limit: Optional[int], say: Say) -> list[str]:
    return [f"  {say('weights-more', count=count - limit)}"] if limit is not None and count > limit else []


def _facts(comparison: WeightComparison, terminal: Terminal, say: Say) -> list[str]:
    """Both files, how pairs were found, and what was left out."""
    rows = [
        (say("weights-label-reference"), _side(comparison.reference, say)),
        (say("weights-label-port"), _side(comparison.port, say)),
    ]
    one, other = (prefix or "-" for prefix in comparison.prefixes)
    found = [
        say(FOUND_BY[by], count=count, **({"one": one, "other": other} if by == "prefix" else {}))
        for by, count in sorted(comparison.by.items(), key=lambda each: -each[1])
    ]
    if found:
        rows.append((say("weights-label-pairs"), ("、" if terminal.language == "zh" else ", ").join(found)))
    left = list(left_texts((*comparison.reference.left, *comparison.port.left), say))
    left += [say("weights-counters", count=len(comparison.counters))] if comparison.counters else []
    if left:
        rows.append((say("weights-label-left"), ("；" if terminal.language == "zh" else "; ").join(left)))
    indent = max(lines.width(label) for label, _ in rows) + 2
    return [line for label, text in rows for line in lines.hang(label, lines.printable(text), terminal.width, indent)]


def _side(side: Side, say: Say) -> str:
    form = say("weights-form-dump") if side.form == "dump" else side.form
    inside = say("weights-inside", key=side.inside) if side.inside else ""
    return say("weights-side", path=side.path, inside=inside, form=form, count=side.tensors, size=size(side.nbytes))


def left_texts(left: Iterable[Left], say: Say) -> Iterable[str]:
    """What was left out, each reason once with a few names."""
    groups: dict[str, list[str]] = {}
    for entry in left:
        groups.setdefault(entry.why, []).append(entry.name)
    for why, names in groups.items():
        shown = ", ".join(names[:NAMES]) + (f", ... ({len(names)})" if len(names) > NAMES else "")
        yield say(why, names=shown)
