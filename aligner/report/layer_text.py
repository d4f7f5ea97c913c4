"""One layer of a dump as text: settings, parameters, every call; alone or beside the same layer of the port."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.compare.one_step import begins, moved, settings_of, step_of, updated
from aligner.compare.ulp import max_ulp
from aligner.record import Layer, LayerSpec, Phase, display
from aligner.report import lines
from aligner.report.dump_text import begun, never, settings_text, shape_text
from aligner.report.elements import Selection, difference, errors, select, worst
from aligner.report.figures import element, figure, index
from aligner.report.origins import settings
from aligner.report.step_text import group_rows
from aligner.report.terminal import Terminal
from aligner.report.words import say

if TYPE_CHECKING:
    from aligner.compare.pairing import Pair
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

TITLES = {
    Phase.FORCED: "call-title-forced",
    Phase.GRADIENT: "call-title-gradient",
    Phase.UPDATE: "call-title-update",
}


@dataclass(frozen=True)
class View:
    """What of a layer is shown: slots by pattern, a part of the values, how many of the worst elements."""

    slots: Sequence[str] = ("*",)
    values: Optional[Selection] = None
    values_text: str = ""
    worst: Optional[int] = None
    """Elements to list of every record; None: ten of the record that differs most, of the others only how much."""
    ulp: bool = False
    """Also the largest distance in units in the last place, which is large wherever a value is near zero."""
    step: Optional[int] = None
    """Only this step's records; parameters as it begins."""


def chosen(entries: Iterable[Entry], slots: Sequence[str] = ("*",)) -> list[Entry]:
    """The records whose slots match: parameters first, then in execution order."""
    own = [entry for entry in entries if any(fnmatchcase(entry.key.slot, pattern) for pattern in slots)]
    return sorted(own, key=lambda entry: (entry.key.phase is not Phase.PARAMETER, entry.order))


def entries_of(dump: Dump, layer: str, view: View) -> list[Entry]:
    """The layer's own records, in the order they are shown; of one step, behind the parameters that it begins with."""
    own = [entry for entry in dump.entries if entry.key.layer == layer]
    if view.step is None:
        return chosen(own, view.slots)
    kept = [entry for entry in own if entry.key.step == view.step and entry.key.phase is not Phase.PARAMETER]
    return [*_begun(dump, own, view), *chosen(kept, view.slots)]


def _begun(dump: Dump, own: Iterable[Entry], view: View) -> list[Entry]:
    """The parameters that a step begins with."""
    assert view.step is not None
    keys = [entry.key._replace(step=view.step) for entry in own if entry.key.phase is Phase.PARAMETER]
    found = [begins(dump, key) for key in keys]
    return chosen([entry for entry in found if entry is not None], view.slots)


def layer_lines(dump: Dump, path: str, terminal: Terminal, view: View) -> list[str]:
    """The layer alone."""
    shown = head_lines(layer_of(dump, path), terminal)
    moving = set() if view.step is None else {entry.key for entry in updated(dump, view.step)}
    if view.step is not None:
        shown += _settings_lines(dump, view.step, path, terminal)
    for title, group in _groups(entries_of(dump, path, view), terminal.language, view.step):
        shown += ["", *lines.hang("", title, terminal.width, 0)]
        for entry in group:
            shown += _entry_lines(entry, terminal)
            if entry.key in moving:
                shown += _change_lines(dump, entry, terminal.language)
            if view.values is not None:
                shown += _values(entry, view, terminal)
    if path not in begun(dump) and not any(call.layer == path for call in dump.calls):
        shown += ["", never(dump, path, terminal.language)]
    return shown


def layer_of(dump: Dump, path: str) -> Layer:
    """The layer; a loss that is recorded beside the net need not be declared as one."""
    return dump.layers[path] if path in dump.layers else Layer(path, "-", LayerSpec("Loss"), False, True)


def _settings_lines(dump: Dump, step: int, path: str, terminal: Terminal) -> list[str]:
    """What the optimizer is told to do with the layer's parameters in this step."""
    label = say("label-optimizer", terminal.language)
    rows = group_rows(settings_of(step_of(dump, step), path), terminal.language, label)
    hung = [lines.hang(label, text, terminal.width, lines.width(label) + 2) for label, text in rows]
    return [row for text in hung for row in ("", *text)]


