"""The JSON sections of a dump: header, index (of records), layers and calls; to bytes and back.

The index and the calls are tables by column with repeated words kept once, because fifty thousand of them must be
read in a moment. Layers and calls are read only when somebody asks for them. What comes back is checked: a section
may have been written by anybody.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from aligner.dump import names
from aligner.dump.structures import HUGE, structure_from
from aligner.errors import Reason, form_of
from aligner.record import Attribute, Call, Key, Layer, LayerSpec, Note, Phase

Finding = tuple[str, Mapping[str, Any]]
"""A word for the kind of thing that was found out about the net, and plain facts."""

DEEPEST = 200
"""Levels of JSON in a dump. A value that is nested as deep as aligner.structure looks takes half of that, and who walks
through what was read may do so with a call for each level."""

MOST_LEVELS = 1000
"""Levels of layers in layers and of calls in calls: Python's own limit to how deep it calls keeps true nets below."""

LARGEST = 1 << 62
"""No number that says where something stands reaches this."""

VALUES = "values"  # a record holds its values; later formats of a record have other words


class Row(NamedTuple):
    """One record as the index knows it; `size` bytes lie at `offset` of the file."""

    key: Key
    order: int
    dtype: str
    shape: tuple[int, ...]
    offset: int
    size: int
    checksum: int
    form: str


@dataclass
class Content:
    """All of a dump but its data, as it is being written or was found in a journal."""

    header: dict[str, Any]
    layers: dict[str, Layer]
    rows: list[Row]
    calls: list[Call]
    notes: list[Note]
    findings: list[Finding] = field(default_factory=list)


def to_json(value: object) -> bytes:
    """Compact JSON as UTF-8; half characters are spelled out, what JSON has no word for becomes its `str`."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_plain)
    return text.encode("utf-8", "backslashreplace")


def from_json(data: bytes) -> Any:
    """What `to_json` wrote.

    Raises:
        Reason: it is no JSON, or nested too deep.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_int=_PARSE_INT)
    except RecursionError as error:
        raise Reason("why-deep") from error
    except UnicodeDecodeError as error:
        raise Reason("why-not-text") from error
    except json.JSONDecodeError as error:
        raise Reason("why-no-json", error.lineno, error.colno) from error
    except ValueError as error:  # of the number's own digits
        raise Reason("why-digits") from error
    demand(data.count(b"[") + data.count(b"{") <= DEEPEST or _depth(data) <= DEEPEST, "why-deep")
    return value


def _bounded(digits: str) -> int:
    if len(digits) > 400:
        raise Reason("why-digits")
    return int(digits)


# Since 3.9.14 Python itself refuses what it would take hours to read.
_PARSE_INT = None if hasattr(sys, "set_int_max_str_digits") else _bounded
_BUT_BRACKETS = bytes(set(range(256)) - set(b'[]{}"'))


def _depth(data: bytes) -> int:
    """How deep JSON is nested, from its text: at the speed of the processor, unlike a walk through its values."""
    bare = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _BUT_BRACKETS)
    brackets = np.frombuffer(b"".join(bare.split(b'"')[::2]), np.uint8)  # what stands between two texts
    opening = (brackets == ord("[")) | (brackets == ord("{"))
    return int(np.cumsum(np.where(opening, np.int8(1), np.int8(-1)), dtype=np.int64).max(initial=0))


def _plain(value: object) -> object:
    """A JSON value for something else: numpy scalars their number, sets and mappings their items, the rest text."""
    if isinstance(value, Mapping):
        return {str(key): item for key, item in value.items()}
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=str)
    item = getattr(value, "item", None)
    if callable(item) and getattr(value, "ndim", None) == 0:
        plain = item()
        if isinstance(plain, (bool, int, float, str)):
            return plain
    try:
        return str(value)
    except Exception as error:  # a foreign __str__ may raise anything, and must not cost the dump
        return f"<{type(value).__name__}: {type(error).__name__}>"


def plain_header(header: Mapping[str, Any]) -> dict[str, Any]:
    """The header as it will be read back: plain JSON values only, whatever was given."""
    result: dict[str, Any] = {}
    for key, value in header.items():
        try:
            result[str(key)] = from_json(to_json(value))
        except (TypeError, ValueError):  # keys that JSON lacks, values that hold themselves
            result[str(key)] = str(_plain(value))
    return result


