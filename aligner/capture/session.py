"""A capture: names the layers of one model, counts their calls, and hands every value they see to a dump.

    adapter.observe -> Capture._enter / _leave -> Record -> DumpWriter.write

What is recorded is the value at that moment: each array is written before the layer goes on, so later in-place
changes cannot reach it. The net is never hurt by a capture that fails: an error of ours (a full disk) ends the
observation, the net runs on, and the error is raised when the capture is closed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, Optional, Union

from aligner import registry
from aligner.adapter import Adapter, Handle
from aligner.capture.computed import Computed
from aligner.capture.dropouts import Dropouts
from aligner.capture.following import Following
from aligner.capture.gaps import Gaps
from aligner.capture.header import describe
from aligner.capture.progress import Progress
from aligner.capture.sink import Sink
from aligner.capture.tracebacks import forget_us
from aligner.dtypes import DTYPES
from aligner.dump.writer import DumpWriter
from aligner.errors import AlignerError, CaptureError, UsageError
from aligner.record import Call, Key, Layer, Note, Phase, Record
from aligner.selection import EVERYTHING, matches
from aligner.structure import Tensors, flatten_arguments, flatten_result

Path = Union[str, "os.PathLike[str]"]


@dataclass
class Options:
    """How a capture is made; the command line's options, without where the model comes from."""

    layers: Sequence[str] = ("*",)
    steps: Optional[int] = None
    weights: bool = True
    silence_dropout: bool = False
    operations: bool = False
    """Note which operations run between the layers."""
    follow: bool = False
    """Note as well what each of them makes, by its fingerprint, and the line that it stands in."""
    force: bool = False
    seed: Optional[int] = None
    header: Mapping[str, Any] = field(default_factory=dict)
    then: Optional[Callable[[Sink, int, float], None]] = None
    """What is done once the net has run and nothing is observed any more, while the dump is still open: it gets the
    dump, the last order number, and the seconds since the capture began."""


@dataclass
class _Open:
    """A call that has begun and not yet ended."""

    layer: str
    number: int
    first: int
    inputs: object


