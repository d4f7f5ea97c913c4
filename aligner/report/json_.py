"""The report for programs: one JSON document, schema "aligner.compare/1" (docs/json.md). Never translated.

NaN and infinities are the strings "nan", "inf" and "-inf": JSON has no numbers for them, and null means "not measured".
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Optional, TextIO

from aligner.compare.casts import Cast
from aligner.compare.deviation import Deviation
from aligner.compare.mixup import Mixup
from aligner.compare.sides import elsewhere, not_compared
from aligner.compare.steps import StepRow
from aligner.compare.verdict import Comparison, Origin, Side, Verdict
from aligner.explain.catalogue import sentences, spoken
from aligner.explain.edit import Edit
from aligner.explain.line import Fork, Spot
from aligner.explain.suspect import Cause
from aligner.record import Key, Phase, Scalar
from aligner.report.families import first_of_kind
from aligner.report.words import told

SCHEMA = "aligner.compare/1"


def write(comparison: Comparison, out: TextIO) -> None:
    """Write the document and a newline, the pairs one by one: as a whole they would take more than the dumps."""
    for piece in _pieces({**_head(comparison), "pairs": _pairs(comparison)}):
        out.write(piece)
    out.write("\n")


def dumps(document: Mapping[str, Any]) -> str:
    """The text of any of our documents: a key on each line, and of lists an item on each line.

    ASCII only, so that it survives every locale; NaN and Inf as strings. Small enough for 50,000 records, and
    readable with grep.
    """
    return "".join(_pieces(document))


def _pieces(document: Mapping[str, Any]) -> Iterator[str]:
    mark = "{\n "
    for key, value in document.items():
        yield f"{mark}{_compact(key)}: "
        yield from _listed(map(plain, value)) if isinstance(value, Iterator) else _value(plain(value))
        mark = ",\n "
    yield "\n}"


def _value(value: Any) -> Iterator[str]:
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        yield from _listed(value)
    else:
        yield _compact(value)


def _listed(items: Iterable[Any]) -> Iterator[str]:
    """A list with an item on each line."""
    mark = "[\n  "
    for item in items:
        yield mark + _compact(item)
        mark = ",\n  "
    yield "[]" if mark == "[\n  " else "\n ]"


def _compact(value: Any) -> str:
    return json.dumps(value, allow_nan=False)


def plain(value: Any) -> Any:
    """The value in what JSON has: numbers that it lacks become strings, tuples lists, numpy scalars numbers."""
    if value.__class__ in (str, int, bool, type(None)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else "nan" if value != value else "inf" if value > 0 else "-inf"
    if isinstance(value, (dict, Mapping)):  # a dict is told at once
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if value is None or isinstance(value, (str, bool, int)):
        return value
    item = getattr(value, "item", None)
    return plain(item()) if callable(item) else str(value)


def document(comparison: Comparison) -> dict[str, Any]:
    """Everything a comparison knows."""
    return {**_head(comparison), "pairs": list(_pairs(comparison))}


def _pairs(comparison: Comparison) -> Iterator[dict[str, Any]]:
    ports = {pair.reference: pair.port for pair in comparison.layers}
    return (_pair(verdict, ports) for verdict in comparison.verdicts)


def _head(comparison: Comparison) -> dict[str, Any]:
    """All but the pairs."""
    return {
        "schema": SCHEMA,
        "outcome": comparison.outcome,
        "mixup": mixup_document(comparison.mixup),
        "stopped": [dataclasses.asdict(stop) for stop in comparison.stops],
        "tolerance": comparison.tolerance,
        "rule": comparison.rule,
        "reference": _side(comparison.reference),
        "port": _side(comparison.port),
        "first_divergence": None if comparison.first is None else _first(comparison.first),
        "checked": comparison.checked,
        "held": {"calls": comparison.held, "left": list(comparison.left)},
        "origins": _origins(comparison.origins, comparison),
        "suspects": _origins(comparison.suspects, comparison),
        "casts": [_cast(cast) for cast in comparison.casts],
        "steps": [_step(row) for row in comparison.steps],
        "resumed": None if comparison.resumed is None else asdict(comparison.resumed),
        "warnings": [message_document(message, facts) for message, facts in comparison.warnings],
        "counts": dict(comparison.counts),
        "paired": dict(Counter(pair.by for pair in comparison.layers)),
        "elsewhere": asdict(elsewhere(comparison.verdicts)),
        "not_compared": [asdict(alone) for alone in not_compared(comparison.verdicts)],
        "layers": [
            {"reference": pair.reference, "port": pair.port, "confidence": pair.confidence, "by": pair.by}
            for pair in comparison.layers
        ],
    }


def mixup_document(mixup: Optional[Mixup]) -> Optional[dict[str, Any]]:
    """How the dumps were mixed up, or None."""
    return None if mixup is None else {**message_document(mixup.message, mixup.facts), "void": mixup.void}


def _side(header: Mapping[str, Any]) -> dict[str, Any]:
    """A dump's header without its tables, and with the framework's version under the short name as well."""
    tables = ("parameters", "mapping", "reformed", "combined", "lineage", "stopped", "map")
    plain = {name: value for name, value in header.items() if name not in tables}
    return {"path": header.get("path"), "version": header.get("framework_version"), **plain}


def _address(verdict: Verdict) -> dict[str, Any]:
    return _key(verdict.key)


def _key(key: Key) -> dict[str, Any]:
    return {"layer": key.layer, "phase": key.phase.value, "slot": key.slot, "call": key.call, "step": key.step}


def _figures(deviation: Optional[Deviation]) -> dict[str, Any]:
    if deviation is None:
        return {"max_abs": None, "rel_l2": None, "cosine": None, "finite": None}
    worst = None
    if deviation.worst is not None and deviation.worst_values is not None:
        reference, port = deviation.worst_values
        worst = {"index": deviation.worst, "reference": reference, "port": port}
    nothing = deviation.finite == 0 and not deviation.nonfinite  # figures of no number at all would read as agreement
    return {
        "max_abs": None if nothing else deviation.max_abs,
        "rel_l2": None if nothing else deviation.rel_l2,
        "cosine": None if nothing else deviation.cosine,
        "finite": deviation.finite,
        "mismatched": deviation.mismatched,
        "total": deviation.total,
        "rms": deviation.rms,
        "nan": deviation.nan,
        "inf": deviation.inf,
        "nonfinite": deviation.nonfinite,
        "worst": worst,
    }


def _first(verdict: Verdict) -> dict[str, Any]:
    side = verdict.reference or verdict.port
    order = None if side is None or verdict.key.phase is Phase.PARAMETER else side.order
    return {**_address(verdict), "order": order, "outcome": verdict.outcome.value, "error": verdict.error} | _figures(
        verdict.deviation
    )


def _cast(cast: Cast) -> dict[str, Any]:
    return {
        "layer": cast.layer,
        "port_layer": cast.port_layer,
        "kind": cast.kind,
        "part": cast.part,
        "reference": {"dtype": cast.reference.dtype, "by": cast.reference.by},
        "port": {"dtype": cast.port.dtype, "by": cast.port.by},
        "exception": cast.exception,
    }


def _step(row: StepRow) -> dict[str, Any]:
    sides = {"loss": row.loss, "gradient_norm": row.norm, "learning_rate": row.rates}
    return {
        "step": row.step,
        "same_data": row.same_data,
        **{name: dict(zip(("reference", "port"), values)) for name, values in sides.items()},
        "skipped": dict(zip(("reference", "port"), row.skipped)),
        "first": None if row.first is None else {**_key(row.first), "origin": row.origin, "stage": row.stage},
        "wrong": row.wrong,
        "inherited": row.inherited,
    }


def _origins(origins: Sequence[Origin], comparison: Comparison) -> list[dict[str, Any]]:
    """All of them, each with the index of the first one of its family."""
    heads = first_of_kind(origins, comparison.specs)
    return [{**_origin(origin, comparison), "family": head} for origin, head in zip(origins, heads)]


def _origin(origin: Origin, comparison: Comparison) -> dict[str, Any]:
    specs = comparison.specs.get(origin.layer)
    return {
        "layer": origin.layer,
        "port_layer": origin.port_layer,
        "kind": origin.kind,
        "where": origin.where,
        "between": origin.between,
        "phase": origin.phase,
        "step": origin.step,
        "call": origin.call,
        "calls": origin.calls,
        "slot": origin.slot,
        "order": origin.order,
        "seen": origin.seen or origin.layer,
        "steps": list(origin.steps),
        "parameters": [{"layer": layer, "role": role} for layer, role in origin.owners],
        "measured": None if origin.measured is None else _key(origin.measured),
        "own_error": origin.own_error,
        "input_error": origin.input_error,
        "ratio": origin.ratio,
        "cast": origin.cast or None,
        "number": None if origin.number is None else dict(zip(("slot", "reference", "port"), origin.number)),
        "line": None if origin.line is None else _line(origin.line),
        "edit": None if origin.edit is None else _edit(origin.edit),
        "left": [_key(key) for key in origin.left],
        "left_line": None if origin.left_line is None else _line(origin.left_line),
        "causes": [_cause(cause) for cause in origin.causes],
        "untried": list(origin.untried),
        "like": origin.like or None,
        "settings": None if specs is None else [{"kind": spec.kind, **spec.attributes} for spec in specs],
        **_figures(origin.deviation),
    }


def _line(fork: Fork) -> dict[str, Any]:
    ours, theirs = fork.arguments or (None, None)
    return {
        "kind": fork.kind,
        "sure": fork.sure,
        "port": _spot(fork.port),
        "reference": _spot(fork.reference),
        "until": {"port": _spot(fork.until[0]), "reference": _spot(fork.until[1])} if not fork.sure else None,
        "argument": None if fork.arguments is None else {"reference": ours, "port": theirs},
    }


def _edit(edit: Edit) -> dict[str, Any]:
    return {
        "confirmed": True,
        "error_before": edit.before,
        "error_after": edit.after,
        "lines": [asdict(hunk) for hunk in edit.hunks],
        "only_here": list(edit.broken),
        "not_run": list(edit.unseen),
        "sizes": list(edit.sizes),
        "like": edit.like,
    }


def _spot(spot: Optional[Spot]) -> Optional[dict[str, Any]]:
    if spot is None:
        return None
    return {"file": spot.file, "line": spot.line, "text": spot.text, "operation": spot.operation}


def _cause(cause: Cause) -> dict[str, Any]:
    summary, evidence, fix = sentences(cause.id, cause.facts, "en")
    return {
        "id": cause.id,
        "confirmed": cause.confirmed,
        "summary": summary,
        "evidence": evidence,
        "fix": fix,
        "error_before": cause.error_before,
        "error_after": cause.error_after,
        "change": dict(cause.change),
        "facts": spoken(cause.facts, "en"),
    }


def _pair(verdict: Verdict, ports: Mapping[str, str]) -> dict[str, Any]:
    return {
        **_address(verdict),
        "kind": verdict.kind,
        "outcome": verdict.outcome.value,
        "error": verdict.error,
        **_figures(verdict.deviation),
        "ratio": verdict.ratio,
        "origin": verdict.origin,
        "reference": _record(verdict.reference),
        "port": _record(verdict.port),
        "reason": message_document(verdict.reason, verdict.facts) if verdict.reason else None,
    }


def _record(side: Optional[Side]) -> Optional[dict[str, Any]]:
    if side is None:
        return None
    return {
        "layer": side.key.layer,
        "slot": side.key.slot,
        "call": side.key.call,
        "order": side.order,
        "type": side.type,
        "dtype": side.dtype,
        "shape": side.shape,
    }


def message_document(message: str, facts: Mapping[str, Scalar]) -> dict[str, Any]:
    """A message by its id, with its facts and its English text; the id and the facts are what programs should read."""
    return {"id": message, "facts": dict(facts), "text": told(message, facts, "en")}
