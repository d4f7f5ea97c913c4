"""A dump as text: what it is, and the tree of its layers."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Optional

from aligner.compare.net import ancestors
from aligner.compare.notes import together
from aligner.compare.stop import stop_of
from aligner.record import Layer, LayerSpec, Phase, display
from aligner.report import lines
from aligner.report.compared import dump_line
from aligner.report.figures import size
from aligner.report.origins import value
from aligner.report.step_text import training_text
from aligner.report.stops import stopped_in
from aligner.report.terminal import Terminal
from aligner.report.words import say, told
from aligner.selection import matches

if TYPE_CHECKING:
    from aligner.dump.reader import Dump


def summary_lines(dump: Dump, terminal: Terminal, limit: Optional[int] = 20) -> list[str]:
    """File, framework, how it was made, what it holds, and what could not be captured."""
    language = terminal.language
    header = dump.header
    rows = [
        (say("dump", language), dump_line({**header, "path": str(dump.path)}, language)),
        (say("contents", language), contents(dump, language)),
    ]
    trained = training_text(dump, language)
    if trained is not None:
        rows.append((say("training", language), trained))
    if header.get("created"):
        rows.append((say("created", language), f"{header['created']}, aligner {header.get('aligner', '?')}"))
    if header.get("command"):
        rows.append((say("command", language), shlex.join(str(word) for word in header["command"])))
    if header.get("reference"):
        rows.append((say("reference", language), str(header["reference"])))
    stop = stop_of(dump, "", {})
    if stop is not None:
        rows.append((say("label-stopped", language), stopped_in(stop, language)))
    indent = max(lines.width(label) for label, _ in rows) + 2
    shown: list[str] = []
    for label, text in rows:
        shown += lines.hang(label, lines.printable(text), terminal.width, indent)
    if dump.recovered:
        shown += lines.hang("", terminal.paint(say("recovered", language), "yellow"), terminal.width, indent)
    elif not dump.complete and stop is None:
        shown += lines.hang("", terminal.paint(say("not-complete", language), "yellow"), terminal.width, indent)
    return shown + _notes(dump, terminal, limit)


def contents(dump: Dump, language: str) -> str:
    """How much the dump holds."""
    return say(
        "contents-counts",
        language,
        layers=len(dump.layers),
        calls=len(dump.calls),
        records=len(dump.entries),
        size=size(dump.nbytes),
        steps=len(dump.steps),
    )


def _notes(dump: Dump, terminal: Terminal, limit: Optional[int]) -> list[str]:
    notes = list(together(dump.notes))
    if not notes:
        return []
    shown = ["", say("notes", terminal.language)]
    for note in notes[:limit]:
        text = told(note.message, {"layer": display(note.layer), **note.facts}, terminal.language)
        shown += lines.hang("  -", text, terminal.width, 4)
    if limit is not None and len(notes) > limit:
        shown.append("  " + say("more", terminal.language, count=len(notes) - limit))
    return shown


def tree_lines(dump: Dump, terminal: Terminal, root: str = "", depth: Optional[int] = None) -> list[str]:
    """The layers below `root`, one a line: name, kind with settings, output shape, number of calls."""
    language = terminal.language
    runs = Counter(call.layer for call in dump.calls if call.phase is Phase.FORWARD)
    seen = begun(dump)
    walked = _containers([*runs, *seen])
    shapes = {path: shape_text(entry.shape) for path, entry in dump.first_outputs().items()}
    prefix = f"{root}." if root else ""
    below = [layer for path, layer in dump.layers.items() if path == root or not root or path.startswith(prefix)]
    kept = [layer for layer in below if depth is None or _level(layer.path, root) <= depth]
    names = ["  " * _level(layer.path, root) + _name(layer, root) for layer in kept]
    column = min(max((lines.width(name) for name in names), default=0), terminal.width // 2)
    inside = Counter(chain.from_iterable(map(ancestors, dump.layers))) if depth is not None else Counter()
    shown = []
    for layer, name in zip(kept, names):
        tail = f" -> {shapes[layer.path]}" if layer.path in shapes else ""
        if not runs[layer.path] and layer.path not in walked and layer.path not in seen:
            tail += f"  {never(dump, layer.path, language)}"
        elif runs[layer.path] > 1:
            tail += f"  {say('times', language, count=runs[layer.path])}"
        if depth is not None and layer.children and _level(layer.path, root) == depth:
            tail += f"  [{say('inner-hidden', language, count=inside[layer.path])}]"
        room = terminal.width - column - 1 - lines.width(tail)
        label = lines.pad(lines.cut_left(name, column), column)
        shown.append(f"{label} {short_spec(layer.spec, room)}{tail}".rstrip())
    return shown


def never(dump: Dump, path: str, language: str) -> str:
    """What is said of a layer without a call: that it never ran is known only where it was observed to the end."""
    selected = dump.header.get("selected")
    if isinstance(selected, list) and path and not matches(path, [str(pattern) for pattern in selected]):
        return say("not-selected", language)
    if dump.header.get("imported"):
        return say("not-imported", language)
    return say("not-run" if dump.complete else "not-captured", language)


def begun(dump: Dump) -> set[str]:
    """The layers of which something was captured while they ran; a killed capture has no word of their calls' end."""
    return {entry.key.layer for entry in dump.entries if entry.key.phase is not Phase.PARAMETER}


def _containers(paths: Iterable[str]) -> set[str]:
    """All layers that have one of these inside: a container is only walked through, it never runs itself."""
    return {"", *chain.from_iterable(map(ancestors, paths))}


def _level(path: str, root: str) -> int:
    """How deep a layer stands below `root`."""
    if path == root:
        return 0
    return path.count(".") + 1 - (root.count(".") + 1 if root else 0)


def _name(layer: Layer, root: str) -> str:
    return lines.printable(display(layer.path) if layer.path == root else layer.path.rpartition(".")[2])


def shape_text(shape: tuple[int, ...]) -> str:
    """A shape as Python writes it."""
    return str(tuple(int(n) for n in shape))


def settings_text(spec: LayerSpec) -> str:
    """All settings: "eps=1e-05, momentum=0.1"."""
    return ", ".join(f"{lines.printable(name)}={value(setting)}" for name, setting in spec.attributes.items())


def short_spec(spec: LayerSpec, room: int) -> str:
    """Kind and as many settings as there is room for; the kind is never cut."""
    kind = lines.printable(spec.kind)
    whole = f"{kind}({settings_text(spec)})" if spec.attributes else kind
    if lines.width(whole) <= room:
        return whole
    kept = f"{kind}({settings_text(spec)}"
    while kept and lines.width(kept) > room - 3:
        kept = kept[:-1]
    return kept + "..)" if len(kept) > len(kind) + 4 else kind