class _Table:
    """Words kept once; a word's number is its place."""

    def __init__(self) -> None:
        self._places: dict[Any, int] = {}

    def number(self, word: Any) -> int:
        return self._places.setdefault(word, len(self._places))

    def words(self) -> list[Any]:
        return list(self._places)


def _columns(header: Sequence[str], rows: Iterable[tuple[int, ...]]) -> dict[str, list[int]]:
    columns = list(zip(*rows)) or [()] * len(header)
    return {name: list(column) for name, column in zip(header, columns)}


RECORD_COLUMNS = (
    "step",
    "phase",
    "layer",
    "call",
    "slot",
    "order",
    "dtype",
    "shape",
    "offset",
    "size",
    "checksum",
    "form",
)
_CALL = ("step", "phase", "layer", "number", "first", "last", "inputs", "outputs")


def encode(content: Content) -> dict[str, bytes]:
    """The sections by name."""
    found = {
        "header": to_json(content.header),
        "index": to_json(_index(content.rows, content.notes)),
        "layers": to_json([layer_json(layer) for layer in content.layers.values()]),
        "calls": to_json(_calls(content.calls)),
    }
    if content.findings:
        found["findings"] = to_json([[kind, dict(facts)] for kind, facts in content.findings])
    return found


def layer_json(layer: Layer) -> list[Any]:
    """A layer as a list."""
    spec = layer.spec
    attributes = {names.plain(str(name)): value for name, value in spec.attributes.items()}
    words = (names.plain(word) for word in (layer.path, layer.type, spec.kind))
    return [*words, attributes, layer.children, layer.training]


def _index(rows: Iterable[Row], notes: Iterable[Note]) -> dict[str, Any]:
    phase, layer, slot, dtype, shape, form = (_Table() for _ in range(6))
    numbers = [
        (
            row.key.step,
            phase.number(row.key.phase.value),
            layer.number(row.key.layer),
            row.key.call,
            slot.number(row.key.slot),
            row.order,
            dtype.number(row.dtype),
            shape.number(row.shape),
            row.offset,
            row.size,
            row.checksum,
            form.number(row.form),
        )
        for row in rows
    ]
    tables = {"phase": phase, "layer": layer, "slot": slot, "dtype": dtype, "shape": shape, "form": form}
    return {
        "tables": {name: table.words() for name, table in tables.items()},
        "records": _columns(RECORD_COLUMNS, numbers),
        "notes": [[note.layer, note.message, dict(note.facts)] for note in notes],
    }


def _calls(calls: Iterable[Call]) -> dict[str, Any]:
    phase, layer, structure = _Table(), _Table(), _Table()
    numbers = [
        (
            call.step,
            phase.number(call.phase.value),
            layer.number(call.layer),
            call.number,
            call.first,
            -1 if call.last is None else call.last,
            structure.number(to_json(call.inputs).decode()),
            structure.number(to_json(call.outputs).decode()),
        )
        for call in calls
    ]
    tables = {"phase": phase.words(), "layer": layer.words()}
    structures = [json.loads(text) for text in structure.words()]
    return {"tables": {**tables, "structure": structures}, "calls": _columns(_CALL, numbers)}


# --- Back from JSON. Whatever does not fit raises a Reason.


def demand(good: bool, what: str, *parts: object) -> None:
    """Stop at something that cannot be: a reason's id, and its parts."""
    if not good:
        raise Reason(what, *parts)


def code_of(value: object) -> str:
    """What stands where it should not, as code: the start of a text, a number, of anything else its type."""
    if isinstance(value, str):
        return repr(value[:80])
    return repr(value)[:80] if isinstance(value, int) else f"`{type(value).__name__}`"


def text(value: object) -> str:
    """A word that may be printed."""
    if not isinstance(value, str) or not names.is_plain(value):
        raise Reason("why-no-name", code_of(value))
    return value


def phase_from(word: object) -> Phase:
    """A phase by its word."""
    try:
        return Phase(word)
    except ValueError as error:
        raise Reason("why-no-phase", code_of(word)) from error


