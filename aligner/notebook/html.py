"""The static views that Jupyter shows: of a comparison and its parts, and of a dump and its parts.

At most 20 rows each; what is left out is counted. The language is that of `aligner.messages.language()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Optional

from aligner import messages
from aligner.compare.cover import ONE_SIDED
from aligner.compare.verdict import Comparison, Outcome, Verdict
from aligner.notebook.curve import curve
from aligner.notebook.markup import badge, block, code, facts, line, listed, quiet, table, text
from aligner.notebook.step_curve import step_curve
from aligner.record import Phase, display
from aligner.report import origins
from aligner.report.answer import answer
from aligner.report.casts import cast_rows
from aligner.report.causes import Row
from aligner.report.cautions import below, plain_warnings
from aligner.report.compared import covered_line, dump_line, layers_line, origins_line, pairs_line
from aligner.report.dump_text import contents, settings_text, shape_text
from aligner.report.families import Family, families
from aligner.report.figures import exact, figure
from aligner.report.stops import not_run
from aligner.report.words import say, told

if TYPE_CHECKING:
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump
    from aligner.dump.view import LayerView
    from aligner.notebook.views import LayerComparison, TensorPair, Worst

ROWS = 20
ORIGINS = 3


def comparison_html(comparison: Comparison) -> str:
    """The answer, the origins, the curves, the first records over the tolerance, and what was compared."""
    language = messages.language()
    parts = [line(badge(say(comparison.outcome, language), comparison.outcome), text(answer(comparison, language)))]
    parts.append(_casts(comparison, language))
    mistakes = families(comparison.origins, comparison.specs)
    parts += [_origin(family, comparison, language) for family in mistakes[:ORIGINS]]
    if len(mistakes) > ORIGINS:
        more = say("rows-more", language, count=len(mistakes) - ORIGINS)
        parts.append(quiet(text(f"{say('origin', language)}: {more}")))
    parts += [step_curve(comparison.steps, language), curve(comparison, language), _failing(comparison, language)]
    parts += [_warnings(comparison, language), _compared(comparison, language)]
    return block(*parts)


def _casts(comparison: Comparison, language: str) -> str:
    """What layers compute in, where that is not float32 on both sides."""
    found = cast_rows(comparison, language, ROWS)
    return line(f"<b>{text(say('casts', language))}</b>") + _rows(found) if found else ""


def _origin(family: Family, comparison: Comparison, language: str) -> str:
    head = line(badge(say("origin", language), "origin"), f"<b>{text(origins.headline(family.head, language))}</b>")
    return head + _rows(origins.rows(family, comparison, language))


def _rows(found: Iterable[Row]) -> str:
    """Labels in bold before their sentences."""
    return listed(f"<b>{text(label)}</b> {text(said)}" if label else text(said) for label, said in found)


def _suspect(family: Family, comparison: Comparison, language: str) -> str:
    """What is wrong within the tolerance, told like an origin."""
    found = origins.reasons(family.head, comparison, language)
    found += origins.others(family, comparison.tolerance, language, origins.NAMED)
    found.append(("", say("below-strict", language)))
    return line(text(below(family, comparison, language))) + _rows(found)


def _failing(comparison: Comparison, language: str) -> str:
    failing = [v for v in comparison.verdicts if v.outcome.fails and v.reason != ONE_SIDED]
    if not failing or (comparison.mixup is not None and comparison.mixup.void):
        return ""
    titles = [say(f"column-{name}", language) for name in ("name", "outcome", "error", "max")]
    rows = [
        [
            f"{code(display(verdict.key.layer))} {text(verdict.key.slot)}{_which(verdict, language)}",
            _outcome(verdict.outcome, language),
            text(figure(verdict.error, comparison.tolerance)),
            text(figure(verdict.deviation.max_abs if verdict.deviation is not None else None)),
        ]
        for verdict in failing[:ROWS]
    ]
    return table(titles, rows, left=2) + _more(len(failing), language)


def _which(verdict: Verdict, language: str) -> str:
    """Phase and call, where they are not the usual ones."""
    shown = f" #{verdict.key.call}" if verdict.key.call else ""
    if verdict.key.phase is not Phase.FORWARD:
        shown += f" ({say('phase-' + verdict.key.phase.value, language)})"
    return text(shown)


def _outcome(outcome: Outcome, language: str) -> str:
    return badge(say(f"outcome-{outcome.value}", language), outcome.value)


def _more(total: int, language: str) -> str:
    return quiet(text(say("rows-more", language, count=total - ROWS))) if total > ROWS else ""


def _warnings(comparison: Comparison, language: str) -> str:
    if not comparison.warnings:
        return ""
    suspected = families(comparison.suspects, comparison.specs)
    others = list(plain_warnings(comparison))
    parts = [line(f"<b>{text(say('warnings', language))}</b>")]
    parts += [_suspect(family, comparison, language) for family in suspected[:ORIGINS]]
    if len(suspected) > ORIGINS:
        parts.append(quiet(text(say("rows-more", language, count=len(suspected) - ORIGINS))))
    if others:
        parts.append(facts(told(name, known, language) for name, known in others[:ROWS]))
    return "".join(parts) + _more(len(others), language)


def _compared(comparison: Comparison, language: str) -> str:
    return quiet(
        f"{text(say('reference', language))}: {text(dump_line(comparison.reference, language))}",
        f"{text(say('port', language))}: {text(dump_line(comparison.port, language))}",
        f"{text(say('pairs', language))}: {text(pairs_line(comparison, language))}",
        f"{text(say('layers', language))}: {text(layers_line(comparison.layers, language))}",
        *(
            [f"{text(say('covered', language))}: {text(covered_line(comparison, language))}"]
            if comparison.counts.get("covered")
            else []
        ),
        *(f"{text(say('label-not-run', language))}: {text(line)}" for line in not_run(comparison, language)),
        f"{text(say('origins-from', language))}: {text(origins_line(comparison, language))}",
        text(say(f"rule-{comparison.rule}", language, tolerance=exact(comparison.tolerance))),
    )


def layer_html(layer: LayerComparison) -> str:
    """The layer's outcome, what is known if it is an origin, and each of its pairs."""
    language = messages.language()
    comparison = layer.comparison
    parts = [line(_outcome(layer.outcome, language), code(display(layer.path)), f"({text(layer.kind)})")]
    if layer.port_path != layer.path:
        parts.append(quiet(f"{text(say('port-layer', language))}: {code(display(layer.port_path))}"))
    if layer.origin is not None:
        parts.append(_rows(origins.rows(Family(layer.origin, ()), comparison, language)))
    titles = [say(f"column-{name}", language) for name in ("slot", "outcome", "shape", "error", "max")]
    rows = []
    for pair in layer.pairs[:ROWS]:
        side = pair.verdict.reference or pair.verdict.port
        rows.append(
            [
                f"{text(pair.key.slot)}{_which(pair.verdict, language)}",
                _outcome(pair.outcome, language),
                text(f"{side.dtype} {shape_text(side.shape)}" if side is not None else "-"),
                text(figure(pair.error, comparison.tolerance)),
                text(figure(pair.deviation.max_abs if pair.deviation is not None else None)),
            ]
        )
    return block(*parts, table(titles, rows, left=3), _more(len(layer.pairs), language))


