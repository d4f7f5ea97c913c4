"""Nets made of numpy functions, recorded as capture would, and a dump that is only memory.

net = Recorder("Net")
with net.inside("", "Net", x=x) as root:   # or net.call(path, kind, function, *inputs)
"""

from __future__ import annotations

import itertools
import zlib
from pathlib import Path

import numpy as np

from aligner.dtypes import DTYPES, decode
from aligner.record import Call, Key, Layer, LayerSpec, Note, Phase, Record

NUMBERS = itertools.count()
"""One for each dump: the `id` of one that is gone may be another's."""


class MemoryEntry:
    """The part of aligner.dump.reader.Entry that comparing needs."""

    imported = False

    def __init__(self, record):
        self.key, self.order, self.dtype = record.key, record.order, record.dtype
        self._array = np.ascontiguousarray(record.array).reshape(np.shape(record.array))
        self.place = id(self)
        self.shape, self.nbytes = self._array.shape, self._array.nbytes
        self.content = (self.dtype, self.nbytes, zlib.crc32(self._array.tobytes()))

    def raw(self):
        return self._array

    def load(self):
        return decode(self._array, self.dtype)

    def sample(self):
        return self.load().reshape(-1)[:1024]

    def stream(self, buffer, verify=True):
        storage = DTYPES[self.dtype].storage
        flat = self._array.reshape(-1)
        count = (buffer.size - buffer.size % 16) // storage.itemsize  # as the real one cuts its pieces
        for start in range(0, flat.size, count):
            piece = flat[start : start + count]
            view = buffer[: piece.nbytes].view(storage)
            view[...] = piece
            yield view


class MemoryDump:
    """The part of aligner.dump.reader.Dump that comparing needs."""

    def __init__(self, recorder):
        self.path = Path(f"{recorder.name}.h5")
        self.header = {"model": recorder.name, "framework": "numpy", **recorder.header}
        self.complete, self.recovered = True, False
        self.layers = dict(recorder.layers)
        self.calls = sorted(recorder.calls, key=lambda call: call.first)
        self.notes = list(recorder.notes)
        self.findings, self.token = [], f"memory-{next(NUMBERS)}"
        self.entries = [MemoryEntry(record) for record in recorder.records]
        self.steps = sorted({entry.key.step for entry in self.entries})

    def verify(self):
        pass

    def find(self, key):
        return next((entry for entry in self.entries if entry.key == key), None)

    def of_layer(self, path):
        calls = [call for call in self.calls if call.layer == path]
        return [entry for entry in self.entries if entry.key.layer == path], calls


def word(array):
    return np.asarray(array).dtype.name


class Recorder:
    """Counts orders and calls as a capture does."""

    def __init__(self, name="Net", **header):
        self.name, self.header = name, header
        self.layers, self.calls, self.records, self.notes = {}, [], [], []
        self.order, self.step, self._numbers = 0, 0, {}

    def layer(self, path, kind, attributes=None, training=False, children=False):
        if path not in self.layers:
            spec = LayerSpec(kind, attributes or {})
            self.layers[path] = Layer(path, f"numpy.{kind}", spec, children, training)

    def parameter(self, path, kind, role, value, dtype=None):
        self.layer(path, kind)
        self._write(Key(0, Phase.PARAMETER, path, 0, role), value, dtype)

    def call(self, path, kind, function, *inputs, attributes=None, training=False):
        """Record one call; `function` may call other layers. Inputs that are None are left out."""
        self.layer(path, kind, attributes, training)
        number = self._numbers.get(path, 0)
        self._numbers[path] = number + 1
        self.order += 1
        first = self.order
        for i, value in enumerate(inputs):
            if value is not None:
                self._write(Key(self.step, Phase.FORWARD, path, number, f"input.{i}"), value)
        result = function(*inputs)
        for i, value in enumerate(result if isinstance(result, tuple) else (result,)):
            self._write(Key(self.step, Phase.FORWARD, path, number, f"output.{i}"), value)
        self.order += 1
        self.calls.append(Call(self.step, Phase.FORWARD, path, number, first, self.order, {}, {}))
        return result

    def gradient(self, path, role, value):
        self._write(Key(self.step, Phase.GRADIENT, path, 0, role), value)

    def next_step(self):
        self.step += 1
        self._numbers = {}

    def note(self, layer, message, **facts):
        self.notes.append(Note(layer, message, facts))

    def dump(self):
        return MemoryDump(self)

    def write(self, writer):
        """The same through the real writer."""
        for layer in self.layers.values():
            writer.layer(layer)
        for record in self.records:
            writer.write(record)
        for call in self.calls:
            writer.call(call)
        for note in self.notes:
            writer.note(note)

    def _write(self, key, value, dtype=None):
        self.order += 1
        value = np.array(value)
        self.records.append(Record(key, self.order, dtype or word(value), value))