def path(value: object) -> str:
    """A layer's path. No net nests a thousand levels, and who asks for all layers around one takes a step for each."""
    found = text(value)
    demand(found.count(".") <= MOST_LEVELS, "why-inside-layers")
    return found


def spelled(value: Any) -> Any:
    """JSON from a dump with what would write into a terminal spelled out in every text."""
    if isinstance(value, str):
        return names.plain(value)
    if isinstance(value, int):
        demand(abs(value) < HUGE, "why-number-bounds")
    if isinstance(value, list):
        return [spelled(item) for item in value]
    if isinstance(value, dict):
        return {names.plain(key): spelled(item) for key, item in value.items()}
    return value


def layers_from(value: object) -> dict[str, Layer]:
    """The layers of the layers section, by path."""
    demand(isinstance(value, list), "why-no-list", "layers")
    layers = [layer_from(item) for item in value]  # type: ignore[attr-defined]  # demanded to be a list
    return {layer.path: layer for layer in layers}


def layer_from(item: Any) -> Layer:
    """A layer from its list."""
    demand(isinstance(item, list) and len(item) == 6 and isinstance(item[3], dict), "why-bad-layer")
    name, kind_of, kind, attributes, children, training = item
    spec = LayerSpec(text(kind), {text(word): attribute_from(a) for word, a in attributes.items()})
    return Layer(path(name), text(kind_of), spec, bool(children), bool(training))


def attribute_from(value: Any) -> Attribute:
    """A setting: lists were tuples."""
    if isinstance(value, list):
        return tuple(attribute_from(item) for item in value)
    demand(not isinstance(value, dict), "why-bad-setting")
    attribute: Attribute = spelled(value)
    return attribute


def note_from(item: Any) -> Note:
    """A note from its list."""
    demand(isinstance(item, list) and len(item) == 3 and isinstance(item[2], dict), "why-bad-note")
    return Note(text(item[0]), text(item[1]), spelled(item[2]))


def findings_from(value: object) -> list[Finding]:
    """The findings of the findings section."""
    demand(isinstance(value, list), "why-no-list", "findings")
    return [finding_from(item) for item in value]  # type: ignore[attr-defined]  # demanded to be a list


def finding_from(item: Any) -> Finding:
    """A finding from its list."""
    demand(isinstance(item, list) and len(item) == 2 and isinstance(item[1], dict), "why-bad-finding")
    return text(item[0]), spelled(item[1])


def calls_from(value: Any) -> list[Call]:
    """The calls of the calls section."""
    try:
        tables, columns = value["tables"], value["calls"]
        phases = [phase_from(word) for word in tables["phase"]]
        layers = [path(word) for word in tables["layer"]]
        structures = [structure_from(item) for item in tables["structure"]]
        rows = zip(*(columns[name] for name in _CALL))
        demand(len({len(columns[name]) for name in _CALL}) == 1, "why-call-columns")
        return nested(
            call_from(step, phases[phase], layers[layer], number, first, last, structures[given], structures[made])
            for step, phase, layer, number, first, last, given, made in rows
        )
    except (KeyError, TypeError, IndexError) as error:
        raise Reason("why-bad-calls", form_of(error)) from error


def nested(calls: Iterable[Call]) -> list[Call]:
    """The calls in the order they began, none inside too many others."""
    found = sorted(calls, key=lambda call: call.first)
    ends: dict[tuple[int, Phase], list[int]] = {}
    for call in found:
        around = ends.setdefault((call.step, call.phase), [])
        while around and around[-1] < call.first:
            around.pop()
        if call.last is not None:
            around.append(call.last)
        demand(len(around) <= MOST_LEVELS, "why-inside-calls")
    return found


def call_from(
    step: Any, phase: Phase, layer: str, number: Any, first: Any, last: Any, inputs: object, outputs: object
) -> Call:
    """A call with its numbers checked; `last` is -1 where the layer raised."""
    whole = all(type(n) is int and -1 <= n < LARGEST for n in (step, number, first, last))
    demand(whole and min(step, number, first) >= 0, "why-call-number")
    demand(last == -1 or last >= first, "why-call-ends")
    return Call(step, phase, layer, number, first, None if last < 0 else last, inputs, outputs)