def pair_html(pair: TensorPair) -> str:
    """The pair's figures, all of them; values are read only by `worst` and the arrays."""
    language = messages.language()
    parts = [line(_outcome(pair.outcome, language), code(pair.name), text(_which(pair.verdict, language)))]
    deviation = pair.deviation
    sides = [pair.verdict.reference, pair.verdict.port]
    for which, side in zip(("reference", "port"), sides):
        what = "-" if side is None else f"{side.dtype} {shape_text(side.shape)}, {side.type}"
        parts.append(quiet(f"{text(say(which, language))}: {text(what)}"))
    if deviation is None:
        reason = pair.verdict.reason
        why = told(reason, pair.verdict.facts, language) if reason else say("nothing-measured", language)
        return block(*parts, line(text(why)))
    rows = [
        [text(say("column-error", language)), text(figure(pair.error, pair.tolerance))],
        [text(say("column-max", language)), text(figure(deviation.max_abs))],
        [text(say("rel-l2", language)), text(figure(deviation.rel_l2))],
        [text(say("cosine", language)), text(f"{deviation.cosine:.9g}")],
    ]
    shown = [say("mismatched", language, count=deviation.mismatched, total=deviation.total)]
    shown += origins.worst_facts(deviation, language)
    head = ["", f"{say('curve-tolerance', language)} {exact(pair.tolerance)}"]
    return block(*parts, table(head, rows), facts(shown))


