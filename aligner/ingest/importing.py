"""The import: read each value, understand each step, write it.

One value is in memory at a time: all files are read twice, first for their checksums, then those that are written.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Optional

from aligner.errors import IngestError, because
from aligner.ingest import npy, weights
from aligner.ingest.calls import Told, told
from aligner.ingest.files import Folder, ValueFile
from aligner.ingest.operations import Step, Value, link, moved, readable, step_of
from aligner.ingest.pen import Pen, Writer
from aligner.ingest.source import Net, Source
from aligner.ingest.weights import Weights
from aligner.record import Note, Scalar

SOME = 5
"""Names that a note lists."""
Progress = Callable[[int, int, int], None]
"""Called with files read, files in all, and bytes so far."""


@dataclass
class Import:
    """What came of it."""

    steps: int = 0
    layers: int = 0
    dtypes: set[str] = field(default_factory=set)
    unread: dict[str, str] = field(default_factory=dict)
    """Files that are not whole arrays, with the reason."""
    tiled: int = 0
    told: list[Told] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    repeated: int = 0


def run(
    found: Source,
    writer: Writer,
    net: Optional[Net] = None,
    steps: Optional[int] = None,
    progress: Optional[Progress] = None,
) -> Import:
    """Write all that these files tell of the net; one value is in memory at a time.

    Raises:
        IngestError: none of the operators tells which layer it belongs to.
        DumpError: the dump cannot be written.
    """
    done = Import()
    chosen = sorted(found.steps)[:steps]
    pen = Pen(writer, net)
    reader = _Reader(done, sum(len(found.steps[one]) for one in chosen), progress)
    for number, iteration in enumerate(chosen):
        step = _step(reader.values(found.steps[iteration]), found)
        sorted_out, calls = _understood(step, found, net)
        if number == 0:
            pen.declare(calls)
            pen.parameters(sorted_out, calls.classes)
            done.unknown = sorted_out.unknown
        pen.step(number, step, calls, sorted_out)
        done.told.append(calls)
        done.repeated = max(done.repeated, step.repeated)
    done.steps, done.layers, done.dtypes = len(chosen), len(pen.layers), pen.dtypes
    done.unread.update(pen.unread)
    if not done.layers:
        raise IngestError("ingest-no-layers", path=found.folder.path, count=reader.total)
    return done


@dataclass
class _Reader:
    """Reads each file once for its content's checksum, and tells how far it is."""

    done: Import
    total: int
    progress: Optional[Progress]
    files: int = 0
    bytes: int = 0

    def values(self, graphed: Iterable[tuple[str, ValueFile]]) -> list[tuple[str, Value]]:
        """All values, each with its graph."""
        values = []
        for graph, file in graphed:
            value = self._value(file)
            self.files += 1
            values.append((graph, value))
            if self.progress is not None:
                self.progress(self.files, self.total, self.bytes)
        return values

    def _value(self, file: ValueFile) -> Value:
        unread = Value(file, file.path.encode("utf-8", "surrogateescape"), (), whole=False)
        if not readable(file):
            self.done.tiled += 1
            return unread
        try:
            form, content = npy.fingerprint(file.path)
            npy.word(form, file.dtype)
        except (ValueError, OSError) as error:
            self.done.unread[os.path.basename(file.path)] = getattr(error, "strerror", None) or because(error)
            return unread
        self.bytes += form.size
        return Value(file, content, form.shape, form.dtype.kind in "fc")


def _step(values: Sequence[tuple[str, Value]], found: Source) -> Step:
    """One iteration of all graphs; an operator's name is its own in its graph only."""
    whole = Step()
    graphs: dict[str, list[Value]] = {}
    for graph, value in values:
        graphs.setdefault(graph, []).append(value)
    for part in (step_of(own, found.scopes, found.ranks) for own in graphs.values()):
        whole.operations += part.operations
        whole.parameters.update(part.parameters)
        whole.repeated = max(whole.repeated, part.repeated)
    whole.operations.sort(key=lambda one: one.time)
    for place, operation in enumerate(whole.operations):
        operation.place = place
    return whole


def _understood(step: Step, found: Source, net: Optional[Net]) -> tuple[Weights, Told]:
    classes = {one.scope.layer: one.scope.classes[-1] for one in step.operations if one.scope.path}
    for one in step.operations:
        for depth in range(1, len(one.scope.path)):
            classes.setdefault(".".join(one.scope.path[:depth]), one.scope.classes[depth - 1])
    known, arguments = (net.parameters, net.arguments) if net is not None else ((), ())
    sorted_out = weights.sort_out(step.parameters, classes, found.said, known, arguments)
    owners: dict[bytes, set[str]] = {}
    shapes: dict[tuple[int, ...], set[str]] = {}
    for parameter, value in sorted_out.parameters:
        owners.setdefault(value.content, set()).add(parameter.layer)
        shapes.setdefault(value.shape, set()).add(parameter.layer)
    moved(step.operations, owners, shapes)
    link(step.operations, owners.keys())
    return sorted_out, told(step.operations, owners, sorted_out.given)


def notes(done: Import, folder: Folder) -> Iterable[Note]:
    """What could not be told, each with what to do."""
    facts: dict[str, Scalar] = {"path": folder.path}
    yield Note("", "ingest-partial", facts)
    for message, names in (("ingest-uncounted", "uncounted"), ("ingest-unvalued", "unvalued")):
        layers = dict.fromkeys(layer for one in done.told for layer in getattr(one, names))
        if layers:
            yield Note("", message, {"count": len(layers), "layers": _some(layers)})
    placeless = max((one.placeless for one in done.told), default=0)
    if placeless:
        yield Note("", "ingest-placeless", {"count": placeless})
    backward = max((one.backward for one in done.told), default=0)
    if backward:
        yield Note("", "ingest-backward", {"count": backward})
    if done.tiled:
        yield Note("", "ingest-tiled", {"count": done.tiled})
    if done.unread:
        name, reason = next(iter(done.unread.items()))
        yield Note("", "ingest-unread", {"count": len(done.unread), "name": name, "reason": reason})
    if done.unknown:
        yield Note("", "ingest-unknown-parameters", {"count": len(done.unknown), "names": _some(done.unknown)})
    if done.repeated > 1:
        yield Note("", "ingest-repeated", {"count": done.repeated, **facts})
    if folder.links:
        yield Note("", "ingest-links", {"count": folder.links})


def _some(names: Iterable[str]) -> str:
    shown = list(names)
    return ", ".join(shown[:SOME]) + (", ..." if len(shown) > SOME else "")
