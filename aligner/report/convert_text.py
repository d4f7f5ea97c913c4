"""What became of a conversion, as text: the file that was written, what was guessed, and what did not map."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Optional, TextIO

from aligner import messages
from aligner.report import lines
from aligner.report.figures import size
from aligner.report.json_ import dumps
from aligner.report.terminal import Terminal
from aligner.report.weights_text import FOUND_BY, Say, left_texts
from aligner.weights.converting import Moved, Plan
from aligner.weights.stored import Left

SCHEMA = "aligner.convert/1"

BY: Mapping[str, str] = {
    **FOUND_BY,
    "kept": "convert-by-kept",
    "rule": "convert-by-rule",
    "guess": "convert-by-guess",
}


def write(
    plan: Plan, path: str, words: str, left: Sequence[Left], out: TextIO, terminal: Terminal, limit: Optional[int]
) -> None:
    """Write the whole report; `left` is what the source holds beside its parameters."""

    def say(message: str, **facts: object) -> str:
        return messages.text(message, terminal.language, facts)

    word = say("convert-partly" if plan.failing else "convert-whole")
    moved = sum(one.entry.stored.nbytes for one in plan.moved)
    text = say("convert-done", path=path, count=len(plan.moved), size=size(moved), words=words)
    first = lines.hang(word, lines.printable(text), terminal.width, lines.width(word) + 2)
    first[0] = terminal.paint(word, "yellow" if plan.failing else "green") + first[0][len(word) :]
    parts = [first, *_lists(plan, terminal, say, limit), _facts(plan, left, terminal, say)]
    for number, part in enumerate(part for part in parts if part):
        out.write("\n" * bool(number) + "".join(line + "\n" for line in part))


def _lists(plan: Plan, terminal: Terminal, say: Say, limit: Optional[int]) -> list[list[str]]:
    """What did not map, and what may have gone wrong."""
    unused = [f"{one.name}  {list(one.shape)}{_needless(one.name, plan, say)}" for one in plan.unused]
    lacking = [f"{one.name}  {list(one.shape)}{_needless(one.name, plan, say)}" for one in plan.lacking]
    shapes = [
        say("convert-wants", name=one.name, shape=list(one.shape), other=own.name, wanted=list(own.shape))
        for one, own in plan.misshapen
    ]
    guessed, ordered = _arrows(plan, "guess"), _arrows(plan, "order")
    rows = (
        ("convert-misshapen", shapes),
        ("convert-lacking", lacking),
        ("convert-unused", unused),
        ("convert-guesses", guessed),
        ("convert-order", ordered),
    )
    return [_list(say(title), texts, terminal, say, limit) for title, texts in rows if texts]


def _needless(name: str, plan: Plan, say: Say) -> str:
    return f"  ({say('weights-may-lack')})" if name in plan.needless else ""


def _arrows(plan: Plan, by: str) -> list[str]:
    return [f"{one.source.name} -> {one.entry.name}  {list(one.entry.shape)}" for one in plan.moved if one.by == by]


def _list(title: str, texts: Sequence[str], terminal: Terminal, say: Say, limit: Optional[int]) -> list[str]:
    shown = [f"{title} ({len(texts)})"]
    for text in texts[:limit]:
        shown += lines.hang("", lines.printable(text), terminal.width, 2)
    more = limit is not None and len(texts) > limit
    return shown + [f"  {say('weights-more', count=len(texts) - (limit or 0))}"] * more


def _facts(plan: Plan, left: Sequence[Left], terminal: Terminal, say: Say) -> list[str]:
    counts = Counter(one.by for one in plan.moved)
    prefix = dict(zip(("one", "other"), (prefix or "-" for prefix in plan.prefixes)))
    told = [say(BY[by], count=count, **(prefix if by == "prefix" else {})) for by, count in counts.most_common()]
    rows = [(say("convert-label-names"), ("、" if terminal.language == "zh" else ", ").join(told))]
    out = list(left_texts((*plan.left, *left), say))
    if out:
        rows.append((say("weights-label-left"), ("；" if terminal.language == "zh" else "; ").join(out)))
    indent = max(lines.width(label) for label, _ in rows) + 2
    return [line for label, text in rows for line in lines.hang(label, lines.printable(text), terminal.width, indent)]


def document(plan: Plan, path: str, form: str, words: str, left: Sequence[Left]) -> str:
    """The same as JSON (docs/json.md); never translated."""
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "path": path,
        "form": form,
        "names": words,
        "complete": not plan.failing,
        "tensors": [_moved(one) for one in plan.moved],
        "unused": [_alone(one.name, one.shape, plan) for one in plan.unused],
        "lacking": [_alone(one.name, one.shape, plan) for one in plan.lacking],
        "misshapen": [
            {"source": one.name, "shape": list(one.shape), "wanted": own.name, "wanted_shape": list(own.shape)}
            for one, own in plan.misshapen
        ],
        "left": [{"name": entry.name, "why": entry.why} for entry in (*plan.left, *left)],
    }
    return dumps(found) + "\n"


def _moved(one: Moved) -> dict[str, Any]:
    facts = {"source": one.source.name, "name": one.entry.name, "dtype": one.entry.dtype}
    return {**facts, "shape": list(one.entry.shape), "by": one.by, "confidence": one.confidence}


def _alone(name: str, shape: Sequence[int], plan: Plan) -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "required": name not in plan.needless}