def worst_html(worst: Worst) -> str:
    """The elements that differ most."""
    language = messages.language()
    titles, *rows = worst.rows(language)
    head = line(text(say("worst-elements", language, slot=worst.name)))
    if not rows:
        return block(head, line(text(say("equal-values", language))))
    shown = table(titles, [[code(cell) for cell in row] for row in rows[:ROWS]])
    return block(head, shown, _more(len(rows), language))


def dump_html(dump: Dump) -> str:
    """What the dump is, and its layers."""
    language = messages.language()
    state = _state(dump, language)
    parts = [
        line(f"<b>{text(say('dump', language))}</b>", text(dump_line({**dump.header, "path": dump.path}, language))),
        line(text(contents(dump, language))),
        line(badge(state, "inherited")) if state else "",
    ]
    titles = [say(f"column-{name}", language) for name in ("name", "kind")]
    layers = list(dump.layers.values())
    rows = [[code(display(layer.path)), _spec(layer.spec.kind, settings_text(layer.spec))] for layer in layers[:ROWS]]
    parts += [table(titles, rows, left=2) if rows else "", _more(len(layers), language)]
    notes = [told(n.message, {"layer": display(n.layer), **n.facts}, language) for n in dump.notes[:ROWS]]
    if notes:
        parts += [line(f"<b>{text(say('notes', language))}</b>"), facts(notes), _more(len(dump.notes), language)]
    return block(*parts)


def _state(dump: Dump, language: str) -> Optional[str]:
    if dump.recovered:
        return say("recovered", language)
    return None if dump.complete else say("not-complete", language)


def _spec(kind: str, settings: str) -> str:
    return f"{text(kind)} {code(settings)}" if settings else text(kind)


def layer_view_html(view: LayerView) -> str:
    """A layer's settings and its records; no values are read."""
    language = messages.language()
    mode = say("train" if view.training else "eval", language)
    parts = [
        line(f"<b>{code(display(view.path))}</b>", text(view.type), text(mode)),
        line(_spec(view.spec.kind, settings_text(view.spec))),
        _entries(view.entries, language),
    ]
    return block(*parts)


def _entries(entries: Sequence[Entry], language: str) -> str:
    titles = [say(f"column-{name}", language) for name in ("slot", "call", "dtype", "shape")]
    rows = []
    for entry in entries[:ROWS]:
        phase = say(f"phase-{entry.key.phase.value}", language)
        where = phase if entry.key.phase is Phase.PARAMETER else f"{phase} #{entry.key.call}"
        rows.append([code(entry.key.slot), text(where), text(entry.dtype), text(shape_text(entry.shape))])
    return (table(titles, rows, left=4) if rows else "") + _more(len(entries), language)


def entry_html(entry: Entry) -> str:
    """One record with its statistics: its values are read for them, piece by piece."""
    language = messages.language()
    found = entry.statistics()
    names = ("min", "mean", "largest", "rms")
    figures = (found.minimum, found.mean, found.maximum, found.rms)
    row = [text("-" if number != number else f"{number:.6g}") for number in figures]
    head = line(code(display(entry.key.layer)), text(entry.key.slot), text(f"{entry.dtype} {shape_text(entry.shape)}"))
    special = text(say("nan-inf", language, nan=found.nan, inf=found.inf)) if found.nan or found.inf else ""
    return block(head, table([say(f"column-{name}", language) for name in names], [row], left=0), quiet(special))
