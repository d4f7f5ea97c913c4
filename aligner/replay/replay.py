"""Run a port on the reference's weights and inputs, all of them out of the reference's dump.

dump entries -> transfer.plan -> Adapter.load        the weights
dump call    -> structure.rebuild -> Adapter.from_numpy   the inputs, nested as the reference got them
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Optional, Union

from aligner import registry
from aligner.adapter import Adapter
from aligner.adapter import Parameter as Native
from aligner.capture.progress import Progress
from aligner.capture.session import Capture, Options
from aligner.capture.sink import Sink
from aligner.dump.reader import Dump, Entry, open_dump
from aligner.errors import AlignerError, ReplayError
from aligner.record import Key, Note, Phase
from aligner.replay import trial
from aligner.replay.examination import Subject, Summary, examine
from aligner.replay.transfer import Item, Slot, Transfer, left_over, plan
from aligner.structure import rebuild_arguments

Path = Union[str, "os.PathLike[str]"]
Arguments = tuple[tuple[object, ...], dict[str, object]]


class Replay:
    """A port that carries the reference's weights, and the reference's inputs to call it with."""

    def __init__(self, reference: Dump, adapter: Adapter, model: Any) -> None:
        self.reference = reference
        self.model = model
        self.transfer: Transfer = Transfer((), (), ())
        self.examined: Optional[Summary] = None
        """What the forced pass of the last capture found."""
        self._adapter = adapter

    @property
    def steps(self) -> Sequence[int]:
        """The steps that the reference holds inputs for."""
        return [call.step for call in self.reference.calls if call.layer == "" and call.number == 0]

    def load(self, renames: Mapping[str, str], allow_missing: bool) -> None:
        """Give the port the reference's weights.

        Raises:
            ReplayError: the dump holds no weights, or parameters are left over on either side.
        """
        entries = {
            Slot(entry.key.layer, entry.key.slot): entry
            for entry in self.reference.entries
            if entry.key.phase is Phase.PARAMETER
        }
        natives = {Slot(p.layer, p.role): p for p in self._adapter.parameters(self.model)}
        items = _reference_items(self.reference, entries), self._port_items(natives)
        self.transfer = plan(*items, renames)
        ours, theirs = self.transfer.failing
        if (ours or theirs) and not allow_missing:
            message = (
                "weights-left-over" if ours and theirs else "weights-left-reference" if ours else "weights-left-port"
            )
            raise ReplayError(
                message if entries else "weights-none",
                reference=os.fspath(self.reference.path),
                left_reference=left_over(ours),
                left_port=left_over(theirs),
            )
        self._fill(self.transfer, entries, natives)
        if trial.doubtful(self.transfer) and self.steps:
            self._try_other_order(items, renames, entries, natives)

    def _fill(self, transfer: Transfer, entries: Mapping[Slot, Entry], natives: Mapping[Slot, Native]) -> None:
        for match in transfer.matches:
            entry = entries[match.reference.slot]
            self._adapter.load(natives[match.port.slot], entry.raw(), entry.dtype)

    def _try_other_order(
        self,
        items: tuple[list[Item], list[Item]],
        renames: Mapping[str, str],
        entries: Mapping[Slot, Entry],
        natives: Mapping[Slot, Native],
    ) -> None:
        """Match alike layers in the order they run, where that makes more of the port's layers agree."""
        first = self.transfer
        self._adapter.set_training(self.model, False)  # nothing is to be learnt from this run
        before = self._tried(first)
        if before is None or before.agreeing == before.judged:
            return
        order = trial.executed(self.reference, self.steps[0])
        other = plan(trial.in_order(items[0], order), trial.in_order(items[1], before.order), renames)
        if trial.same(first, other) or len(other.matches) != len(first.matches):
            return
        self._fill(other, entries, natives)
        after = self._tried(other)
        if after is not None and after.agreeing > before.agreeing:
            position = {match.reference.slot: index for index, match in enumerate(first.matches)}
            matches = sorted(other.matches, key=lambda match: position.get(match.reference.slot, len(position)))
            self.transfer = replace(other, matches=tuple(matches))
        else:
            self._fill(first, entries, natives)

    def _tried(self, transfer: Transfer) -> Optional[trial.Trial]:
        """What a run with these weights shows; None where the net does not run: the capture will say why."""
        step = self.steps[0]
        try:
            return trial.run(self.reference, self._adapter, self.model, self.arguments(step), transfer, step)
        except Exception:
            return None

    def _port_items(self, natives: Mapping[Slot, Native]) -> list[Item]:
        kinds = {path: self._adapter.spec(layer).kind for path, layer in self._adapter.layers(self.model)}
        return [
            Item(slot, native.shape, native.name, kinds.get(native.layer, ""), _required(native.buffer, native.role))
            for slot, native in natives.items()
        ]

    def set_training(self, training: Optional[bool]) -> None:
        """Put the port into the mode asked for, or else layer by layer into the reference's."""
        wanted = bool(self.reference.header.get("training")) if training is None else training
        self._adapter.set_training(self.model, wanted)
        if training is not None:
            return
        ports = dict(self._adapter.layers(self.model))
        pairs = {reference: port for reference, port, _ in self.transfer.layers}
        for path, layer in self.reference.layers.items():
            port = ports.get(pairs.get(path, path))
            if port is not None and path and self._adapter.training(port) != layer.training and not layer.children:
                self._adapter.set_training(port, layer.training)

    def arguments(self, step: int = 0) -> Arguments:
        """Positional and keyword arguments of the reference's call in this step, as tensors of the port's framework.

        Keyword arguments that the port's own signature does not know are handed over by position, in their order.

        Raises:
            ReplayError: no such step, or an argument that no dump can hold.
        """
        call = next((c for c in self.reference.calls if c.layer == "" and c.step == step and c.number == 0), None)
        if call is None:
            have = ", ".join(map(str, self.steps)) or "-"
            raise ReplayError("step-missing", reference=os.fspath(self.reference.path), step=step, have=have)

        def tensor(slot: str) -> object:
            entry = self.reference.find(Key(step, Phase.FORWARD, "", 0, slot))
            if entry is None:
                raise ReplayError("input-missing", reference=os.fspath(self.reference.path), slot=slot)
            return self._adapter.from_numpy(entry.raw(), entry.dtype)

        try:
            args, kwargs = rebuild_arguments(call.inputs, tensor)
        except LookupError as error:
            raise ReplayError("input-opaque", kind=str(error)) from error
        return _fit(self.model, args, kwargs)

    def inputs(self, step: int = 0) -> tuple[object, ...]:
        """The arguments of a step by position: `net(*replay.inputs(step=0))`."""
        args, kwargs = self.arguments(step)
        return (*args, *kwargs.values())

    def run(self, step: int = 0) -> Any:
        """Call the port once on the reference's arguments of this step."""
        args, kwargs = self.arguments(step)
        with self._adapter.running(self.model):
            return self.model(*args, **kwargs)

    def capture(
        self,
        path: Path,
        options: Optional[Options] = None,
        progress: Optional[Progress] = None,
        *,
        forced: bool = True,
        force: bool = False,
    ) -> Capture:
        """A capture of the port whose header tells what it was replayed from: `with replay.capture("port.h5"): ...`.

        At the end of the block the port runs once more for the forced pass, unless told otherwise by `forced`.
        Without `options` the port is captured as the command line does it; `force` overwrites an existing dump.
        """
        options = options or Options(operations=True)
        options.force = options.force or force
        if forced:
            options.then = partial(self._examine, os.path.abspath(os.fspath(path)), options)
        options.header = {
            **options.header,
            "reference": os.fspath(self.reference.path),
            "mapping": [list(pair) for pair in self.transfer.layers],
        }
        return Capture(self._adapter, self.model, path, options, progress)

    def _examine(self, path: str, options: Options, sink: Sink, order: int, seconds: float) -> None:
        """The forced pass and the trials. Whatever goes wrong in them, the free run is kept, and a note tells."""
        subject = Subject(
            self._adapter,
            self.model,
            self.reference,
            self.run,
            [step for step in self.steps if options.steps is None or step < options.steps],
            options.silence_dropout,
            options.seed,
            [list(pair) for pair in self.transfer.layers],
            self._fill_buffers,
        )
        try:
            self.examined = examine(subject, path, sink, order, seconds)
        except AlignerError:
            raise
        except BaseException as error:  # the net's own, mostly: a second run may fail where the first did not
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            sink.note(Note("", "forced-failed", {"error": said[:300]}))
            if not isinstance(error, (Exception, SystemExit)):
                raise

    def _fill_buffers(self) -> None:
        """The reference's buffers once more: a run in train mode has changed the port's."""
        buffers = {Slot(p.layer, p.role): p for p in self._adapter.parameters(self.model) if p.buffer}
        for match in self.transfer.matches:
            entry = self.reference.find(
                Key(0, Phase.PARAMETER, match.reference.slot.layer, 0, match.reference.slot.role)
            )
            if match.port.slot in buffers and entry is not None:
                self._adapter.load(buffers[match.port.slot], entry.raw(), entry.dtype)

    def close(self) -> None:
        """Close the reference."""
        self.reference.close()

    def __enter__(self) -> Replay:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        error: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        left = len(self.transfer.left_reference), len(self.transfer.left_port)
        return f"<Replay of {self.reference.path}: {len(self.transfer.matches)} parameters loaded, {left} left over>"


