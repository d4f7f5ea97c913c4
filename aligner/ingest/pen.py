"""Writes what was understood into a dump: layers, weights, the calls and their values, in rising order."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional, Protocol

from aligner.dtypes import DTYPES
from aligner.errors import because
from aligner.ingest import npy, weights
from aligner.ingest.calls import LayerCall, Told, results
from aligner.ingest.kinds import is_library, kind, plain_class
from aligner.ingest.operations import Step, Value
from aligner.ingest.source import Net
from aligner.ingest.weights import Weights
from aligner.record import Call, Key, Layer, LayerSpec, Note, Phase, Record


class Writer(Protocol):
    """Where the dump goes: aligner.dump.writer.DumpWriter."""

    records: int

    def layer(self, layer: Layer) -> None: ...
    def call(self, call: Call) -> None: ...
    def note(self, note: Note) -> None: ...
    def write(self, record: Record) -> None: ...
    def update_header(self, **values: Any) -> None: ...


class Pen:
    """Writes layers, records and calls with rising order numbers."""

    def __init__(self, writer: Writer, net: Optional[Net]) -> None:
        self.layers: set[str] = set()
        self.dtypes: set[str] = set()
        """Types of floating point that values have."""
        self.unread: dict[str, str] = {}
        """Files that could not be read, with the reason."""
        self._writer = writer
        self._net = net
        self._order = 0

    def declare(self, calls: Told) -> None:
        """All layers: the net's own, or those that operators tell of."""
        if self._net is not None:
            for layer in self._net.layers:
                self._writer.layer(layer)
            return
        self._writer.layer(Layer("", "", LayerSpec(""), True, False))
        parents = {path.rpartition(".")[0] for path in calls.classes}
        for path in _nested(calls.classes):
            name = calls.classes[path]
            base = plain_class(name)
            shown = f"mindspore.nn.{base}" if is_library(name) or base != kind(base) else name
            self._writer.layer(Layer(path, shown, LayerSpec(kind(name)), path in parents, False))

    def parameters(self, found: Weights, classes: Mapping[str, str]) -> None:
        """Weights and statistics as the first step found them."""
        table = []
        words = {path: kind(name) for path, name in classes.items()}
        for parameter, value in found.parameters:
            key = Key(0, Phase.PARAMETER, parameter.layer, 0, parameter.role)
            if self._write(key, value, weights.canonical(parameter, words.get(parameter.layer, ""), value.shape)):
                table.append([parameter.layer, parameter.role, parameter.name, parameter.trainable, parameter.buffer])
        self._writer.update_header(parameters=table, weights=bool(table))

    def step(self, number: int, step: Step, calls: Told, given: Weights) -> None:
        """The net's own call, and in it those of the layers."""
        self._order += 1
        first = self._order
        inputs = {f"input.{at}": value for at, value in sorted(given.inputs.items())}
        shown = self._values(number, "", 0, inputs)
        counts: dict[str, int] = {}
        for call in calls.calls:
            self._call(number, call, counts)
        made = results(step.operations)
        outputs = self._values(number, "", 0, {"output.0": made[0]} if len(made) == 1 else {})
        self._order += 1
        self._writer.call(Call(number, Phase.FORWARD, "", 0, first, self._order, _arguments(shown), _result(outputs)))

    def _call(self, step: int, call: LayerCall, counts: dict[str, int]) -> None:
        number = counts.get(call.layer, 0)
        counts[call.layer] = number + 1
        self.layers.add(call.layer)
        self._order += 1
        first = self._order
        inputs = self._values(step, call.layer, number, call.inputs)
        for inner in call.inside:
            self._call(step, inner, counts)
        outputs = self._values(step, call.layer, number, call.outputs)
        self._order += 1
        last = self._order
        structures = _arguments(inputs), _result(outputs)
        self._writer.call(Call(step, Phase.FORWARD, call.layer, number, first, last, *structures))

    def _values(self, step: int, layer: str, number: int, values: Mapping[str, Value]) -> list[str]:
        keys = {slot: Key(step, Phase.FORWARD, layer, number, slot) for slot in values}
        return [slot for slot, value in values.items() if self._write(keys[slot], value, value.shape)]

    def _write(self, key: Key, value: Value, shape: tuple[int, ...]) -> bool:
        if not value.whole:
            return False
        try:
            dtype, array = npy.load(value.file.path, value.file.dtype)
        except (ValueError, OSError, MemoryError) as error:
            self.unread[os.path.basename(value.file.path)] = because(error)
            return False
        self._order += 1
        self._writer.write(Record(key, self._order, dtype, array.reshape(shape)))
        if DTYPES[dtype].eps is not None and key.phase is Phase.FORWARD:
            self.dtypes.add(dtype)
        return True


def _nested(paths: Collection[str]) -> list[str]:
    """Each layer before those inside it, and all of these before the next one."""
    place = {path: at for at, path in enumerate(paths)}
    parts = {path: path.split(".") for path in paths}
    return sorted(paths, key=lambda path: [place[".".join(parts[path][:n])] for n in range(1, len(parts[path]) + 1)])


def _arguments(slots: Sequence[str]) -> object:
    return {"args": [{"tensor": slot} for slot in slots]}


def _result(slots: Sequence[str]) -> object:
    return {"tensor": slots[0]} if slots else {"none": True}
