"""From a wrong layer of a comparison to all that it takes to run it by itself, out of the two dumps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Optional

from aligner.compare.net import is_input
from aligner.compare.verdict import Comparison, Origin, Side
from aligner.dtypes import DTYPES
from aligner.errors import Reason, UsageError
from aligner.explain.lines import FRAMEWORK
from aligner.findings import EDIT, OPERATION
from aligner.programs.repro import Repro, Tensor
from aligner.record import Call, Key, Phase, display

if TYPE_CHECKING:
    from aligner.dump.entry import Entry
    from aligner.dump.reader import Dump

LAYER = "layer"
"""The word for findings that tell how a layer is built."""

Sides = tuple[Side, Side]


def wrong_layers(comparison: Comparison) -> list[Origin]:
    """The layers that are wrong by themselves, or use an operation that is; those below the tolerance as well."""
    places = (*comparison.origins, *comparison.suspects)
    return [o for o in places if o.where == "layer" or any(cause.id == FRAMEWORK for cause in o.causes)]


def reproduction(
    comparison: Comparison, layer: str, reference: Dump, port: Dump, origin: Optional[Origin] = None
) -> Repro:
    """The call of `layer` (the reference's path) in which it is wrong, else its first one.

    Raises:
        UsageError: the port's layer never ran, or its inputs were not recorded.
    """
    if origin is not None and any(cause.id == FRAMEWORK for cause in origin.causes):
        made = _operation(layer, reference, port)
        if made is not None or origin.where != "layer":
            return _found(made, layer)
    pairs = _call_pairs(comparison, layer, None if origin is None or origin.place is None else origin.place.port)
    if not pairs:
        raise UsageError("repro-nothing", layer=display(layer))
    key = pairs[0][1].key
    call = next((c for c in port.calls if _address(c) == key[:4]), None)
    if call is None:
        raise UsageError("repro-nothing", layer=display(layer))
    known = port.layers.get(key.layer)
    python, reason = _building(port, key.layer)
    return Repro(
        layer=layer,
        kind=known.spec.kind if known is not None else "",
        framework=str(port.header.get("framework", "")),
        version=str(port.header.get("framework_version", "")),
        python=python,
        reason=reason,
        arguments=call.inputs,
        outputs=call.outputs,
        training=known.training if known is not None else False,
        given=dict(_given(pairs, call, reference, port)),
        expected=dict(_expected(pairs, reference, port)),
        parameters=dict(_parameters(port, key.layer)),
    )


def _found(made: Optional[Repro], layer: str) -> Repro:
    if made is None:
        raise UsageError("repro-operation", layer=display(layer))
    return made


def _operation(layer: str, reference: Dump, port: Dump) -> Optional[Repro]:
    """The call of a framework's operation, in code of this layer, that makes another value than the reference's."""
    for kind, facts in port.findings:
        told = facts.get("framework") if kind == EDIT and facts.get("layer") == layer else None
        if isinstance(told, Mapping) and "call" in told:
            try:
                return _called(layer, told["call"], reference, port)
            except (LookupError, TypeError, ValueError):
                return None
    return None


def _called(layer: str, call: Any, reference: Dump, port: Dump) -> Optional[Repro]:
    """Out of a finding, which may be damaged."""
    step, path, number = call["at"]
    given = {}
    for slot in _slots(call["arguments"]):
        entry = port.find(Key(step, Phase.FORCED, path, number, f"{OPERATION}{slot}"))
        if entry is None:
            return None
        given[slot] = _tensor(entry, None)
    at, ours, times, slot = call["expected"]
    expected = reference.find(Key(at, Phase.FORWARD, ours, times, slot))
    made = call["made"]
    if expected is None or made not in _slots(call["outputs"]):
        return None
    framework, version = (str(port.header.get(word, "")) for word in ("framework", "framework_version"))
    name = str(call["name"])
    return Repro(
        layer=layer,
        kind=name,
        framework=framework,
        version=version,
        python=None,
        reason="",
        arguments=call["arguments"],
        outputs=call["outputs"],
        training=False,
        given=given,
        expected={made: _tensor(expected, None)},
        operation=name,
    )


def _address(call: Call) -> tuple[int, Phase, str, int]:
    return call.step, call.phase, call.layer, call.number


def _call_pairs(comparison: Comparison, layer: str, port: Optional[Key]) -> list[Sides]:
    """The records of one forward call of the layer that have a counterpart; outputs must be among them."""
    found: dict[tuple[object, ...], list[Sides]] = {}
    for verdict in comparison.verdicts:
        one, other = verdict.reference, verdict.port
        if one is not None and other is not None and one.key.layer == layer and one.key.phase is Phase.FORWARD:
            found.setdefault(other.key[:4], []).append((one, other))
    if port is not None and port[:4] in found:
        return found[port[:4]]
    return next((pairs for pairs in found.values() if not all(is_input(o.key.slot) for _, o in pairs)), [])


def _building(port: Dump, layer: str) -> tuple[Optional[str], str]:
    """The Python that builds the layer, or why there is none."""
    for kind, facts in port.findings:
        if kind == LAYER and facts.get("layer") == layer:
            python = facts.get("python")
            return (None if python is None else str(python)), str(facts.get("reason", ""))
    known = port.layers.get(layer)
    settings = {} if known is None else {known.spec.kind: dict(known.spec.attributes)}
    return None, Reason("why-settings-only", settings).told


def _given(pairs: list[Sides], call: Call, reference: Dump, port: Dump) -> Iterator[tuple[str, Tensor]]:
    """What goes in: the reference's values in the port's form, or the port's own where the reference has none."""
    partners = {other.key.slot: one.key for one, other in pairs}
    for slot in _slots(call.inputs):
        own = port.find(Key(call.step, call.phase, call.layer, call.number, slot))
        wanted = reference.find(partners[slot]) if slot in partners else None
        entry = wanted or own
        if entry is None:
            continue
        if own is not None and DTYPES[own.dtype].exact != DTYPES[entry.dtype].exact:
            entry = own
        yield slot, _tensor(entry, own)


def _slots(structure: object) -> Iterator[str]:
    """The tensors of a structure."""
    if isinstance(structure, Mapping):
        if isinstance(structure.get("tensor"), str):
            yield structure["tensor"]
        for part in structure.values():
            yield from _slots(part)
    elif isinstance(structure, (list, tuple)):
        for part in structure:
            yield from _slots(part)


def _expected(pairs: list[Sides], reference: Dump, port: Dump) -> Iterator[tuple[str, Tensor]]:
    """What the reference made, by the port's slots."""
    for one, other in pairs:
        entry, own = reference.find(one.key), port.find(other.key)
        if not is_input(other.key.slot) and entry is not None:
            yield other.key.slot, _tensor(entry, own)


def _tensor(entry: Entry, form: Optional[Entry]) -> Tensor:
    """The values, in the shape and with the dtype of the port's own record."""
    numbers = entry.load()
    if form is None:
        return Tensor(numbers, entry.dtype)
    if numbers.size == math.prod(form.shape) and numbers.ndim != len(form.shape):
        numbers = numbers.reshape(form.shape)
    return Tensor(numbers, form.dtype if DTYPES[form.dtype].exact == DTYPES[entry.dtype].exact else entry.dtype)


def _parameters(port: Dump, layer: str) -> Iterator[tuple[str, Tensor]]:
    """The parameters and buffers of the layer and of those inside it, by the framework's names below the layer."""
    prefix = f"{layer}." if layer else ""
    step = min(port.steps, default=0)
    for row in port.header.get("parameters") or ():
        owner, role, name = (str(word) for word in row[:3])
        if owner != layer and not owner.startswith(prefix):
            continue
        entry = port.find(Key(step, Phase.PARAMETER, owner, 0, role))
        if entry is not None:
            yield name[len(prefix) :] if name.startswith(prefix) else name.rpartition(".")[2], _tensor(entry, None)