def _required(buffer: bool, role: str) -> bool:
    """Whether a parameter without counterpart must stop the replay; other buffers are constants nets work out anew."""
    return not buffer or role in ("running_mean", "running_var")


def _reference_items(reference: Dump, entries: Mapping[Slot, Entry]) -> list[Item]:
    """The dump's parameters; the header's table has their own names and which are buffers."""
    table = {Slot(row[0], row[1]): row for row in reference.header.get("parameters", [])}
    items = []
    for slot, entry in entries.items():
        row = table.get(slot)
        layer = reference.layers.get(slot.layer)
        name = row[2] if row else ".".join(slot).lstrip(".")
        required = _required(bool(row and row[4]), slot.role)
        items.append(Item(slot, entry.shape, name, layer.spec.kind if layer else "", required))
    return items


def _fit(model: Any, args: tuple[object, ...], kwargs: dict[str, object]) -> Arguments:
    """Arguments that the port's signature takes: unknown keyword names become positions."""
    function = getattr(model, "construct", None) or getattr(model, "forward", None)
    if not kwargs or function is None:
        return args, kwargs
    try:
        known = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return args, kwargs
    if any(p.kind is p.VAR_KEYWORD for p in known.values()) or set(kwargs) <= set(known):
        return args, kwargs
    return (*args, *kwargs.values()), {}


def replay(
    reference: Path, model: Any, *, rename: Optional[Mapping[str, str]] = None, allow_missing: bool = False
) -> Replay:
    """Load the reference's weights into `model` and make its inputs ready.

    Args:
        reference: the reference's dump.
        model: the port; its framework is found from it. It is put into the reference's train or eval mode.
        rename: reference path or prefix -> port path or prefix, where names and structure do not tell.
        allow_missing: go on although parameters are left over on either side.

    Raises:
        ReplayError: parameters are left over; they are named.
    """
    dump = open_dump(reference)
    dump.verify()
    result = Replay(dump, registry.of(model), model)
    try:
        result.load(dict(rename or {}), allow_missing)
        result.set_training(None)
    except BaseException:
        dump.close()
        raise
    return result
