"""What was compared, at a glance: the two dumps, the pairs, how their layers were paired, and what has no partner."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

from aligner.compare.cover import LEFT_OUT, ONE_SIDED
from aligner.compare.sides import elsewhere
from aligner.compare.verdict import Comparison, LayerPair, Outcome, Verdict
from aligner.record import display
from aligner.report import lines
from aligner.report.families import families
from aligner.report.figures import exact
from aligner.report.stops import not_run
from aligner.report.terminal import Terminal
from aligner.report.words import say, told

GUESSED_SHOWN = 5
LAYERS_NAMED = 2
UNSURE = 0.9


def compared_lines(comparison: Comparison, terminal: Terminal, limit: Optional[int]) -> list[str]:
    """The block "compared"; of a port that is right what says how much that means, unless all is asked for."""
    language = terminal.language
    short = comparison.aligned and not comparison.suspects and limit is not None
    rows = [(side, dump_line(getattr(comparison, side), language)) for side in ("reference", "port")]
    if not short:
        rows.append(("pairs", pairs_line(comparison, language)))
    rows.append(("layers", layers_line(comparison.layers, language)))
    if comparison.counts.get("covered", 0):
        rows.append(("covered", covered_line(comparison, language)))
    rows += [("label-not-run", line) for line in not_run(comparison, language)]
    left_out = sum(verdict.reason == LEFT_OUT for verdict in comparison.verdicts)
    if left_out:
        rows.append(("left-out", say("left-out-count", language, count=left_out)))
    if not short:
        rows.append(("origins-from", origins_line(comparison, language)))
        rows.append(("rule", say(f"rule-{comparison.rule}", language, tolerance=exact(comparison.tolerance))))
    labelled = [(say(word, language), text) for word, text in rows]
    indent = max(lines.width(label) for label, _ in labelled) + 4
    shown = [] if short else [say("compared", language)]
    for label, text in labelled:
        shown += lines.hang("  " + label, text, terminal.width, indent)
    return shown if short else shown + _guessed(comparison.layers, terminal, limit)


def dump_line(header: Mapping[str, Any], language: str) -> str:
    """One dump: file, framework and version, how it ran, the net's class."""
    mode, steps = header.get("training"), header.get("steps")
    words = [
        f"{header.get('framework', '?')} {header.get('framework_version', '')}".strip(),
        header.get("device"),
        header.get("mode"),
        f"amp {header['amp']}" if header.get("amp") else None,
        None if mode is None else say("train" if mode else "eval", language),
        say("steps", language, count=steps) if type(steps) is int and steps > 1 else None,
        header.get("model"),
        say("incomplete", language) if header.get("complete") is False else None,
    ]
    known = ", ".join(lines.printable(str(word)) for word in words if word)
    return f"{lines.printable(str(header.get('path', '?')))}  {known}"


def pairs_line(comparison: Comparison, language: str) -> str:
    """How many pairs, and what became of them."""
    both = (v for v in comparison.verdicts if v.reference is not None and v.port is not None)
    total = sum(1 for v in both if v.outcome is not Outcome.COVERED)
    counts = [
        f"{comparison.counts[o.value]} {say(('count-' if o is Outcome.ORIGIN else 'outcome-') + o.value, language)}"
        for o in Outcome
        if comparison.counts.get(o.value) and o not in (Outcome.COVERED, Outcome.UNMATCHED, Outcome.NOT_RUN)
    ]
    return say("pair-counts", language, total=total, counts=", ".join(counts) or "-")


def origins_line(comparison: Comparison, language: str) -> str:
    """How many places are wrong by themselves, by how many mistakes, and what they were found by."""
    how = say("origins-free", language)
    if comparison.checked:
        how = say("origins-forced", language, count=comparison.checked)
    if comparison.left:
        names = ", ".join(lines.printable(layer) for layer in comparison.left[:LAYERS_NAMED])
        more = ", ..." if len(comparison.left) > LAYERS_NAMED else ""
        how += say("origins-left", language, count=len(comparison.left), layers=names + more)
    if not comparison.origins:
        return how
    mistakes = len(families(comparison.origins, comparison.specs))
    return say("origins-count", language, places=len(comparison.origins), mistakes=mistakes, how=how)


def covered_line(comparison: Comparison, language: str) -> str:
    """How many values were compared where the other side has no such layer, or another border; and whose."""
    found = elsewhere(comparison.verdicts)
    names = [lines.printable(display(layer)) for layer in found.layers[:LAYERS_NAMED]]
    layers = ", ".join(names) + (", ..." if len(found.layers) > len(names) else "")
    ways = [say("covered-by-value", language, count=found.by_value, layers=layers)] if found.by_value else []
    ways += [say("covered-by-effect", language, count=found.by_effect)] if found.by_effect else []
    count = found.by_value + found.by_effect
    return say("covered-count", language, count=count, ways=", ".join(ways))


def layers_line(pairs: tuple[LayerPair, ...], language: str) -> str:
    """How many layers were paired, and by what."""
    ways: dict[str, list[float]] = {}
    for pair in pairs:
        ways.setdefault(pair.by, []).append(pair.confidence)
    shown = [say(f"by-{by}", language, count=len(c), least=f"{min(c):.2f}") for by, c in ways.items()]
    return say("layers-paired", language, total=len(pairs), ways=", ".join(shown) or "-")


def _guessed(pairs: tuple[LayerPair, ...], terminal: Terminal, limit: Optional[int]) -> list[str]:
    """Pairs found by structure, least sure first: a wrong one would explain everything below it."""
    guessed = sorted((p for p in pairs if p.by == "structure" or p.confidence < UNSURE), key=lambda p: p.confidence)
    if not guessed:
        return []
    shown = guessed if limit is None else guessed[:GUESSED_SHOWN]
    rows = ["", say("guessed", terminal.language)]
    for pair in shown:
        names = f"{lines.printable(display(pair.reference))} = {lines.printable(display(pair.port))}"
        rows.append(f"  {pair.confidence:.2f}  {lines.cut_left(names, terminal.width - 8)}")
    if len(shown) < len(guessed):
        rows.append("  " + say("more", terminal.language, count=len(guessed) - len(shown)))
    return rows


def unmatched_lines(comparison: Comparison, terminal: Terminal, limit: Optional[int]) -> list[str]:
    """What stands in one dump only: by side and layer, with the reason; nothing is dropped."""
    groups: dict[tuple[str, str, str], list[Verdict]] = {}
    for verdict in comparison.verdicts:
        one_sided = verdict.reason == ONE_SIDED and limit is not None  # a line among the warnings tells of them
        if verdict.outcome is Outcome.UNMATCHED and verdict.reason != LEFT_OUT and not one_sided:
            side = "reference" if verdict.reference is not None else "port"
            groups.setdefault((side, verdict.key.layer, verdict.reason), []).append(verdict)
    if not groups:
        return []
    language = terminal.language
    shown = [say("unmatched", language)]
    for (side, layer, reason), verdicts in list(groups.items())[:limit]:
        slots = ", ".join(dict.fromkeys(v.key.slot for v in verdicts))
        text = f"{lines.printable(display(layer))} ({lines.printable(verdicts[0].kind)}) {lines.printable(slots)}"
        shown += lines.hang("  " + say(side, language), text, terminal.width, 13)
        if reason:
            shown += lines.hang("", told(reason, verdicts[0].facts, language), terminal.width, 13)
    if limit is not None and len(groups) > limit:
        shown.append("  " + say("more", language, count=len(groups) - limit))
    return shown
