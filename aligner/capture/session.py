"""A capture: names the layers of one model, counts their calls, and hands every value they see to a dump.

    adapter.observe -> Capture._enter / _leave -> Record -> DumpWriter.write

What is recorded is the value at that moment: each array is written before the layer goes on, so later in-place
changes cannot reach it. The net is never hurt by a capture that fails: an error of ours (a full disk) ends the
observation, the net runs on, and the error is raised when the capture is closed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Optional, Union

from aligner import messages
from aligner.adapter import Adapter, Handle
from aligner.capture.computed import Computed
from aligner.capture.declaring import declare, selected
from aligner.capture.dropouts import Dropouts
from aligner.capture.following import Following, follows
from aligner.capture.gaps import Gaps
from aligner.capture.header import describe
from aligner.capture.notes import Notes
from aligner.capture.numbers import Numbers
from aligner.capture.options import Options as Options
from aligner.capture.progress import Progress
from aligner.capture.sink import Sink
from aligner.capture.steps import Steps, check_training
from aligner.capture.stopping import stop_facts
from aligner.capture.tracebacks import forget_us
from aligner.capture.weights import Weights
from aligner.dtypes import DTYPES
from aligner.dump.writer import DumpWriter
from aligner.errors import AlignerError, CaptureError, LateError, because, beside
from aligner.record import Call, Key, Phase, Record
from aligner.selection import EVERYTHING
from aligner.structure import Tensors, flatten_arguments, flatten_result
from aligner.words.training import LOSS

Path = Union[str, "os.PathLike[str]"]


@dataclass
class _Open:
    """A call that has begun and not yet ended."""

    layer: str
    number: int
    first: int
    inputs: object
    last: str = ""
    """The layer that ended last inside it."""


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
        self.raised: Optional[BaseException] = None
        """What stopped the net, where who runs it knows better than what leaves the block tells."""
        self._adapter, self._model = adapter, model
        self._options = options or Options()
        self._progress = progress or Progress(None, messages.language())
        self._handles: list[Handle] = []
        self._stack: list[_Open] = []
        self._numbers = Numbers(self._options.turns)
        self._order = 0
        self._dropouts = Dropouts(adapter)
        self._silenced = False
        self._random: Optional[bytes] = None
        self._process = os.getpid()
        self._thread = 0
        self._records = 0
        self._loose = False
        self._again = False
        self._ran = False
        self._began = 0.0
        self._notes = Notes()
        self._note = self._notes.tell
        self._failure: Optional[BaseException] = None
        self._ears: list[Union[Gaps, Following]] = []
        self._following: Optional[Following] = None
        self._computed = Computed(adapter, model)
        self._weights = Weights(adapter, model)
        self._training: Optional[Steps] = None
        self.others: list[str] = []
        """Nets with parameters that ran beside this one and are not in the dump."""
        self._sink = sink
        self._writer: Optional[Sink] = None

    def __enter__(self) -> Capture:
        check_training(self._adapter, self._options.gradients)
        observed = selected(self._adapter, self._model, list(self._options.layers))
        header = {**describe(self._adapter, self._model, seed=self._options.seed), **self._options.header}
        header.update({"selected": [*self._options.layers]} if tuple(self._options.layers) != EVERYTHING else {})
        header.update({} if self._options.weights else {"weights": False})
        self._began = time.monotonic()
        self._writer = self._sink or DumpWriter(self.path, header, force=self._options.force)
        try:
            self._total = declare(self._adapter, self._model, self._writer, self._dropouts, self._options.loss)
            self._notes.cautions(self._adapter, self._model, self._writer)
            if self._options.weights:
                self._writer.update_header(parameters=self._weights.record(partial(self._write, self._writer)))
            if self._options.silence_dropout and self._adapter.training(self._model):
                self._handles.append(self._adapter.silence_dropout(self._model))
                self._silenced = True
            if follows(self._options.follow, self._adapter, self._model):
                self._following = Following(self._adapter, self._model, self._writer.finding).built()
            if self._options.operations:
                self._ears.append(gaps := Gaps(self._writer.finding))
                self._handles += [self._adapter.operations(gaps.told), self._computed.listen()]
            if self._following is not None:
                self._ears.append(self._following.listen(self._handles))
            self._weights.listen(self._handles)
            if self._options.gradients:
                own = self._adapter, self._model, self._weights, partial(self._write, self._writer)
                steps = Steps(*own, self._writer.finding, partial(self._lost, ()), self._guarded, self._options)
                self._training = steps.listen(self._handles)
            for path, layer in observed:
                self._observe(path, layer)
            self._handles += [self._adapter.routed(self._model)] if hasattr(self._adapter, "routed") else []
        except BaseException:
            self.close(clean=False)
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
        self.close(clean=error is None, error=self.raised or error)
        if error is not None and self._failure is not None:
            beside(error, self._failure, self._progress.language)

    def close(self, clean: bool = True, error: Optional[BaseException] = None) -> None:
        """Remove all hooks and finish the dump.

        Args:
            clean: nothing was raised.
            error: what was raised, if it is known. Where a call of the net has not ended, it is what stopped the net.

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
        nothing, complete = clean and not self._ran and self._failure is None, False
        try:
            stopped = self._has_stopped(error) and not isinstance(self._failure, AlignerError)
            if stopped:
                self._kept(self._tell_stop, writer, error)
            self._last_words(writer)
            complete = clean and self.steps > 0 and self._failure is None and not stopped
            again = stopped and self._options.then_stopped and isinstance(error, Exception) and self._failure is None
            if (complete or again) and self._options.then is not None:
                self._kept(self._options.then, writer, self._order, time.monotonic() - self._began)
        finally:
            self._kept(*((writer.discard,) if nothing else (writer.close, complete)))
        if nothing:
            raise CaptureError("nothing-ran", model=type(self._model).__name__)
        if self._failure is not None and clean:
            raise self._failure

    def _has_stopped(self, error: Optional[BaseException]) -> bool:
        """Whether calls are left open by an exception. A program that caught one and called the net again went on."""
        again = error is None and self._again
        return (bool(self._stack) and not again) or self.raised is not None

    def _tell_stop(self, writer: Sink, error: Optional[BaseException]) -> None:
        """The innermost call that did not end is where the net stopped."""
        call = self._stack[-1] if self._stack else _Open("", 0, 0, None)
        step = self.steps if self._stack else max(self.steps - 1, 0)
        place = step, call.layer, call.number
        writer.update_header(stopped=stop_facts(error, self._adapter, self._model, place, call.last))

    def _last_words(self, writer: Sink) -> None:
        """What is known only now; whatever goes wrong with one thing, the others are told and the dump is closed."""
        self._kept(self._progress.clear)
        writer.ending()
        self._kept(self._unwind, writer, 0)
        self.steps += self._loose if self._training is None else self._training.begun
        self._kept(self._tell_dropout, writer)
        self._kept(self._notes.cautions, self._adapter, self._model, writer)
        self._kept(self._tell_computed, writer)

    def _kept(self, action: Callable[..., object], *values: object) -> None:
        """Do a part of the ending. An error of ours in it is kept, and stops nothing else."""
        try:
            action(*values)
        except Exception as error:
            if self._failure is None:
                self._failure = error

    @property
    def records(self) -> int:
        """Values recorded."""
        return self._records if self._writer is None else self._writer.records

    @property
    def began(self) -> bool:
        """Whether there is a dump: one is begun when the block is entered."""
        return self._began > 0.0 and os.path.exists(self._place)

    @property
    def finished(self) -> bool:
        """Whether all wanted steps are captured (or the capture failed) and nothing is observed any more."""
        return not self._handles

    def _observe(self, path: str, layer: object) -> None:
        def before(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            self._guarded(self._enter, self._writer, path, layer, args, kwargs)

        def after(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
            self._guarded(self._leave, self._writer, path, output)

        self._handles.append(self._adapter.observe(layer, before, after))

    def _guarded(self, action: Callable[..., None], *values: object) -> None:
        """Run our part of a hook so that no failure of ours reaches the user's net; a kernel's of its own does."""
        if self._writer is None or self._failure is not None:
            return
        try:
            action(*values)
        except LateError as error:  # told once, to whoever reads next: kept to ourselves, the net would run on in ruins
            raise error.__cause__ or error from None
        except Exception as error:  # kept, and raised when the capture is closed
            self._failure = error
            self._detach()

    def _enter(
        self, writer: Sink, path: str, layer: object, args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> None:
        if not self._stack:
            self._begin_run(writer, path)
            if self.finished:
                return
        elif self._adapter.thread() != self._thread:
            self._note(writer, path, "other-thread")  # its place in the order of calls cannot be known
            return
        self._again |= path == "" and bool(self._stack)
        self._order += 1
        number = self._numbers.take(path, self.steps, kwargs)
        found: Tensors = []
        inputs = flatten_arguments(args, kwargs, self._adapter.is_tensor, found)
        found = found if self._training is None else self._training.own(path, found)
        self._stack.append(_Open(path, number, self._order, inputs))
        for ear in self._ears:
            ear.enter(path, number)
        if self.steps == 0 and layer is not None:
            self._computed.enter(path, layer)
        self._dropouts.enter(path, found)
        self._record(writer, path, number, found)

    def _leave(self, writer: Sink, path: str, output: object) -> None:
        depth = next((i for i in reversed(range(len(self._stack))) if self._stack[i].layer == path), None)
        if depth is None or self._adapter.thread() != self._thread:
            return
        self._unwind(writer, depth + 1)
        call = self._stack[-1]
        self._computed.unwind(depth)
        for ear in self._ears:
            ear.leave(path, call.number, self.steps)
        found: Tensors = []
        outputs = flatten_result(output, self._adapter.is_tensor, found)
        self._record(writer, path, call.number, found)
        self._dropouts.leave(path, found)
        self._stack.pop()  # not before: a kernel may turn out to have failed in it
        if self._stack:
            self._stack[-1].last = path
        self._call(writer, call, outputs)
        self._progress.update(self.steps, path, len(self._numbers), self._total, writer.bytes_written)
        if not self._stack:
            self._weights.end(path)
            if path == "":
                self._end_step(writer)

    def _begin_run(self, writer: Sink, path: str) -> None:
        """An outermost call. The net itself starts a step; a layer called by itself (net.encode(x)) joins one."""
        self._ran = True
        self._thread = self._adapter.thread()
        if self._training is not None and self._training.begin(path):
            self._next_step(path)
        elif self._training is None and path == "" and self._loose:
            self._loose = False
            self.steps += 1
        if self._weights.begin(path, self.steps, self._order + 1, writer.finding):
            self._note(writer, "", "weights-changed", step=self.steps)
        if path != "":
            self._loose = True
            return
        if self._training is None:
            self._numbers.clear()
        self._progress.begin(writer.bytes_written)
        self._random = self._adapter.random_state()

    def _end_step(self, writer: Sink) -> None:
        if self._random is not None and self._adapter.random_state() != self._random:
            self._note(writer, "", "random-numbers")
        self._computed.remove()
        if self._following is not None:  # the next step would be slower for nothing
            self._following.remove()
        if self._training is None:
            self._next_step()

    def _next_step(self, path: str = "") -> None:
        """Whatever runs from now on belongs to another step; behind the last wanted one nothing is observed."""
        self.steps += 1
        last = self._options.steps is not None and self.steps >= self._options.steps
        if self._training is not None:
            self._numbers.clear()
            self._training.next(path, self.steps, last)
        if last:
            self._detach()

    def lost(self, output: object, label: object, loss: object) -> None:
        """A loss was made of what the net has handed on: it is recorded as a layer beside the net."""
        if self._training is not None:
            self._training.told = True
        self._lost((output, label), loss)

    def _lost(self, given: tuple[object, ...], loss: object) -> None:
        self._guarded(self._enter, self._writer, LOSS, None, given, {})
        self._guarded(self._leave, self._writer, LOSS, loss)

    def _call(self, writer: Sink, call: _Open, outputs: object, over: bool = True) -> None:
        """A call has ended, or will not end any more."""
        self._order += 1
        last = self._order if over else None
        writer.call(Call(self.steps, Phase.FORWARD, call.layer, call.number, call.first, last, call.inputs, outputs))

    def _record(self, writer: Sink, path: str, number: int, found: Tensors) -> None:
        for slot, tensor in found:
            key = Key(self.steps, Phase.FORWARD, path, number, slot)
            self._write(writer, key, self._adapter.dtype(tensor), partial(self._adapter.to_numpy, tensor))
            if self._training is not None:
                self._training.watch(key, tensor)

    def _write(self, writer: Sink, key: Key, dtype: str, read: Callable[[], Any]) -> None:
        """One value into the dump, or a note why it could not be read."""
        self._order += 1
        if dtype not in DTYPES:
            self._note(writer, key.layer, "dtype-unknown", slot=key.slot, dtype=dtype)
            return
        try:
            array = read()
        except ValueError as error:
            self._note(writer, key.layer, "value-unreadable", slot=key.slot, reason=because(error))
            return
        writer.write(Record(key, self._order, dtype, array))

    def _unwind(self, writer: Sink, depth: int) -> None:
        """Calls above `depth` never came back: their layer raised."""
        for ear in self._ears:
            ear.unwind(depth)
        self._computed.unwind(depth)
        while len(self._stack) > depth:
            self._call(writer, self._stack.pop(), {"none": True}, over=False)

    def _tell_dropout(self, writer: Sink) -> None:
        """What the header says: seen at work, silenced, or idle (all of it looked at, not assumed)."""
        writer.update_header(steps=self.steps, dropout=self._dropouts.state(self._silenced))
        if self.others:
            writer.update_header(others=self.others)
        if self._dropouts.active:
            self._note(writer, "", "dropout-active", layers=", ".join(sorted(self._dropouts.active)[:5]))

    def _tell_computed(self, writer: Sink) -> None:
        found = self._computed.tell(writer.finding)
        if found:
            writer.update_header(**found)

    def _detach(self) -> None:
        """Remove all hooks, also behind one that cannot be removed."""
        while self._handles:
            self._kept(self._handles.pop().remove)
