"""The training steps of a capture: what backward runs make, what optimizers are given, and what they leave.

    backward of a layer    gradients at its outputs and inputs, and of its parameters     phase BACKWARD
    an optimizer begins    gradients as it gets them, and what it keeps                   phase GRADIENT
    it has ended           parameters, what it keeps, buffers                             phase UPDATE
    the next step begins   what the program has changed by itself                         phase UPDATE, call 1

A step is over when a forward run begins behind an update: several optimizers, a schedule and a loss scaler may follow
each other in one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Optional, Protocol, cast

import numpy as np

from aligner.adapter import Adapter, Group, Optimizer, Parameter, Trains
from aligner.adapter import Handle as Installed
from aligner.capture.weights import Weights
from aligner.dtypes import DTYPES, decode
from aligner.errors import CaptureError
from aligner.findings import TRAINING
from aligner.patches import Handle
from aligner.record import Array, Key, Phase
from aligner.structure import Tensors
from aligner.words.optimizers import STEP
from aligner.words.training import BY_PROGRAM, LOSS, NET

if TYPE_CHECKING:
    from aligner.capture.options import Options

Place = Callable[[], tuple[int, int]]
"""Tells a step, and the number of a call of the net in it."""

Coming = Callable[[Tensors, Mapping[str, object]], tuple[int, int]]
"""Tells it of the next call, by its tensors and its keyword arguments."""

_PIECE = 1 << 16
"""Numbers that are squared at once, while they are in the processor's cache."""

Write = Callable[[Key, str, Callable[[], Any]], None]
Guard = Callable[..., None]


class Holding(Protocol):
    """Puts other values in the place of what a stage of a step has made, once that is recorded."""

    def listen(self, coming: Coming, gone: Place) -> Installed: ...
    def own(self) -> Tensors: ...
    def lost(self, step: int, call: int, loss: object, gradient: object) -> None: ...
    def raw(self, step: int, number: int, parameter: Parameter, gradient: object) -> Optional[object]: ...
    def given(self, step: int, parameter: Parameter, gradient: object) -> Optional[object]: ...
    def updated(self, step: int, optimizer: object, view: Optimizer, parameters: Sequence[Parameter]) -> None: ...
    def moves(self, step: int, parameter: Parameter, call: int) -> bool: ...
    def rest(self, step: int, parameters: Sequence[Parameter]) -> None: ...


def can_train(adapter: Adapter) -> bool:
    """Whether training steps of this framework can be captured."""
    return all(hasattr(adapter, name) for name in ("on_gradient", "updates", "optimizer", "trained"))


def check_training(adapter: Adapter, wanted: bool) -> None:
    """Refuse to capture training steps, if they are wanted, where that cannot be done.

    Raises:
        CaptureError: the adapter of this framework does not tell of training.
    """
    if wanted and not can_train(adapter):
        raise CaptureError("training-unknown", framework=adapter.name, version=adapter.version())


