"""One step of a dump's training as text: losses, rate, settings, and how far each parameter is moved."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Optional

from aligner.compare.one_step import Group, Moved, Step, moved, optimizers, step_of, updated
from aligner.record import Attribute, Phase, display
from aligner.report import lines
from aligner.report.figures import figure
from aligner.report.origins import value
from aligner.report.terminal import Terminal
from aligner.report.words import say

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

NAMED = 3
"""Parameters of a group that are told by name."""

PHASES = (Phase.FORWARD, Phase.BACKWARD, Phase.GRADIENT, Phase.UPDATE)


def training_text(dump: Dump, language: str) -> Optional[str]:
    """How many updates of which optimizers a dump holds; None without any."""
    made = [
        say("training-made", language, count=one.updates, optimizer=f"{one.kind} ({one.type})")
        for one in optimizers(dump)
    ]
    return "; ".join(made) or None


def step_lines(dump: Dump, number: int, terminal: Terminal, limit: Optional[int]) -> list[str]:
    """The step's facts, then its parameters."""
    language = terminal.language
    step = step_of(dump, number)
    rows = [
        (say("label-step", language), say("step-place", language, step=number, last=max(dump.steps))),
        (say("label-update", language), _made(step, language)),
        *_numbers(step, language),
        *group_rows(step.groups, language, say("settings", language)),
        (say("label-records", language), _records(step, language)),
    ]
    indent = max(lines.width(label) for label, _ in rows) + 2
    shown = [row for label, text in rows for row in lines.hang(label, text, terminal.width, indent)]
    found = updated(dump, number)
    if not found:
        return shown
    moves = [moved(dump, entry) for entry in found[:limit]]
    return [*shown, "", *_table(moves, terminal), *_more(len(found), limit, language)]


def _made(step: Step, language: str) -> str:
    names = ", ".join(dict.fromkeys(f"{one.kind} ({one.type})" for one in step.updates))
    return lines.printable(names) or say("step-no-update", language)


def _numbers(step: Step, language: str) -> list[tuple[str, str]]:
    """What there is one number of."""
    norms = [one.norm for one in step.updates if one.norm is not None]
    norm = math.sqrt(sum(one * one for one in norms)) if norms else None
    losses = ", ".join(f"{one:.6g}" for one in step.losses)
    rows = [("step-loss", losses or None), ("step-norm", None if norm is None else f"{norm:.6g}")]
    if step.seed not in (None, 1.0):
        rows.append(("label-scale", f"{step.seed:g}"))
    return [(say(word, language), text) for word, text in rows if text is not None]


def group_rows(groups: Sequence[Group], language: str, single: str) -> list[tuple[str, str]]:
    """Settings of each group and the first of its parameters; a `single` one has another label."""
    rows = []
    for number, group in enumerate(groups, 1):
        label = say("label-group", language, number=number) if len(groups) > 1 else single
        names = [lines.printable(f"{display(layer)} {role}") for layer, role in group.parameters]
        shown = ", ".join(names[:NAMED]) + (", ..." if len(names) > NAMED else "")
        told = settings_text(group.settings)
        rows.append((label, say("group-parameters", language, count=len(names), names=shown, settings=told)))
    return rows


def settings_text(settings: Mapping[str, Attribute]) -> str:
    """Those of a group, the rate first: it is looked for first."""
    named = sorted(settings.items(), key=lambda setting: setting[0] != "lr")
    return ", ".join(f"{lines.printable(name)}={_value(setting)}" for name, setting in named)


def _value(setting: Attribute) -> str:
    return f"{setting:.6g}" if isinstance(setting, float) else value(setting)


def _records(step: Step, language: str) -> str:
    named = [(say(f"phase-{phase.value}", language), step.records.get(phase, 0)) for phase in PHASES]
    return ", ".join(f"{name} {count}" for name, count in named if count)


def _table(found: Sequence[Moved], terminal: Terminal) -> list[str]:
    """Norms, and the change as a part of what is changed."""
    language = terminal.language
    names = ("gradient", "before", "change", "share")
    rows = [[say(f"moved-{name}", language) for name in names]]
    for one in found:
        share = one.change / one.before if one.change is not None and one.before else None
        rows.append([figure(number) for number in (one.gradient, one.before, one.change, share)])
    widths = [max(lines.width(row[column]) for row in rows) for column in range(len(names))]
    titles = [say("moved-title", language), *(f"{display(one.owner[0])} {one.owner[1]}" for one in found)]
    room = max(terminal.table_width - sum(widths) - 2 * len(widths) - 2, 12)
    column = min(max(lines.width(title) for title in titles), room)
    return [
        "  "
        + "  ".join(
            [
                lines.pad(lines.cut_left(lines.printable(title), column), column),
                *(lines.pad(cell, width, right=True) for cell, width in zip(row, widths)),
            ]
        )
        for title, row in zip(titles, rows)
    ]


def _more(count: int, limit: Optional[int], language: str) -> list[str]:
    left = count - limit if limit is not None else 0
    return ["  " + say("rows-more", language, count=left)] if left > 0 else []