def _change_lines(dump: Dump, entry: Entry, language: str) -> list[str]:
    """How far a parameter has moved."""
    step = moved(dump, entry)
    if step.change is None or step.before is None:
        return []
    return ["    " + say("moved-by", language, change=figure(step.change), before=figure(step.before))]


def head_lines(layer: Layer, terminal: Terminal) -> list[str]:
    """Name, type, settings and mode."""
    language = terminal.language
    rows = [
        (say("layer", language), f"{display(layer.path)} ({layer.spec.kind})"),
        (say("type", language), layer.type),
        (say("settings", language), settings_text(layer.spec) or "-"),
        (say("mode", language), say("train" if layer.training else "eval", language)),
    ]
    indent = max(lines.width(label) for label, _ in rows) + 2
    return [row for label, text in rows for row in lines.hang(label, lines.printable(text), terminal.width, indent)]


def _groups(entries: Iterable[Entry], language: str, step: Optional[int] = None) -> list[tuple[str, list[Entry]]]:
    """The entries under their titles: parameters (those that a step begins with), then one title per call."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        key = entry.key
        if key.phase is Phase.PARAMETER or (step is not None and key.step != step):
            title = say("parameters" if step is None else "parameters-of-step", language, step=step)
        else:
            phase = say(f"phase-{key.phase.value}", language)
            title = say(TITLES.get(key.phase, "call-title"), language, step=key.step, phase=phase, call=key.call)
        found.setdefault(title, []).append(entry)
    return list(found.items())


def _entry_lines(entry: Entry, terminal: Terminal) -> list[str]:
    what = f"  {lines.printable(entry.key.slot)}  {entry.dtype} {shape_text(entry.shape)}"
    return [what, "    " + statistics_text(entry, terminal.language)]


def statistics_text(entry: Entry, language: str) -> str:
    """Smallest, mean, largest and rms of the finite values; NaN and Inf only where there are some."""
    found = entry.statistics()
    if found.count == 0:
        return say("empty", language)
    named = (("min", found.minimum), ("mean", found.mean), ("largest", found.maximum), ("rms", found.rms))
    parts = [
        f"{say('column-' + name, language)} {'-' if number != number else f'{number:.5g}'}" for name, number in named
    ]
    if found.nan or found.inf:
        parts.append(say("nan-inf", language, nan=found.nan, inf=found.inf))
    return "  ".join(parts)


def _values(entry: Entry, view: View, terminal: Terminal) -> list[str]:
    assert view.values is not None
    part = select(entry.load(), view.values, view.values_text)
    text = np.array2string(part, max_line_width=terminal.width - 4, threshold=1000, floatmode="maxprec")
    return ["    " + row for row in text.splitlines()]


def against_lines(
    layer: Layer, other: Layer, pairs: Sequence[Pair], terminal: Terminal, view: View, forced: Sequence[Pair] = ()
) -> list[str]:
    """The layer on both sides: settings that differ, each record's figures, and the worst elements.

    `forced` are the same records of the reference beside what the port made in the forced pass, where that is wrong.
    """
    language = terminal.language
    shown = head_lines(layer, terminal)
    if other.path != layer.path:
        shown += lines.hang("", f"{say('port-layer', language)}: {lines.printable(other.path)}", terminal.width, 0)
    shown += [""]
    for text in settings(layer.spec, other.spec, language):
        shown += lines.hang("", text, terminal.width, 0)
    counterparts = {pair.entry.key: pair.port for pair in pairs if pair.reference is not None}
    own = chosen([pair.reference for pair in pairs if pair.reference is not None], view.slots)
    distances = {entry.key: distance(entry, counterparts[entry.key]) for entry in own}
    most = max(distances.values(), key=lambda d: -1.0 if d is None else d.error, default=None)
    for title, group in _groups(own, language):
        shown += ["", title]
        for entry in group:
            far = distances[entry.key]
            count = view.worst if view.worst is not None else 10 if far is most else 0
            shown += _pair_lines(entry, counterparts[entry.key], far, terminal, replace(view, worst=count))
    return shown + _forced_lines(forced, terminal, view)


def _forced_lines(forced: Sequence[Pair], terminal: Terminal, view: View) -> list[str]:
    """What the layer does wrong by itself; the free run's errors are those of all before it as well."""
    shown: list[str] = []
    made = {pair.port.key: pair for pair in forced if pair.port is not None}
    for title, group in _groups(chosen([p.port for p in forced if p.port is not None], view.slots), terminal.language):
        shown += ["", *lines.hang("", title, terminal.width, 0)]
        for entry in group:
            reference, far = made[entry.key].entry, distance(made[entry.key].entry, entry)
            shown += _pair_lines(reference, entry, far, terminal, replace(view, worst=view.worst or 10))
    return shown


