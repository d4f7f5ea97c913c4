"""An origin in words: what is wrong by itself, how far off, and how the two layers' settings differ."""

from __future__ import annotations

import math

from aligner.compare.deviation import Deviation
from aligner.compare.verdict import Comparison, Origin
from aligner.record import Attribute, LayerSpec, display
from aligner.report.figures import element, exact, figure, index
from aligner.report.lines import hang, printable
from aligner.report.terminal import Terminal
from aligner.report.words import say


def origin_lines(origin: Origin, comparison: Comparison, label: str, terminal: Terminal) -> list[str]:
    """The block of one origin: a headline with the layer, and what is known of it below."""
    indent = 11
    shown = hang(label, headline(origin, terminal.language), terminal.width, indent)
    shown[0] = terminal.paint(label, "bold", "red") + shown[0][len(label) :]
    for text in facts(origin, comparison, terminal.language):
        shown += hang("", text, terminal.width, 2)
    return shown


def headline(origin: Origin, language: str) -> str:
    """The layer that is wrong, or whose own code is."""
    name = f"{printable(display(origin.layer))} ({printable(origin.kind)})"
    return say("origin-head-glue", language, layer=name) if origin.where == "glue" else name


def facts(origin: Origin, comparison: Comparison, language: str) -> list[str]:
    """One sentence per thing known about the origin; notebooks print the same ones."""
    found = [statement(origin, comparison.tolerance, language)]
    if origin.port_layer != origin.layer:
        found.append(f"{say('port-layer', language)}: {printable(display(origin.port_layer))}")
    if origin.where == "layer" and origin.layer in comparison.specs:
        found += settings(*comparison.specs[origin.layer], language)
    deviation = origin.deviation
    if deviation is not None:
        found += worst_facts(deviation, language)
        if deviation.mismatched:
            found.append(say("mismatched", language, count=deviation.mismatched, total=deviation.total))
    if origin.where in ("layer", "glue"):
        phase = say(f"phase-{origin.phase}", language)
        found.append(say("seen-at", language, step=origin.step, phase=phase, call=origin.call, order=origin.order))
    if origin.calls > 1:
        found.append(say("calls", language, count=origin.calls))
    return found


def worst_facts(deviation: Deviation, language: str) -> list[str]:
    """The place that differs most with both values, and how many values are not numbers."""
    found = []
    if deviation.worst_values is not None and deviation.worst is not None:
        reference, port = (element(value) for value in deviation.worst_values)
        found.append(say("worst", language, index=index(deviation.worst), reference=reference, port=port))
    if any((*deviation.nan, *deviation.inf)):
        counts = zip(("nan_reference", "nan_port", "inf_reference", "inf_port"), (*deviation.nan, *deviation.inf))
        found.append(say("nonfinite-counts", language, **dict(counts)))
    return found


def statement(origin: Origin, tolerance: float, language: str) -> str:
    """What is wrong here, in one sentence."""
    known = {"slot": printable(origin.slot), "off": _off(origin, tolerance, language)}
    known["input"] = say("nothing-measured", language)
    if origin.input_error is not None:
        known["input"] = figure(origin.input_error, tolerance)
    if origin.where == "layer" and origin.input_error is None:
        return say("origin-layer-no-input", language, **known)
    if origin.where == "glue":
        before, after = (printable(name) for name in origin.between or ("", ""))
        known["before"] = before or say("own-input", language)
        known["after"] = after or say("own-output", language)
        if after and origin.slot.startswith("input"):
            known["slot"] = say("slot-of", language, slot=known["slot"], layer=after)
    return say(f"origin-{origin.where}", language, **known)


def _off(origin: Origin, tolerance: float, language: str) -> str:
    """How far off: a number, unless there is none to give."""
    if origin.deviation is not None and origin.deviation.nonfinite:
        return say("off-nonfinite", language)
    if origin.deviation is None and not math.isfinite(origin.own_error):
        return say("off-shape", language)
    return say("off-error", language, value=figure(origin.own_error, tolerance))


def settings(reference: LayerSpec, port: LayerSpec, language: str) -> list[str]:
    """The settings that differ, one sentence each; or that none does. Of other kinds, only those both have."""
    pairs: list[tuple[str, Attribute, Attribute]] = []
    absent = say("setting-absent", language)
    if reference.kind != port.kind:
        pairs.append((say("setting-kind", language), reference.kind, port.kind))
    names = dict.fromkeys((*reference.attributes, *port.attributes))
    if reference.kind != port.kind:
        names = dict.fromkeys(name for name in reference.attributes if name in port.attributes)
    for name in names:
        mine, other = reference.attributes.get(name, absent), port.attributes.get(name, absent)
        if mine != other or type(mine) is not type(other):
            pairs.append((name, mine, other))
    if not pairs:
        return [say("settings-same", language)]
    return [
        say("setting", language, name=printable(name), reference=value(mine), port=value(other))
        for name, mine, other in pairs
    ]


def value(attribute: Attribute) -> str:
    """A setting as people write it."""
    if isinstance(attribute, tuple):
        inner = ", ".join(value(item) for item in attribute)
        return f"({inner},)" if len(attribute) == 1 else f"({inner})"
    if isinstance(attribute, float):
        return exact(attribute) if 0 < abs(attribute) < 0.01 else repr(attribute)
    return printable(str(attribute))
