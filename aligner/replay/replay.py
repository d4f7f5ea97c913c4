"""Run a port on the reference's weights and inputs, all of them out of the reference's dump.

dump entries -> transfer.plan -> Adapter.load        the weights
dump call    -> structure.rebuild -> Adapter.from_numpy   the inputs, nested as the reference got them
"""

from __future__ import annotations

import inspect
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any, Optional, Union

import numpy as np

from aligner import registry
from aligner.adapter import Adapter
from aligner.adapter import Parameter as Native
from aligner.capture.beside import renamed, told, whole
from aligner.capture.numbers import Turns
from aligner.capture.progress import Progress
from aligner.capture.session import Capture, Options
from aligner.capture.sink import Sink
from aligner.compare.layer_map import LayerMap, Rule, read_map
from aligner.compare.moved import moved
from aligner.compare.training import HELD
from aligner.dtypes import DTYPES, encode
from aligner.dump.entry import Entry
from aligner.dump.identity import LINEAGE, descended
from aligner.dump.reader import Dump, open_dump
from aligner.errors import AlignerError, ReplayError
from aligner.record import Array, Key, Note, Phase
from aligner.replay.examination import Subject, Summary, examine
from aligner.replay.loading import Loader
from aligner.replay.losing import lost_again
from aligner.replay.trained import Trained, labelled
from aligner.replay.transfer import Transfer
from aligner.replay.treated import treated_again
from aligner.structure import rebuild_arguments
from aligner.words.training import NETS

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
        self.given: Mapping[str, str] = {}
        """The user's map, name by name; compare goes by it as well."""
        self._modes: Mapping[str, bool] = {}
        self._nets = [str(name) for name in reference.header.get(NETS, ())]
        self._adapter = adapter
        self._loader = Loader(reference, adapter, model)

    @property
    def steps(self) -> Sequence[int]:
        """The steps that the reference holds inputs for."""
        return [call.step for call in self.reference.calls if call.layer == "" and call.number == 0]

    @property
    def unmoved_steps(self) -> Sequence[int]:
        """Those that the reference ran on the weights in its dump; nothing had changed them yet."""
        changed = moved(self.reference).steps
        return [step for step in self.steps if step not in changed]

    def load(self, renames: Mapping[str, str], allow_missing: bool, rules: Sequence[Rule] = ()) -> None:
        """Give the port the reference's weights; `rules` are the user's map.

        Raises:
            ReplayError: the dump holds no weights, or parameters are left over on either side.
            UsageError: the map names what is on neither side.
        """
        steps = self.steps
        arguments = partial(self.arguments, steps[0]) if steps else None
        try:
            self._loader.load(renames, allow_missing, arguments, steps[0] if steps else 0, rules)
        finally:
            self.transfer, self.given = self._loader.transfer, self._loader.given

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

    def labelled(self, step: int, like: object = None) -> list[Arguments]:
        """What the reference's net was called on in a training step, each time with the label as the last argument: of
        the integer type of a label of the port's own, if there is one."""
        own = self._adapter.dtype(like) if self._adapter.is_tensor(like) else ""

        def made(entry: Entry) -> object:
            whole = own in DTYPES and DTYPES[own].exact and DTYPES[entry.dtype].exact
            return self._adapter.from_numpy(encode(entry.raw(), own), own) if whole else self._tensor(entry)

        return labelled(self.reference, step, partial(self.arguments, step), made)

    def _tensor(self, entry: Entry) -> object:
        return self._adapter.from_numpy(entry.raw(), entry.dtype)

    def arguments(self, step: int = 0, number: int = 0) -> Arguments:
        """Positional and keyword arguments of the reference's call in this step, as tensors of the port's framework.

        Keyword arguments that the port's own signature does not know are handed over by position, in their order.

        Raises:
            ReplayError: no such step, or an argument that no dump can hold.
        """
        wanted = "", step, number
        call = next((c for c in self.reference.calls if (c.layer, c.step, c.number) == wanted), None)
        if call is None:
            have = ", ".join(map(str, self.steps)) or "-"
            raise ReplayError("step-missing", reference=os.fspath(self.reference.path), step=step, have=have)

        def tensor(slot: str) -> object:
            entry = self.reference.find(Key(step, Phase.FORWARD, "", number, slot))
            if entry is None:
                raise ReplayError("input-missing", reference=os.fspath(self.reference.path), slot=slot)
            return self._tensor(entry)

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

    def _run(self, step: int) -> None:
        """Make the first call of a step, and where several nets are one all calls that the reference makes in it."""
        numbers = [call.number for call in self.reference.calls if (call.layer, call.step) == ("", step)]
        with self._adapter.running(self.model):
            for number in sorted(numbers)[: None if self._nets else 1]:
                args, kwargs = self.arguments(step, number)
                self.model(*args, **kwargs)

    def capture(
        self,
        path: Path,
        options: Optional[Options] = None,
        progress: Optional[Progress] = None,
        *,
        forced: bool = True,
        gradients: bool = False,
        force: bool = False,
    ) -> Capture:
        """A capture of the port whose header tells what it was replayed from: `with replay.capture("port.h5"): ...`.

        At the end of the block the port runs once more for the forced pass, unless told otherwise by `forced`.
        Without `options` the port is captured as the command line does it; with `gradients` its training steps are, and
        held to the reference's; `force` overwrites an existing dump.
        """
        options = options or Options(operations=True)
        options.force, options.gradients = options.force or force, options.gradients or gradients
        options.follow = False  # a port is followed where it is held to the reference
        if not {*self._nets} <= {path for path, _ in self._adapter.layers(self.model)}:
            raise _several(self.reference, self._nets)
        pairs = {port: reference for reference, port, _ in self.transfer.layers}
        options.turns = Turns(self.reference, pairs) if self._nets else None
        if forced and options.gradients:
            held = self.reference, self._adapter, self.model, self._loader, self.transfer, self.begins
            options.holding = partial(Trained, *held)
            options.header = {**options.header, HELD: True}
        if forced:
            options.then = partial(self._examine, os.path.abspath(os.fspath(path)), options, progress)
            options.then_stopped = True
        options.header = {
            **options.header,
            "reference": os.fspath(self.reference.path),
            LINEAGE: descended(self.reference),
            "mapping": self.transfer.mapping,
            "map": [list(pair) for pair in self.given.items()],
            **(told(self._nets) if self._nets else {}),
            "reformed": self.transfer.reformed,
            "combined": self.transfer.combined,
        }
        return Capture(self._adapter, self.model, path, options, progress)

    def _examine(
        self, path: str, options: Options, progress: Optional[Progress], sink: Sink, order: int, seconds: float
    ) -> None:
        """The forced pass and the trials. Whatever goes wrong in them, the free run is kept, and a note tells."""
        with open_dump(path) as port:
            changed, stop = moved(port), port.header.get("stopped")
        last = None if stop is None else int(stop["step"])
        steps = [step for step in self.unmoved_steps if options.steps is None or step < options.steps]
        if options.gradients:  # later ones have other weights
            steps = steps[:1]
        subject = Subject(
            self._adapter,
            self.model,
            self.reference,
            self._run,
            [step for step in steps if step not in changed.steps and (last is None or step <= last)],
            options.silence_dropout,
            options.seed,
            self.transfer.mapping,
            partial(self._loader.refill, self.transfer, True),
            last,
            self.given,
            progress,
            options.search,
        )
        try:
            with self._as_loaded(bool(changed.layers) or options.gradients), self._in_modes(self._modes):
                if subject.steps:
                    self.examined = examine(subject, path, sink, order, seconds)
                if options.gradients:
                    self._treat_again(path, sink)
        except AlignerError:
            raise
        except BaseException as error:  # the net's own, mostly: a second run may fail where the first did not
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            note = Note("", "forced-failed", {"error": said[:300]})
            if not isinstance(error, (Exception, SystemExit)):
                with suppress(AlignerError):
                    sink.note(note)
                raise
            sink.note(note)

    def _treat_again(self, path: str, sink: Sink) -> None:
        single = Counter(match.port.slot for match in self.transfer.matches)
        matches = [match for match in self.transfer.matches if single[match.port.slot] == 1]
        with open_dump(path) as port:
            for kind, facts in treated_again(self.reference, port, self._adapter, matches):
                sink.finding(kind, facts)
            for kind, facts in lost_again(self.reference, port, self._adapter):
                sink.finding(kind, facts)

    def modes(self) -> Mapping[str, bool]:
        """Whether each layer of the port is in train mode."""
        return {path: self._adapter.training(layer) for path, layer in self._adapter.layers(self.model)}

    def put_modes(self, wanted: Mapping[str, bool]) -> None:
        """Each layer in train or eval mode as it was then."""
        if dict(wanted) != self.modes():
            for path, layer in self._adapter.layers(self.model):  # of one that has others inside these as well
                self._adapter.set_training(layer, wanted.get(path, self._adapter.training(layer)))

    def begins(self) -> None:
        """The net is called for the first time: its layers are in the modes that its first step has."""
        self._modes = self.modes()

    @contextmanager
    def _in_modes(self, wanted: Mapping[str, bool]) -> Iterator[None]:
        """A script may have evaluated the net since."""
        now = self.modes()
        self.put_modes({**now, **wanted})
        try:
            yield
        finally:
            self.put_modes(now)

    @contextmanager
    def _as_loaded(self, changed: bool) -> Iterator[None]:
        """The weights that were loaded, where the program has changed them since; in the end as they were."""
        kept: list[tuple[Native, Array]] = []
        if changed:
            known = [p for p in self._adapter.parameters(self.model) if p.dtype in DTYPES]
            kept = [(parameter, np.array(self._adapter.read(parameter))) for parameter in known]
            self._loader.refill(self.transfer, False)
        try:
            yield
        finally:
            for parameter, values in kept:
                self._adapter.load(parameter, values, parameter.dtype)

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