@dataclass(frozen=True)
class Distance:
    """How far two arrays are apart: the largest finite difference, and the largest error by the tolerance's scale."""

    largest: float
    error: float


def distance(entry: Entry, other: Optional[Entry]) -> Optional[Distance]:
    """None where nothing differs or nothing can be set side by side; NaN and Inf on one side are infinitely far."""
    if other is None or entry.shape != other.shape or entry.content == other.content:
        return None
    reference, port = entry.load(), other.load()
    most = worst(reference, port, 1)
    if not most:
        return None
    apart = np.abs(difference(reference, port))
    finite = apart[np.isfinite(apart)]
    found = errors(reference, port)
    error = float(found[np.isfinite(found)].max()) if np.isfinite(most[0].difference) else math.inf
    return Distance(float(finite.max()) if finite.size else 0.0, error)


def _pair_lines(
    entry: Entry, other: Optional[Entry], far: Optional[Distance], terminal: Terminal, view: View
) -> list[str]:
    language = terminal.language
    what = f"  {lines.printable(entry.key.slot)}  {entry.dtype} {shape_text(entry.shape)}"
    if other is None:
        return [what, "    " + say("no-counterpart", language)]
    if (entry.dtype, entry.shape) != (other.dtype, other.shape):
        what += f" | {other.dtype} {shape_text(other.shape)}"
    if entry.content == other.content and entry.shape == other.shape:
        same = [what, "    " + statistics_text(entry, language), "    " + say("equal", language)]
        return same + (_values(entry, view, terminal) if view.values is not None else [])
    shown = [what, *_both_statistics(entry, other, language)]
    if view.values is not None:
        for side, one in (("reference", entry), ("port", other)):
            shown += [f"    {say(side, language)}", *_values(one, view, terminal)]
    if far is None:
        return shown + (["    " + say("equal-values", language)] if entry.shape == other.shape else [])
    sizes = [say("max-abs", language, value=figure(far.largest)), say("error", language, value=figure(far.error))]
    units = max_ulp(entry, other) if view.ulp else None
    if units is not None:
        sizes.append(say("ulp", language, count=units))
    shown.append("    " + "  ".join(sizes))
    return shown + (_worst_lines(entry, other, view.worst, language) if view.worst else [])


def _both_statistics(entry: Entry, other: Entry, language: str) -> list[str]:
    """The statistics of both sides below each other."""
    names = ("min", "mean", "largest", "rms")
    rows = [["", *(say(f"column-{name}", language) for name in names)]]
    for side, one in (("reference", entry), ("port", other)):
        found = one.statistics()
        numbers = (found.minimum, found.mean, found.maximum, found.rms)
        row = [say(side, language), *("-" if n != n else f"{n:.6g}" for n in numbers)]
        if found.nan or found.inf:
            row.append(say("nan-inf", language, nan=found.nan, inf=found.inf))
        rows.append(row)
    return _table(rows)


def _worst_lines(entry: Entry, other: Entry, count: int, language: str) -> list[str]:
    """A table of the elements that differ most."""
    names = ("index", "reference", "port", "difference", "error")
    rows = [[say(f"column-{name}", language) for name in names]]
    for one in worst(entry.load(), other.load(), count):
        apart = f"{one.difference:.6g}" if isinstance(one.difference, float) else str(one.difference)
        rows.append([index(one.index), number(one.reference), number(one.port), apart, figure(one.error)])
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells below each other, the first column set left, the others right."""
    widths = [max(lines.width(row[i]) for row in rows if i < len(row)) for i in range(max(map(len, rows)))]
    return [
        "    " + "  ".join(lines.pad(cell, w, right=i > 0) for i, (cell, w) in enumerate(zip(row, widths))).rstrip()
        for row in rows
    ]


def number(item: object) -> str:
    """One element with all its digits; integers and complex numbers as they are."""
    return element(item) if isinstance(item, float) else str(item)