class Steps:
    """Those of one model. `write` keeps a value, `tell` a finding; `guard` keeps our errors away from the net."""

    def __init__(
        self,
        adapter: Adapter,
        model: object,
        weights: Weights,
        write: Write,
        tell: Callable[[str, Mapping[str, Any]], None],
        lost: Callable[[object], None],
        guard: Guard,
        options: Options,
    ) -> None:
        self._adapter, self._model, self._weights = adapter, model, weights
        self._trains = cast(Trains, adapter)
        self._write, self._tell, self._guard = write, tell, guard
        self._holding = options.holding(tell) if options.holding is not None else None
        self._turns = options.turns
        self._updated: set[tuple[str, str]] = set()
        """What was recorded behind an update of this step."""
        self._over: Optional[_Over] = None
        """The step behind which the program may still change something."""
        self._busy = False
        """An update that is under way now is ours."""
        self._call = -1
        """Of the net, that has handed something on last."""
        self.told = False
        """Whether somebody tells of losses that knows what they are made of."""
        self.lost = lost
        """Records a loss of which nothing else is known."""
        self._hooks: list[Installed] = []
        """On tensors of this step."""
        self._optimizers: dict[int, tuple[int, object]] = {}
        """Number by id; the object is kept, so that no other gets its id."""
        self._groups: dict[int, Sequence[Group]] = {}
        """By optimizer as its update begins: a schedule inside of it is a step further behind it."""
        self._told: dict[int, tuple[int, Any]] = {}
        """By optimizer the last step in which its groups were written down, and these."""
        self._runs: dict[tuple[str, str], int] = {}
        """How many backward runs have told of a parameter in this step."""
        self._owners: Optional[Mapping[int, Parameter]] = None
        self.step = 0
        self.updates = 0
        """In this step."""
        self.begun = False
        """Whether anything of this step has run."""
        self.overflowed = False
        """Whether a backward run of this step has made what is not finite: no update need follow it."""

    def listen(self, handles: list[Installed]) -> Steps:
        """From now on, until the handles are removed that are added to these."""
        handles.append(self._trains.updates(self._begun, self._ended))
        for parameter in self._owned().values():
            if parameter.trainable:
                handle = self._trains.on_gradient(parameter.tensor, partial(self._raw, parameter))
                if handle is not None:
                    handles.append(handle)
        handles.append(Handle(self._forget))
        if self._holding is not None:
            handles.append(self._holding.listen(self._coming, lambda: (self.step, self._call)))
        handles.append(self._trains.losses(self._lost_by_itself))
        return self

    def _coming(self, found: Tensors, given: Mapping[str, object]) -> tuple[int, int]:
        """Step and number of the net's next call, on these tensors and with these keyword arguments."""
        step = self.step + 1 if self._ends else self.step
        if self._turns is not None:
            read, dtype = self._adapter.to_numpy, self._adapter.dtype
            arrays = [(slot, decode(read(one), dtype(one))) for slot, one in found if dtype(one) in DTYPES]
            return step, self._turns.next(step, str(given.get(NET, "")), arrays)
        return step, 0 if self._ends else self._call + 1

    @property
    def _ends(self) -> bool:
        """Whether the net's next call begins another step: behind an update, or behind an overflow that a loss scaler
        skips the update of."""
        return self.updates > 0 or self.overflowed

    def own(self, path: str, found: Tensors) -> Tensors:
        """What the net was called on itself, where it has been given something else."""
        return self._holding.own() if self._holding is not None and not path else found

    def _lost_by_itself(self, loss: object) -> None:
        """A backward run begins, and nobody has told of its loss."""
        if not self.told and not self._busy:
            self.lost(loss)

    def _owned(self) -> Mapping[int, Parameter]:
        """The parameters by the framework's objects."""
        if self._owners is None:
            self._owners = {id(one.tensor): one for one in self._adapter.parameters(self._model)}
        return self._owners

    def _forget(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def begin(self, path: str) -> bool:
        """The net, or a part of it, is called from outside: whether that begins another step."""
        self.begun = True
        if not path and not self._ends:
            self._settle(path)
        return self._ends

    def next(self, path: str, step: int, last: bool) -> None:
        """Another step begins with this call; of the one behind the `last` nothing is recorded."""
        self._forget()
        if self._ends:
            self._over = _Over(self.step, frozenset(self._updated), self.overflowed and not self.updates)
            self._settle(path)
        self._updated.clear()
        self._runs.clear()
        self.step, self.updates, self.begun, self._call = step, 0, not last, -1
        self.overflowed = False

    def _settle(self, path: str) -> None:
        """Until the net itself is called, a program may change what the step before has left."""
        over = self._over
        self._over = over if path else None
        if over is not None:
            self._guard(self._left_by, over, path)

    def _left_by(self, over: _Over, path: str) -> None:
        """Record what the program has changed by itself (a moving average, a queue, weights cut off) and, where
        no update was made, what runs keep; of what runs now also what the reference has changed."""
        self._owners = None  # a buffer may be another object by now
        left = []
        for one in self._owned().values():
            place = one.layer, one.role
            kept = over.skipped and one.buffer and one.kept and place not in over.settled
            tried = self._holding is not None and one.trainable and place not in over.updated
            changed = self._weights.changed(one) and not tried  # an update was made again with what is tried
            runs = not path or f"{one.layer}.".startswith(f"{path}.")
            moved = kept or changed or (runs and self._moves(over.step, one, BY_PROGRAM))
            if moved and place not in over.settled:
                over.settled.add(place)
                self._moved(over.step, one, 0 if kept else BY_PROGRAM)
                left.append(one)
            elif not path and place not in over.updated:
                left.append(one)
        if self._holding is not None:
            self._holding.rest(over.step, left)
            for one in left:
                self._weights.accepted(one)

    def _moves(self, step: int, parameter: Parameter, call: int) -> bool:
        """Whether the reference tells of one what this side might not."""
        return self._holding is not None and self._holding.moves(step, parameter, call)

    def watch(self, key: Key, tensor: object) -> None:
        """A value that went into or came out of a layer: its gradient is to be recorded when it is known."""
        if not key.layer and not key.slot.startswith("input."):
            self._call = key.call
        arrived = partial(self._arrived, key._replace(phase=Phase.BACKWARD))
        if self._holding is not None and (key.layer, key.slot) == (LOSS, "output.0"):
            loss = decode(self._adapter.to_numpy(tensor), self._adapter.dtype(tensor))
            arrived = partial(self._lost, arrived, key, loss)
        handle = self._trains.on_gradient(tensor, arrived)
        if handle is not None:
            self._hooks.append(handle)

    def _arrived(self, key: Key, gradient: object) -> None:
        self._guard(self._kept, key, gradient)

    def _lost(self, arrived: Callable[[object], None], key: Key, loss: object, gradient: object) -> None:
        arrived(gradient)
        if self._holding is not None:
            self._guard(self._holding.lost, key.step, key.call, loss, gradient)

    def _raw(self, parameter: Parameter, gradient: object) -> Optional[object]:
        place = parameter.layer, parameter.role
        number = self._runs.get(place, 0)
        self._runs[place] = number + 1
        key = Key(self.step, Phase.BACKWARD, parameter.layer, number, parameter.role)
        self._guard(self._kept, key, gradient, parameter.shape)
        instead = self._instead(lambda holding: holding.raw(self.step, number, parameter, gradient))
        if not self.overflowed:
            self._guard(self._look, gradient if instead is None else instead)
        return instead

    def _look(self, gradient: object) -> None:
        self.overflowed = not np.isfinite(decode(self._adapter.to_numpy(gradient), self._adapter.dtype(gradient))).all()

    def _instead(self, ask: Callable[[Holding], Optional[object]]) -> Optional[object]:
        """What is to take a value's place, if anything is."""
        found: list[Optional[object]] = [None]
        if self._holding is not None:
            holding = self._holding

            def asked() -> None:
                found[0] = ask(holding)

            self._guard(asked)
        return found[0]

    def _kept(self, key: Key, tensor: object, shape: Optional[tuple[int, ...]] = None) -> None:
        self._write(key, self._adapter.dtype(tensor), partial(self._array, tensor, shape))

    def _array(self, tensor: object, shape: Optional[tuple[int, ...]]) -> Array:
        array = self._adapter.to_numpy(tensor)
        return array if shape is None or array.size != math.prod(shape) else array.reshape(shape)

    def _begun(self, optimizer: object, given: Sequence[tuple[object, object]]) -> Optional[Sequence[object]]:
        if self._busy:
            return None
        self._guard(self._enter, optimizer, given)
        instead = []
        for tensor, gradient in given:
            owner = self._owned().get(id(tensor)) if gradient is not None else None
            other = self._held(owner, gradient) if owner is not None else None
            instead.append(gradient if other is None else other)
        return instead if any(one is not two for one, (_, two) in zip(instead, given)) else None

    def _held(self, owner: Parameter, gradient: object) -> Optional[object]:
        return self._instead(lambda holding: holding.given(self.step, owner, gradient))

    def _enter(self, optimizer: object, given: Sequence[tuple[object, object]]) -> None:
        view = self._trains.optimizer(optimizer)
        self._groups[id(optimizer)] = view.groups
        known = id(optimizer) in self._optimizers
        number, _ = self._optimizers.setdefault(id(optimizer), (len(self._optimizers), optimizer))
        squares = 0.0
        for tensor, gradient in given:
            parameter = self._owned().get(id(tensor))
            if parameter is not None and gradient is not None:
                self._kept(_key(self.step, Phase.GRADIENT, parameter), gradient, parameter.shape)
                squares += _squares(self._adapter.to_numpy(gradient), self._adapter.dtype(gradient))
        self._describe(number, view, given, math.sqrt(squares))
        if not known:  # later on it is what the last update has left
            self._state(view, Phase.GRADIENT)

    def _describe(self, number: int, view: Optimizer, given: Sequence[tuple[object, object]], norm: float) -> None:
        """The settings of its groups, and whose they are."""
        rows: list[Any] = [
            {"settings": dict(group.settings), "parameters": self._places(group.parameters)} for group in view.groups
        ]
        none = self._places(parameter for parameter, gradient in given if gradient is None)
        counted = next((value for _, word, value in view.state if word == STEP), 0)
        count = int(self._array(counted, None).reshape(-1)[0]) if self._adapter.is_tensor(counted) else counted
        facts: dict[str, Any] = {"step": self.step, "optimizer": number, "kind": view.kind, "type": view.type}
        facts.update(count=count, norm=norm)
        step, before = self._told.get(number, (-1, None))
        if before == (rows, none):
            self._tell(TRAINING, {**facts, "like": step})
        else:
            self._told[number] = self.step, (rows, none)
            self._tell(TRAINING, {**facts, "groups": rows, "without": none})

    def _places(self, tensors: Iterable[object]) -> list[list[str]]:
        """Of those that are this net's."""
        found = (self._owned().get(id(tensor)) for tensor in tensors)
        return [[one.layer, one.role] for one in found if one is not None]

    def _ended(self, optimizer: object) -> None:
        if not self._busy:
            self._busy = True
            try:
                self._guard(self._leave, optimizer)
            finally:
                self._busy = False

    def _leave(self, optimizer: object) -> None:
        view = self._trains.optimizer(optimizer)
        view = replace(view, groups=self._groups.get(id(optimizer), view.groups))
        owned = self._owned()
        changed = [owned[id(t)] for group in view.groups for t in group.parameters if id(t) in owned]
        if not self.updates:
            known = {id(parameter) for parameter in changed}
            others = (parameter for parameter in owned.values() if id(parameter) not in known)
            changed += [
                p for p in others if (p.buffer and p.kept) or (not p.trainable and self._moves(self.step, p, 0))
            ]
        self._updated |= {(parameter.layer, parameter.role) for parameter in changed}
        for parameter in changed:
            self._moved(self.step, parameter)
        self._state(view, Phase.UPDATE)
        if self._holding is not None:
            self._holding.updated(self.step, optimizer, view, changed)
            for parameter in changed:
                self._weights.accepted(parameter)
        self.updates += 1

    def _moved(self, step: int, parameter: Parameter, call: int = 0) -> None:
        key = _key(step, Phase.UPDATE, parameter)._replace(call=call)
        self._write(key, parameter.dtype, partial(self._weights.accepted, parameter))

    def _state(self, view: Optimizer, phase: Phase) -> None:
        for tensor, word, value in view.state:
            parameter = self._owned().get(id(tensor))
            if parameter is None or word == STEP or not self._adapter.is_tensor(value):
                continue
            if (
                phase is Phase.UPDATE or self._adapter.to_numpy(value).any()
            ):  # what begins with zeros begins with nothing
                key = _key(self.step, phase, parameter)
                self._kept(key._replace(slot=f"{key.slot}.{word}"), value, parameter.shape)


@dataclass
class _Over:
    """A step that is over: what was recorded behind its updates, and behind these."""

    step: int
    updated: frozenset[tuple[str, str]]
    skipped: bool
    settled: set[tuple[str, str]] = field(default_factory=set)


def _squares(array: Array, dtype: str) -> float:
    """Their sum, piece by piece: the whole of a large gradient in float64 would be twice as large as itself."""
    flat, total = array.reshape(-1), 0.0
    for at in range(0, flat.size, _PIECE):
        piece = decode(flat[at : at + _PIECE], dtype)
        for part in (np.real(piece), np.imag(piece)) if np.iscomplexobj(piece) else (piece,):
            numbers = part.astype(np.float64)
            total += float(np.dot(numbers, numbers))
    return total


def _key(step: int, phase: Phase, parameter: Parameter) -> Key:
    return Key(step, phase, parameter.layer, 0, parameter.role)
