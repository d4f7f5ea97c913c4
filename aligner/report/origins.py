"""An origin in words: what is wrong by itself, how far off, why, and in how many places more.

Every output prints these rows: a label or none, and a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Optional

from aligner.compare.deviation import Deviation
from aligner.compare.steps import STAGES
from aligner.compare.verdict import Comparison, Origin
from aligner.explain.kinds import KIND
from aligner.record import Attribute, Key, LayerSpec, Phase, display
from aligner.report.causes import Row, cause_rows, is_lost
from aligner.report.edit import edit_rows
from aligner.report.families import Family, differ, differences, likeliest
from aligner.report.figures import element, exact, figure, index, multiple
from aligner.report.line import line_rows
from aligner.report.lines import hang, printable, width
from aligner.report.terminal import Terminal
from aligner.report.untried import untried
from aligner.report.words import say

MANY = 1e5
"""Beyond this the exact multiple of what rounding explains says no more."""

NAMED, LEFT = 8, 3
"""Further places of one mistake that are named, and values that a change leaves wrong."""


def origin_lines(
    family: Family, comparison: Comparison, label: str, terminal: Terminal, limit: Optional[int]
) -> list[str]:
    """The block of one mistake: a headline with the first layer that has it, and what is known of it below."""
    indent = 11
    shown = hang(label, headline(family.head, terminal.language), terminal.width, indent)
    shown[0] = terminal.paint(label, "bold", "red") + shown[0][len(label) :]
    named = None if limit is None else NAMED
    return shown + row_lines(rows(family, comparison, terminal.language, named), terminal, 2)


def row_lines(found: Sequence[Row], terminal: Terminal, indent: int) -> list[str]:
    """Rows below each other, the sentences behind labels set in one column."""
    column = indent + max((width(label) for label, _ in found), default=0) + 2
    shown = []
    for label, text in found:
        if label:
            shown += hang(" " * indent + label, text, terminal.width, column)
        else:
            shown += hang("", text, terminal.width, indent)
    return shown


def headline(origin: Origin, language: str) -> str:
    """The layer that is wrong, or whose own code is."""
    if origin.where in STAGES:
        return say(f"origin-head-{origin.where}", language)
    name = f"{printable(display(origin.layer))} ({printable(origin.kind)})"
    return say("origin-head-glue", language, layer=name) if origin.where == "glue" else name


def rows(family: Family, comparison: Comparison, language: str, named: Optional[int] = NAMED) -> list[Row]:
    """One row per thing known about the mistake: what is wrong, why, where else, and the numbers."""
    origin = family.head
    found = [
        ("", statement(origin, comparison.tolerance, language)),
        *reasons(origin, comparison, language),
        *others(family, comparison.tolerance, language, named),
    ]
    plain: list[str] = []
    deviation = origin.deviation
    if deviation is not None:
        plain += worst_facts(deviation, language, record(origin.measured) if origin.apart else "")
        if deviation.mismatched:
            plain.append(say("mismatched", language, count=deviation.mismatched, total=deviation.total))
    if origin.where in ("layer", "glue"):
        phase = say(f"phase-{origin.phase}", language)
        first = Key(origin.step, Phase.FORWARD, origin.seen or origin.layer, origin.call, origin.slot)
        plain.append(say("seen-at", language, record=record(first), step=origin.step, phase=phase, order=origin.order))
    if len(origin.steps) > 1:
        plain.append(say("in-steps", language, steps=ranges(origin.steps)))
    elif origin.calls > 1:
        plain.append(say("calls", language, count=origin.calls))
    return found + [("", text) for text in plain]


def reasons(origin: Origin, comparison: Comparison, language: str) -> list[Row]:
    """The layer's name in the port, its causes, and the settings that differ and that no cause has named."""
    found: list[Row] = []
    if origin.port_layer != origin.layer:
        found.append(("", f"{say('port-layer', language)}: {printable(display(origin.port_layer))}"))
    if origin.edit is None:
        found += line_rows(origin.line, language)
    elif not origin.edit.setting:
        found += edit_rows(origin.edit, origin.line, language)
    if origin.left:
        values = ", ".join(map(record, origin.left[:LEFT]))
        found.append((say("label-wrong", language), say("edit-left", language, values=values)))
        found += line_rows(origin.left_line, language)
    found += cause_rows(origin, comparison, language)
    if left := untried(origin, language):
        found.append((say("label-left", language), left))
    specs = comparison.specs.get(origin.layer)
    if origin.where == "layer" and specs is not None and differ(*specs):
        cause = likeliest(origin)
        told = set() if cause is None else {*cause.change, cause.facts.get("setting")}
        if any(other.id == KIND and (other is cause or other.confirmed) for other in origin.causes):
            told.add(KIND)
        found += [("", text) for text in settings(*specs, language, told)]
    return found