def _several(reference: Dump, names: Sequence[str]) -> ReplayError:
    return ReplayError("nets-several", reference=str(reference.path), names=", ".join(names))


def _one(reference: Dump, model: Any) -> tuple[Adapter, Any]:
    """The model with its adapter; several by name as one, under the names of the reference's."""
    names = [str(name) for name in reference.header.get(NETS, ())]
    if names and not isinstance(model, Mapping):
        raise _several(reference, names)
    if not names and isinstance(model, Mapping):
        raise ReplayError("nets-one", reference=str(reference.path))
    if not names:
        return registry.of(model), model
    adapter = registry.of(next(iter(model.values()), None))
    return adapter, whole(renamed(reference, adapter, model))[1]


def replay(
    reference: Path,
    model: Any,
    *,
    rename: Optional[Mapping[str, str]] = None,
    map: Optional[LayerMap] = None,
    allow_missing: bool = False,
) -> Replay:
    """Load the reference's weights into `model` and make its inputs ready.

    Args:
        reference: the reference's dump.
        model: the port; its framework is found from it. It is put into the reference's train or eval mode. Several
            nets by name, where the reference holds several.
        rename: reference path or prefix -> port path or prefix, where names and structure do not tell.
        map: the same as a mapping or a file, in the form that `aligner.compare` takes.
        allow_missing: go on although parameters are left over on either side.

    Raises:
        ReplayError: parameters are left over; they are named.
    """
    dump = open_dump(reference)
    try:
        dump.verify()
        result = Replay(dump, *_one(dump, model))
        result.load(dict(rename or {}), allow_missing, read_map(map))
        result.set_training(None)
    except BaseException:
        dump.close()
        raise
    return result