class Capture:
    """Observes `model` from `__enter__` to `__exit__` and writes what it sees to `path`."""

    def __init__(
        self,
        adapter: Adapter,
        model: object,
        path: Path,
        options: Optional[Options] = None,
        progress: Optional[Progress] = None,
        sink: Optional[Sink] = None,
    ) -> None:
        self.path = os.fspath(path)
        self._place = os.path.abspath(self.path)  # the user's code may change the working directory
        self.steps = 0
        self._adapter = adapter
        self._model = model
        self._options = options or Options()
        self._progress = progress or Progress(None)
        self._handles: list[Handle] = []
        self._stack: list[_Open] = []
        self._numbers: dict[str, int] = {}
        self._order = 0
        self._dropouts = Dropouts(adapter)
        self._silenced = False
        self._random: Optional[bytes] = None
        self._process = os.getpid()
        self._thread = 0
        self._records = 0
        self._loose = False
        self._ran = False
        self._began = 0.0
        self._noted: set[tuple[str, str]] = set()
        self._failure: Optional[BaseException] = None
        self._ears: list[Union[Gaps, Following]] = []
        self._computed = Computed(adapter, model)
        self._sink = sink
        self._writer: Optional[Sink] = None

    def __enter__(self) -> Capture:
        selected = self._select()
        header = {**describe(self._adapter, self._model, seed=self._options.seed), **self._options.header}
        if tuple(self._options.layers) != EVERYTHING:
            header["selected"] = list(self._options.layers)
        if not self._options.weights:
            header["weights"] = False
        self._began = time.monotonic()
        self._writer = self._sink or DumpWriter(self.path, header, force=self._options.force)
        try:
            self._declare()
            if self._options.weights:
                self._write_parameters()
            if self._options.silence_dropout and self._adapter.training(self._model):
                self._handles.append(self._adapter.silence_dropout(self._model))
                self._silenced = True
            if self._options.operations:
                gaps = Gaps(self._writer.finding)
                self._ears.append(gaps)
                self._handles += [self._adapter.operations(gaps.told), self._computed.listen()]
            if self._options.follow:
                self._ears.append(Following(self._adapter, self._model, self._writer.finding).listen(self._handles))
            for path, layer in selected:
                self._observe(path, layer)
        except BaseException:
            self._detach()
            self._writer.close(complete=False)
            raise
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        if error is not None:
            forget_us(error)
        self.close(clean=error is None)

    def close(self, clean: bool = True) -> None:
        """Remove all hooks and finish the dump.

        Raises:
            AlignerError: what went wrong while the net ran, or that nothing ran at all (only if `clean`).
        """
        writer, self._writer = self._writer, None
        self._records = writer.records if writer is not None else self._records
        if writer is None:
            return
        self._detach()
        if self._process != os.getpid():  # a fork's copy: the dump is the parent's, and so is the last word
            return
        self._progress.clear()
        self._unwind(writer, 0)
        self.steps += self._loose
        nothing = not self._ran and self._failure is None
        complete = clean and self.steps > 0 and self._failure is None
        if self._dropouts.active:
            self._note(writer, "", "dropout-active", layers=", ".join(sorted(self._dropouts.active)[:5]))
        try:
            self._tell_cautions(writer)
            writer.update_header(steps=self.steps, dropout=self._dropout_state(), **self._computed.tell(writer.finding))
            try:
                if complete and self._options.then is not None:
                    self._options.then(writer, self._order, time.monotonic() - self._began)
            finally:
                writer.close(complete=complete)
        except AlignerError as error:
            self._failure = self._failure or error
        if nothing and clean:
            if self._sink is None:
                os.unlink(self._place)
            raise CaptureError("nothing-ran", model=type(self._model).__name__)
        if self._failure is not None and clean:
            raise self._failure

    @property
    def records(self) -> int:
        """Values recorded so far."""
        return self._records if self._writer is None else self._writer.records

    @property
    def finished(self) -> bool:
        """Whether all wanted steps are captured (or the capture failed) and nothing is observed any more."""
        return not self._handles

    def _select(self) -> list[tuple[str, object]]:
        """The layers to observe: those the patterns name, and always the top-level net, which counts the steps."""
        layers = list(self._adapter.layers(self._model))
        wanted = [(path, layer) for path, layer in layers if path == "" or matches(path, self._options.layers)]
        patterns = list(self._options.layers)
        if len(wanted) == 1 and len(layers) > 1 and patterns not in (["*"], [""]):
            some = ", ".join(path for path, _ in layers[1:6])
            raise CaptureError(
                "no-layer-matched", patterns=", ".join(patterns) or "[]", count=len(layers) - 1, some=some
            )
        return wanted

    def _declare(self) -> None:
        """Tell the dump of every layer, observed or not, and of what cannot be seen."""
        assert self._writer is not None
        layers = list(self._adapter.layers(self._model))
        parents = {path.rpartition(".")[0] for path, _ in layers if path}
        for path, layer in layers:
            spec = self._adapter.spec(layer)
            if spec.kind == "Dropout":
                self._dropouts.watch(path)
            training = self._adapter.training(layer)
            children = path in parents or any(parent.startswith(f"{path}.") for parent in parents) or path == ""
            self._writer.layer(Layer(path, self._adapter.type_name(layer), spec, children, training))
        self._tell_cautions(self._writer)
        self._total = len(layers)

    def _tell_cautions(self, writer: Sink) -> None:
        """What cannot be seen, once each: some of it shows only when the net has run."""
        for note in self._adapter.cautions(self._model):
            if (note.layer, note.message) not in self._noted:
                self._noted.add((note.layer, note.message))
                writer.note(note)

    def _write_parameters(self) -> None:
        assert self._writer is not None
        table = []
        for parameter in self._adapter.parameters(self._model):
            key = Key(0, Phase.PARAMETER, parameter.layer, 0, parameter.role)
            self._write(self._writer, key, parameter.dtype, partial(self._adapter.read, parameter))
            table.append([parameter.layer, parameter.role, parameter.name, parameter.trainable, parameter.buffer])
        self._writer.update_header(parameters=table)

    def _observe(self, path: str, layer: object) -> None:
        def before(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            self._guarded(self._enter, path, layer, args, kwargs)

        def after(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
            self._guarded(self._leave, path, output)

        self._handles.append(self._adapter.observe(layer, before, after))

    def _guarded(self, action: Callable[..., None], path: str, *values: object) -> None:
        """Run our part of a hook so that no failure of ours reaches the user's net."""
        if self._writer is None or self._failure is not None:
            return
        try:
            action(self._writer, path, *values)
        except Exception as error:  # kept, and raised when the capture is closed
            self._failure = error
            self._detach()

    def _enter(
        self, writer: Sink, path: str, layer: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        if not self._stack:
            self._begin_run(writer, path)
        elif self._adapter.thread() != self._thread:
            self._note(writer, path, "other-thread")  # its place in the order of calls cannot be known
            return
        self._order += 1
        number = self._numbers.get(path, 0)
        self._numbers[path] = number + 1
        found: Tensors = []
        inputs = flatten_arguments(args, kwargs, self._adapter.is_tensor, found)
        self._stack.append(_Open(path, number, self._order, inputs))
        for ear in self._ears:
            ear.enter(path)
        if self.steps == 0:
            self._computed.enter(path, layer)
        self._dropouts.enter(path, found)
        self._record(writer, path, number, found)

    def _leave(self, writer: Sink, path: str, output: object) -> None:
        depth = next((i for i in reversed(range(len(self._stack))) if self._stack[i].layer == path), None)
        if depth is None or self._adapter.thread() != self._thread:
            return
        self._unwind(writer, depth + 1)
        call = self._stack.pop()
        self._computed.unwind(len(self._stack))
        for ear in self._ears:
            ear.leave(path, call.number, self.steps)
        found: Tensors = []
        outputs = flatten_result(output, self._adapter.is_tensor, found)
        self._record(writer, path, call.number, found)
        self._dropouts.leave(path, found)
        self._order += 1
        writer.call(Call(self.steps, Phase.FORWARD, path, call.number, call.first, self._order, call.inputs, outputs))
        self._progress.update(self.steps, path, len(self._numbers), self._total, writer.bytes_written)
        if path == "" and not self._stack:
            self._end_step(writer)

    def _begin_run(self, writer: Sink, path: str) -> None:
        """An outermost call. The net itself starts a step; a layer called by itself (net.encode(x)) joins one."""
        self._ran = True
        self._thread = self._adapter.thread()
        if path != "":
            self._loose = True
            return
        if self._loose:
            self._loose = False
            self.steps += 1
        self._numbers = {}
        self._progress.begin(writer.bytes_written)
        self._random = self._adapter.random_state()

    def _end_step(self, writer: Sink) -> None:
        if self._random is not None and self._adapter.random_state() != self._random:
            self._note(writer, "", "random-numbers")
        self.steps += 1
        self._computed.remove()
        if self._options.steps is not None and self.steps >= self._options.steps:
            self._detach()

    def _record(self, writer: Sink, path: str, number: int, found: Tensors) -> None:
        for slot, tensor in found:
            key = Key(self.steps, Phase.FORWARD, path, number, slot)
            self._write(writer, key, self._adapter.dtype(tensor), partial(self._adapter.to_numpy, tensor))

    def _write(self, writer: Sink, key: Key, dtype: str, read: Callable[[], Any]) -> None:
        """One value into the dump, or a note why it could not be read."""
        self._order += 1
        if dtype not in DTYPES:
            self._note(writer, key.layer, "dtype-unknown", slot=key.slot, dtype=dtype)
            return
        try:
            array = read()
        except ValueError as error:
            self._note(writer, key.layer, "value-unreadable", slot=key.slot, reason=str(error))
            return
        writer.write(Record(key, self._order, dtype, array))

    def _unwind(self, writer: Sink, depth: int) -> None:
        """Calls above `depth` never came back: their layer raised."""
        for ear in self._ears:
            ear.unwind(depth)
        self._computed.unwind(depth)
        while len(self._stack) > depth:
            call = self._stack.pop()
            self._order += 1
            writer.call(
                Call(self.steps, Phase.FORWARD, call.layer, call.number, call.first, None, call.inputs, {"none": True})
            )

    def _dropout_state(self) -> str:
        """What the header says: seen at work, silenced, or idle (all of it looked at, not assumed)."""
        if self._dropouts.active:
            return "active"
        return "silenced" if self._silenced else "inactive"

    def _note(self, writer: Sink, layer: str, message: str, **facts: Any) -> None:
        """Say once per layer what could not be captured as it should."""
        if (layer, message) not in self._noted:
            self._noted.add((layer, message))
            writer.note(Note(layer, message, facts))

    def _detach(self) -> None:
        for handle in reversed(self._handles):
            handle.remove()
        self._handles.clear()


def capture(
    model: object,
    path: Path,
    *,
    layers: Union[str, Sequence[str]] = "*",
    steps: Optional[int] = None,
    weights: bool = True,
    silence_dropout: bool = False,
    force: bool = False,
) -> Capture:
    """Capture what `model` does inside a `with` block: `with aligner.capture(net, "ref.h5"): net(x)`.

    Args:
        model: a torch module or MindSpore cell; the framework is found from it.
        path: the dump to write; an existing one is refused unless `force`.
        layers: patterns of layer paths to record ("encoder.*").
        steps: stop observing after so many runs of the model; None takes all of the block.
        weights: record parameters and buffers too, so that a port can be run on them.
        silence_dropout: make dropout inactive in train mode while capturing.
        force: overwrite an existing dump.

    Raises:
        UsageError: `steps` is no whole number from 1 on.
    """
    if steps is not None and (not isinstance(steps, int) or steps < 1):
        raise UsageError("steps-form", found=repr(steps))
    patterns = [layers] if isinstance(layers, str) else list(layers)
    options = Options(patterns, steps, weights, silence_dropout, force=force)
    return Capture(registry.of(model), model, path, options)
