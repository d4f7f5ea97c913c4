"""One layer of a dump as text: settings, parameters, every call; alone or beside the same layer of the port."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.record import Layer, Phase, display
from aligner.report import lines
from aligner.report.dump_text import settings_text, shape_text
from aligner.report.elements import Selection, difference, select, worst
from aligner.report.figures import element, figure, index
from aligner.report.origins import settings
from aligner.report.terminal import Terminal
from aligner.report.words import say

if TYPE_CHECKING:
    from aligner.compare.pairing import Pair
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump


@dataclass(frozen=True)
class View:
    """What of a layer is shown: slots by pattern, a part of the values, how many of the worst elements."""

    slots: Sequence[str] = ("*",)
    values: Optional[Selection] = None
    values_text: str = ""
    worst: int = 10


def chosen(entries: Iterable[Entry], slots: Sequence[str] = ("*",)) -> list[Entry]:
    """The records whose slots match: parameters first, then in execution order."""
    own = [entry for entry in entries if any(fnmatchcase(entry.key.slot, pattern) for pattern in slots)]
    return sorted(own, key=lambda entry: (entry.key.phase is not Phase.PARAMETER, entry.order))


def entries_of(dump: Dump, layer: str, slots: Sequence[str] = ("*",)) -> list[Entry]:
    """The layer's own records, in the order they are shown."""
    return chosen((entry for entry in dump.entries if entry.key.layer == layer), slots)


def layer_lines(dump: Dump, path: str, terminal: Terminal, view: View) -> list[str]:
    """The layer alone."""
    shown = head_lines(dump.layers[path], terminal)
    for title, group in _groups(entries_of(dump, path, view.slots), terminal.language):
        shown += ["", title]
        for entry in group:
            shown += _entry_lines(entry, terminal)
            if view.values is not None:
                shown += _values(entry, view, terminal)
    if not any(call.layer == path for call in dump.calls):
        shown += ["", say("not-run", terminal.language)]
    return shown


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


def _groups(entries: Iterable[Entry], language: str) -> list[tuple[str, list[Entry]]]:
    """The entries under their titles: parameters, then one title per call."""
    found: dict[str, list[Entry]] = {}
    for entry in entries:
        key = entry.key
        title = say("parameters", language)
        if key.phase is not Phase.PARAMETER:
            phase = say(f"phase-{key.phase.value}", language)
            title = say("call-title", language, step=key.step, phase=phase, call=key.call)
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


def against_lines(layer: Layer, other: Layer, pairs: Sequence[Pair], terminal: Terminal, view: View) -> list[str]:
    """The layer on both sides: settings that differ, each record's figures, and the worst elements."""
    language = terminal.language
    shown = head_lines(layer, terminal)
    if other.path != layer.path:
        shown += lines.hang("", f"{say('port-layer', language)}: {lines.printable(other.path)}", terminal.width, 0)
    shown += [""]
    for text in settings(layer.spec, other.spec, language):
        shown += lines.hang("", text, terminal.width, 0)
    counterparts = {pair.entry.key: pair.port for pair in pairs if pair.reference is not None}
    own = chosen([pair.reference for pair in pairs if pair.reference is not None], view.slots)
    for title, group in _groups(own, language):
        shown += ["", title]
        for entry in group:
            shown += _pair_lines(entry, counterparts[entry.key], terminal, view)
    return shown


def _pair_lines(entry: Entry, other: Optional[Entry], terminal: Terminal, view: View) -> list[str]:
    language = terminal.language
    what = f"  {lines.printable(entry.key.slot)}  {entry.dtype} {shape_text(entry.shape)}"
    if other is None:
        return [what, "    " + say("no-counterpart", language)]
    if (entry.dtype, entry.shape) != (other.dtype, other.shape):
        what += f" | {other.dtype} {shape_text(other.shape)}"
    if entry.content == other.content and entry.shape == other.shape:
        return [what, "    " + statistics_text(entry, language), "    " + say("equal", language)]
    indent = 4 + max(lines.width(say(side, language)) for side in ("reference", "port")) + 2
    shown = [what]
    for side, one in (("reference", entry), ("port", other)):
        shown += lines.hang(f"    {say(side, language)}", statistics_text(one, language), terminal.width, indent)
        if view.values is not None:
            shown += _values(one, view, terminal)
    if entry.shape != other.shape:
        return shown
    return shown + _worst_lines(entry, other, terminal, view.worst)


def _worst_lines(entry: Entry, other: Entry, terminal: Terminal, count: int) -> list[str]:
    """The largest difference, and a table of the elements where it is largest."""
    language = terminal.language
    reference, port = entry.load(), other.load()
    elements = worst(reference, port, count)
    largest = np.abs(difference(reference, port))
    finite = largest[np.isfinite(largest)]
    top = float(finite.max()) if finite.size else float("nan")
    shown = ["    " + say("max-abs", language, value=figure(top))]
    if not elements:
        return shown
    names = ("index", "reference", "port", "difference")
    rows = [[say(f"column-{name}", language) for name in names]]
    rows += [[index(e.index), number(e.reference), number(e.port), number(e.difference)] for e in elements]
    widths = [max(lines.width(row[i]) for row in rows) for i in range(4)]
    for row in rows:
        shown.append(
            "    " + "  ".join(lines.pad(cell, w, right=i > 0) for i, (cell, w) in enumerate(zip(row, widths)))
        )
    return shown


def number(item: object) -> str:
    """One element with all its digits; integers and complex numbers as they are."""
    return element(item) if isinstance(item, float) else str(item)
