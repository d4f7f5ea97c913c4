"""Two checkpoints against each other for programs: schema "aligner.weights/1" (docs/json.md). Never translated."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, TextIO

from aligner.explain.catalogue import sentences, spoken
from aligner.report.json_ import dumps
from aligner.weights.comparison import Alone, Row, Side, WeightComparison
from aligner.weights.stored import Weight

SCHEMA = "aligner.weights/1"


def write(comparison: WeightComparison, out: TextIO) -> None:
    """Write the document and a newline."""
    out.write(dumps(document(comparison)) + "\n")


def document(comparison: WeightComparison) -> dict[str, Any]:
    """Everything the comparison knows."""
    return {
        "schema": SCHEMA,
        "outcome": comparison.outcome,
        "tolerance": comparison.tolerance,
        "rule": comparison.rule,
        "reference": _side(comparison.reference),
        "port": _side(comparison.port),
        "counts": {**dict.fromkeys(("equal", "rounding", "close", "different"), 0), **comparison.counts},
        "paired": dict(comparison.by),
        "prefixes": list(comparison.prefixes),
        "alone": [
            {"side": side, **_alone(one)} for side, rows in zip(("reference", "port"), comparison.alone) for one in rows
        ],
        "counters": list(comparison.counters),
        "pairs": [_row(row) for row in comparison.rows],
    }


def _side(side: Side) -> dict[str, Any]:
    return {**asdict(side), "left": [asdict(entry) for entry in side.left]}


def _alone(one: Alone) -> dict[str, Any]:
    return {**asdict(one), "fails": one.fails}


def _row(row: Row) -> dict[str, Any]:
    deviation = row.deviation
    figures = {} if deviation is None else {"max_abs": deviation.max_abs, "rel_l2": deviation.rel_l2}
    title = sentences(row.cause, row.facts, "en")[0] if row.cause else None
    return {
        "reference": _weight(row.pair.reference),
        "port": _weight(row.pair.port),
        "by": row.pair.by,
        "confidence": row.pair.confidence,
        "outcome": row.outcome,
        "rounded_to": row.word or None,
        "max_abs": None,
        "rel_l2": None,
        **figures,
        "nonfinite": None if deviation is None else deviation.nonfinite,
        "cause": {"id": row.cause, "facts": spoken(row.facts, "en"), "summary": title} if row.cause else None,
    }


def _weight(weight: Weight) -> dict[str, Any]:
    return {"name": weight.name, "dtype": weight.dtype, "shape": list(weight.shape)}