def ranges(numbers: Sequence[int]) -> str:
    """Whole numbers in order, those that follow each other as "2-5"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def others(family: Family, tolerance: float, language: str, named: Optional[int]) -> list[Row]:
    """The other layers that have the same mistake, by name as far as they are not too many."""
    layers = dict.fromkeys(origin.layer for origin in family.others if origin.layer != family.head.layer)
    if not layers:
        return []
    names = [printable(display(layer)) for layer in layers]
    shown = ", ".join(names[:named])
    if named is not None and len(names) > named:
        shown = say("family-rest", language, layers=shown, count=len(names) - named)
    word = "family" if math.isfinite(family.largest) else "family-open"
    error = figure(family.largest, tolerance)
    found = [(say("label-same", language), say(word, language, count=len(names), error=error, layers=shown))]
    if like := sum(bool(origin.like) for origin in family.others):
        found.append(("", say("family-like", language, count=like)))
    return found


def record(key: Optional[Key]) -> str:
    """A record as tables write it: layer, slot, and the call where it is not the first."""
    if key is None:
        return ""
    return printable(f"{display(key.layer)} {key.slot}" + (f" #{key.call}" if key.call else ""))


def worst_facts(deviation: Deviation, language: str, of: str = "") -> list[str]:
    """The element that is worst by the rule with both values (`of` another record), and how many are not numbers."""
    found = []
    if deviation.worst_values is not None and deviation.worst is not None:
        reference, port = (element(value) for value in deviation.worst_values)
        word = "worst-nonfinite" if deviation.nonfinite else "worst"
        place = f"{of} {index(deviation.worst)}".strip()
        found.append(say(word, language, index=place, reference=reference, port=port))
    if any((*deviation.nan, *deviation.inf)):
        counts = zip(("nan_reference", "nan_port", "inf_reference", "inf_port"), (*deviation.nan, *deviation.inf))
        found.append(say("nonfinite-counts", language, **dict(counts)))
    return found


def statement(origin: Origin, tolerance: float, language: str) -> str:
    """What is wrong here, in one sentence."""
    whole = origin.place is None or None in (origin.place.key, origin.place.port)
    key = None if whole else origin.measured
    slot = origin.slot if key is None else key.slot
    slot = slot if origin.number is None else origin.number[0]
    known: dict[str, object] = {"slot": printable(slot), "off": _off(origin, tolerance, language)}
    if origin.where in STAGES:
        name = record(origin.measured) or printable(f"{display(origin.layer)} {origin.slot}")
        word = origin.where
        if is_lost(origin):
            word = "unrecorded" if origin.place is None else "lost"
        return say(f"origin-{word}", language, **{**known, "slot": name, "count": len(origin.owners)})
    known["input"] = say("nothing-measured", language)
    if origin.input_error is not None:
        known["input"] = say("error", language, value=figure(origin.input_error, tolerance))
    known["ratio"] = _ratio(origin, language)
    if origin.where == "layer" and origin.ratio is not None:
        return say("origin-layer-forced", language, **known)
    if origin.where == "layer" and origin.input_error is None:
        return say("origin-layer-no-input", language, **known)
    if origin.where == "glue":
        before, after = (printable(name) for name in origin.between or ("", ""))
        known["before"] = before or say("own-input", language)
        known["after"] = after or say("own-output", language)
        layer = origin.seen if key is None else key.layer
        if slot.startswith("input") and (layer or after) and (layer or after) != origin.layer:
            known["slot"] = say("slot-of", language, slot=known["slot"], layer=printable(layer or after))
        if origin.ratio is not None:
            return say("origin-glue-forced", language, **known)
    return say(f"origin-{origin.where}", language, **known)


def _ratio(origin: Origin, language: str) -> str:
    """How far beyond rounding, where there is a number."""
    finite = origin.deviation is not None and not origin.deviation.nonfinite and math.isfinite(origin.own_error)
    if origin.ratio is None or not finite:
        return ""
    if origin.ratio >= MANY:
        return say("ratio-many", language)
    whole = origin.ratio * (origin.place.rounding if origin.place is not None else 0.0)
    d = origin.deviation
    if d is not None and math.isclose(whole, max(min(d.rel_l2, d.scaled), 0.1 * d.scaled), rel_tol=1e-3):
        return say("ratio-of-whole", language, count=multiple(origin.ratio), whole=figure(whole))
    return say("ratio", language, count=multiple(origin.ratio))


def _off(origin: Origin, tolerance: float, language: str) -> str:
    """How far off: a number, unless there is none to give."""
    if origin.number is not None:
        _, reference, port = origin.number
        return say("off-number", language, reference=value(reference), port=value(port))
    if origin.deviation is not None and origin.deviation.nonfinite:
        return say("off-nonfinite", language)
    if origin.place is not None and None in (origin.place.key, origin.place.port):
        alone = origin.place.key or origin.place.port
        if alone is None or alone.slot != origin.slot:  # a part of it: a tuple for a tensor
            return say("off-form", language)
        return say("off-missing" if origin.place.port is None else "off-extra", language)
    if origin.deviation is None and not math.isfinite(origin.own_error):
        return say("off-shape", language)
    return say("off-error", language, value=figure(origin.own_error, tolerance))


def settings(reference: LayerSpec, port: LayerSpec, language: str, told: Iterable[object] = ()) -> list[str]:
    """The settings that differ, one sentence each, without those told already; or that none does."""
    absent = say("setting-absent", language)
    pairs = [*differences(reference, port, absent)]
    known = set(told)
    if reference.kind != port.kind and KIND not in known:
        pairs.insert(0, (say("setting-kind", language), reference.kind, port.kind))
    if not pairs and reference.kind == port.kind:
        return [say("settings-same", language)]
    return [
        say("setting", language, name=printable(name), reference=value(mine), port=value(other))
        for name, mine, other in pairs
        if name not in known
    ]


def value(attribute: Attribute) -> str:
    """A setting as people write it."""
    if isinstance(attribute, tuple):
        inner = ", ".join(value(item) for item in attribute)
        return f"({inner},)" if len(attribute) == 1 else f"({inner})"
    if isinstance(attribute, float):
        return exact(attribute) if 0 < abs(attribute) < 0.01 else repr(attribute)
    return printable(str(attribute))
