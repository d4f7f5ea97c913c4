"""A dump, a layer, or a layer on both sides for programs: schema "aligner.show/1" (docs/json.md)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare.mixup import mixed_up
from aligner.compare.one_step import Group, moved, optimizers, settings_of, step_of, updated
from aligner.compare.ulp import max_ulp
from aligner.record import Layer, Phase
from aligner.report.elements import select, worst
from aligner.report.json_ import message_document, mixup_document
from aligner.report.layer_text import View, chosen, entries_of, layer_of

if TYPE_CHECKING:
    from aligner.compare.pairing import Pair
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

SCHEMA = "aligner.show/1"


def dump_document(dump: Dump) -> dict[str, Any]:
    """Header, layers, records and notes; no values."""
    runs = Counter(call.layer for call in dump.calls if call.phase is Phase.FORWARD)
    return {
        "schema": SCHEMA,
        "path": str(dump.path),
        "header": dict(dump.header),
        "complete": dump.complete,
        "recovered": dump.recovered,
        "training": [asdict(one) for one in optimizers(dump)],
        "layers": [{**_layer(layer), "calls": runs[path]} for path, layer in dump.layers.items()],
        "records": [_address(entry) for entry in dump.entries],
        "notes": [{"layer": note.layer, **message_document(note.message, note.facts)} for note in dump.notes],
    }


def step_document(dump: Dump, number: int) -> dict[str, Any]:
    """One step of a training: losses, settings, and the L2 norms of what each parameter is moved by."""
    step = step_of(dump, number)
    return {
        "schema": SCHEMA,
        "path": str(dump.path),
        "step": number,
        "updates": [
            {"optimizer": one.optimizer, "kind": one.kind, "type": one.type, "gradient_norm": one.norm}
            for one in step.updates
        ],
        "losses": list(step.losses),
        "loss_scale": step.seed,
        "groups": _groups(step.groups),
        "parameters": [
            {
                **dict(zip(("layer", "slot"), one.owner)),
                **{name: getattr(one, name) for name in ("gradient", "before", "change")},
            }
            for one in (moved(dump, entry) for entry in updated(dump, number))
        ],
        "records": [_address(entry) for entry in dump.entries if entry.key.step == number],
    }


def _groups(groups: Sequence[Group]) -> list[dict[str, Any]]:
    return [{"settings": dict(one.settings), "parameters": [list(owner) for owner in one.parameters]} for one in groups]


def layer_document(dump: Dump, path: str, view: View) -> dict[str, Any]:
    """One layer with the statistics of each of its records, and the values that were asked for."""
    return {
        "schema": SCHEMA,
        "path": str(dump.path),
        "layer": _layer(layer_of(dump, path)),
        "records": [_record(entry, view) for entry in entries_of(dump, path, view)],
        **({} if view.step is None else {"groups": _groups(settings_of(step_of(dump, view.step), path))}),
    }


def against_document(
    dump: Dump, layer: str, port: Dump, other: str, pairs: Sequence[Pair], view: View, forced: Sequence[Pair] = ()
) -> dict[str, Any]:
    """One layer on both sides, record by record, with the elements that differ most; what it did when forced apart."""
    return {
        "schema": SCHEMA,
        "mixup": mixup_document(mixed_up(dump, port)),
        "reference": {"path": str(dump.path), "layer": _layer(dump.layers[layer])},
        "port": {"path": str(port.path), "layer": _layer(port.layers[other])},
        "pairs": _rows(pairs, view),
        "forced": _rows(forced, view),
    }


def _rows(pairs: Sequence[Pair], view: View) -> list[dict[str, Any]]:
    counterparts = {pair.entry.key: pair.port for pair in pairs if pair.reference is not None}
    rows = []
    for entry in chosen([pair.reference for pair in pairs if pair.reference is not None], view.slots):
        partner = counterparts[entry.key]
        rows.append(
            {
                "reference": _record(entry, view),
                "port": None if partner is None else _record(partner, view),
                "ulp": None if partner is None or entry.shape != partner.shape else max_ulp(entry, partner),
                "worst": _worst(entry, partner, view.worst or 10),
            }
        )
    return rows


def _layer(layer: Layer) -> dict[str, Any]:
    return {
        "layer": layer.path,
        "type": layer.type,
        "kind": layer.spec.kind,
        "settings": dict(layer.spec.attributes),
        "children": layer.children,
        "training": layer.training,
    }


def _address(entry: Entry) -> dict[str, Any]:
    key = entry.key
    return {
        "layer": key.layer,
        "phase": key.phase.value,
        "slot": key.slot,
        "call": key.call,
        "step": key.step,
        "order": entry.order,
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "nbytes": entry.nbytes,
    }


def _record(entry: Entry, view: View) -> dict[str, Any]:
    found = entry.statistics()
    record = {
        **_address(entry),
        "min": found.minimum,
        "max": found.maximum,
        "mean": found.mean,
        "rms": found.rms,
        "nan": found.nan,
        "inf": found.inf,
    }
    if view.values is not None:
        record["values"] = _listed(select(entry.load(), view.values, view.values_text).tolist())
    return record


def _listed(values: Any) -> Any:
    """Nested lists with complex numbers as [real, imaginary]."""
    if isinstance(values, list):
        return [_listed(value) for value in values]
    return [values.real, values.imag] if isinstance(values, complex) else values


def _worst(entry: Entry, other: Optional[Entry], count: int) -> Optional[list[dict[str, Any]]]:
    """None where the two cannot be set side by side."""
    if other is None or entry.shape != other.shape:
        return None
    return [
        {
            "index": list(one.index),
            "reference": _listed(one.reference),
            "port": _listed(one.port),
            "difference": _listed(one.difference),
            "error": one.error,
        }
        for one in worst(entry.load(), other.load(), count)
    ]
