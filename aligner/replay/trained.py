"""Training steps of a port, each held to the reference's where one stage of a step hands on to the next.

    data -> net -> loss -> backward -> what is made of gradients -> update -> the next step

Each stage is given what the reference has there, so what it makes of that is its own doing, in every step: a wrong
update in the first does not drown the fifth. What a stage made by itself is recorded before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Optional, cast

import numpy as np

from aligner.adapter import Adapter, Handle, Optimizer, Parameter, Trains
from aligner.capture.steps import Coming, Place
from aligner.capture.task import Arguments
from aligner.compare.training import as_it_begins
from aligner.dtypes import DTYPES, decode, encode
from aligner.errors import ReplayError
from aligner.findings import TRAINING
from aligner.record import Array, Key, Phase
from aligner.replay.again import Again
from aligner.replay.items import Match, Slot
from aligner.structure import (
    Tensors,
    flatten_arguments,
    flatten_result,
    rebuild_arguments,
    substitute_arguments,
    substitute_result,
)
from aligner.training import losses
from aligner.words.optimizers import STEP
from aligner.words.training import LOSS

if TYPE_CHECKING:
    from aligner.dump.reader import Dump, Entry
    from aligner.replay.loading import Loader
    from aligner.replay.transfer import Transfer


Called = tuple[tuple[object, ...], Mapping[str, object]]


def trained_steps(reference: Dump) -> Sequence[int]:
    """The steps of a dump in which an optimizer has made an update."""
    return sorted({int(facts["step"]) for kind, facts in reference.findings if kind == TRAINING})


def labelled(
    reference: Dump, step: int, arguments: Callable[[int], Arguments], made: Callable[[Entry], object]
) -> list[Arguments]:
    """What the net was called on in a step, call by call, each with its label as the last one.

    Raises:
        ReplayError: a label is not in the dump.
    """
    rows: list[Arguments] = []
    losses = {call.number: call for call in reference.calls if (call.step, call.layer) == (step, LOSS)}
    for number in sorted(losses):

        def tensor(slot: str, number: int = number) -> object:
            entry = reference.find(Key(step, Phase.FORWARD, LOSS, number, slot))
            if entry is None:
                raise ReplayError("input-missing", reference=str(reference.path), slot=f"{LOSS} {slot}")
            return made(entry)

        args, kwargs = arguments(number)
        try:
            _, label = rebuild_arguments(losses[number].inputs, tensor)[0]
        except (LookupError, ValueError) as error:
            raise ReplayError("input-opaque", kind=str(error)) from error
        rows.append(((*args, label), kwargs))
    return rows


class Trained:
    """Holds the stages of a port's steps to the reference's."""

    def __init__(
        self,
        reference: Dump,
        adapter: Adapter,
        model: object,
        loader: Loader,
        transfer: Transfer,
        begins: Callable[[], None],
        tell: Callable[[str, Mapping[str, Any]], None],
    ) -> None:
        self._reference, self._adapter, self._model, self._loader = reference, adapter, model, loader
        self._trains = cast(Trains, adapter)
        self._matches: dict[Slot, list[Match]] = {}
        for match in transfer.matches:
            self._matches.setdefault(match.port.slot, []).append(match)
        self._begins: Optional[Callable[[], None]] = begins
        """To be told of the net's first call."""
        self._again = Again(reference, adapter, model, self, tell)
        self._updated = {*trained_steps(reference)}
        self._own: Tensors = []
        self._called: set[int] = set()
        """The calls of the net in this step."""
        self._in, self._joins = -1, -1
        """The step that it is in, and the last one whose losses the port differentiates as one."""
        self._scale = 1.0
        """How many times the reference's the gradients of this step are: by another loss scale."""
        self._times = 1.0
        """What of this stands in the loss itself."""

    def listen(self, coming: Coming, gone: Place) -> Handle:
        """Have what the net is given and hands on, and the gradient that comes back to it, be the reference's, until
        the handle is removed; `coming` tells step and number of the net's next call, `gone` those of the last."""

        def given(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Called:
            own: Tensors = []
            flatten_arguments(args, kwargs, self._adapter.is_tensor, own)
            return self._given(args, kwargs, own, *coming(own, kwargs))

        def made(args: object, kwargs: object, output: object) -> object:
            return self._handed(output, *gone())

        return self._adapter.intervene(self._model, given, made)

    def own(self) -> Tensors:
        """What the net was called on last, before it was given the reference's."""
        return self._own

    def _given(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], own: Tensors, step: int, call: int
    ) -> Called:
        if self._begins is not None:
            self._begins()
            self._begins = None
        if step != self._in:
            self._in, self._called = step, set()
        self._called.add(call)
        self._own = own
        others: dict[str, object] = {}
        for slot, tensor in self._own:
            entry = self._reference.find(Key(step, Phase.FORWARD, "", call, slot))
            if entry is not None and tuple(entry.shape) == self._adapter.to_numpy(tensor).shape:
                other = self.like(entry.raw(), entry.dtype, tensor, 1.0)
                exact = DTYPES[self._adapter.dtype(tensor)].exact  # else a loss may take the gradient of it
                others[slot] = other if exact else self._trains.held(tensor, other)
        return substitute_arguments(args, kwargs, others)

    def _handed(self, output: object, step: int, call: int) -> object:
        found: Tensors = []
        flatten_result(output, self._adapter.is_tensor, found)
        others: dict[str, object] = {}
        for slot, tensor in found:
            entry = self._reference.find(Key(step, Phase.FORWARD, "", call, slot))
            if entry is None or tuple(entry.shape) != self._adapter.to_numpy(tensor).shape:
                continue
            back = self._reference.find(Key(step, Phase.BACKWARD, "", call, slot))
            if back is not None:
                self._trains.on_gradient(tensor, partial(self._back, back))
            others[slot] = self._trains.held(tensor, self.like(entry.raw(), entry.dtype, tensor, 1.0))
        return substitute_result(output, others)

    def _back(self, entry: Entry, gradient: object) -> object:
        return self.like(entry.raw(), entry.dtype, gradient, self._scale)

    def lost(self, step: int, call: int, loss: object, gradient: object) -> None:
        """The gradient at a loss is what it is multiplied by before the backward run."""
        number = float(np.asarray(loss, np.float64).reshape(-1)[0])
        self._joins = step if not call and self._is_sum(step, number) else -1
        of = None if self._joins == step else call
        self._times = losses.times(self._reference, step, of, number, self._times)
        entry = self._reference.find(Key(step, Phase.BACKWARD, LOSS, call, "output.0"))
        if entry is not None:
            ours = float(decode(self._adapter.to_numpy(gradient), self._adapter.dtype(gradient)).reshape(-1)[0])
            theirs = float(entry.load().reshape(-1)[0])
            usable = ours and theirs and np.isfinite((ours, theirs)).all()
            self._scale = self._times * (ours / theirs if usable else 1.0)

    def _is_sum(self, step: int, loss: float) -> bool:
        """Whether a step's first loss of the port's is all of the reference's in one: when it is differentiated, the
        net has been called as often as for the last of these, and it is nearer to their sum than to the first."""
        made = self._reference.calls
        last = max((one.first for one in made if (one.step, one.layer) == (step, LOSS)), default=0)
        wanted = {one.number for one in made if (one.step, one.layer) == (step, "") and one.first < last}
        first, whole = (losses.value(self._loss(step)), losses.whole(self._reference, step))
        if first is None or whole is None or first == whole or not wanted <= self._called:
            return False
        return abs(loss - whole) < abs(loss - first)

    def _loss(self, step: int) -> Optional[Entry]:
        return self._reference.find(Key(step, Phase.FORWARD, LOSS, 0, "output.0"))

    def raw(self, step: int, number: int, parameter: Parameter, gradient: object) -> Optional[object]:
        """What the reference's backward run of this number made for a parameter, or all of them together."""
        key = Key(step, Phase.BACKWARD, "", number, "")
        found = self.value(parameter, key)
        if found is None or step != self._joins:
            return None if found is None else self.like(*found, gradient, self._scale)
        whole = np.zeros(found[0].shape)
        while found is not None:
            whole = whole + decode(*found).astype(np.float64)
            key = key._replace(call=key.call + 1)
            found = self.value(parameter, key)
        return self.like(whole, "float64", gradient, self._scale)

    def given(self, step: int, parameter: Parameter, gradient: object) -> Optional[object]:
        """What the reference's optimizer is given for a parameter."""
        found = self.value(parameter, Key(step, Phase.GRADIENT, "", 0, ""))
        return None if found is None else self.like(*found, gradient, 1.0)

    def updated(self, step: int, optimizer: object, view: Optimizer, parameters: Sequence[Parameter]) -> None:
        """An optimizer has made its update: these parameters and buffers, and what it keeps of them, are to be the
        reference's from now on. Where its update is wrong, it is made again with other settings before that."""
        self._again.tried(step, optimizer, view)
        for parameter in parameters:
            left = self.value(parameter, Key(step, Phase.UPDATE, "", 0, "")) or self.begun(parameter, step + 1)
            if left is not None:
                self._adapter.load(parameter, *left)
        owners = {id(parameter.tensor): parameter for parameter in parameters}
        skipped = step not in self._updated
        for tensor, word, kept in view.state:
            owner = owners.get(id(tensor))
            if owner is None or not self._adapter.is_tensor(kept):
                continue
            found = self.value(owner, Key(step, Phase.UPDATE, "", 0, ""), word) if word != STEP else None
            if found is None and skipped:  # the reference has made no update: all is to be as the step began
                found = self._as_it_was(owner, step, word, kept)
            if found is not None:
                self._trains.put(kept, self.like(*found, kept, 1.0))

    def _as_it_was(self, owner: Parameter, step: int, word: str, kept: object) -> tuple[Array, str]:
        """What an optimizer kept before an update that the reference has not made."""
        dtype, shape = self._adapter.dtype(kept), self._adapter.to_numpy(kept).shape
        found = self.begun(owner, step, word) if word != STEP else None
        count = sum(one < step for one in self._updated) if word == STEP else 0
        return found or (encode(np.full(shape, count, np.float64), dtype), dtype)

    def owner(self, parameter: Parameter) -> Optional[Slot]:
        """The reference's parameter, where one alone stands for it."""
        matches = self._matches.get(Slot(parameter.layer, parameter.role), ())
        return matches[0].reference.slot if len(matches) == 1 else None

    def moves(self, step: int, parameter: Parameter, call: int) -> bool:
        """Whether the reference has this record of what a step leaves of a parameter."""
        found = self._matches.get(Slot(parameter.layer, parameter.role), ())
        slots = (match.reference.slot for match in found)
        return any(
            self._reference.find(Key(step, Phase.UPDATE, one.layer, call, one.role)) is not None for one in slots
        )

    def rest(self, step: int, parameters: Sequence[Parameter]) -> None:
        """Give parameters and buffers what the reference has made of them up to the end of a step."""
        for parameter in parameters:
            found = self.begun(parameter, step + 1)
            if found is not None:
                self._adapter.load(parameter, *found)

    def begun(self, parameter: Parameter, step: int, word: str = "") -> Optional[tuple[Array, str]]:
        """A parameter of the reference's, or what its optimizer keeps of it, as a step begins, in the port's form."""

        def find(one: Slot) -> Optional[Entry]:
            key = Key(step, Phase.UPDATE, one.layer, 0, f"{one.role}.{word}" if word else one.role)
            return as_it_begins(self._reference, key, bool(word))

        slot = Slot(parameter.layer, parameter.role)
        return self._loader.counterpart(slot, self._matches.get(slot, ()), find)

    def value(self, parameter: Parameter, key: Key, word: str = "") -> Optional[tuple[Array, str]]:
        """What stands for a parameter in the reference's records like this one."""
        slot, end = Slot(parameter.layer, parameter.role), f".{word}" if word else ""

        def find(one: Slot) -> Optional[Entry]:
            return self._reference.find(key._replace(layer=one.layer, slot=f"{one.role}{end}"))

        return self._loader.counterpart(slot, self._matches.get(slot, ()), find)

    def like(self, array: Array, dtype: str, like: object, times: float) -> object:
        """A recorded value as a tensor of the type and form of another, times a factor."""
        wanted, shape = self._adapter.dtype(like), self._adapter.to_numpy(like).shape
        if times != 1.0:
            array = encode(decode(array, dtype).astype(np.float64) * times, dtype)
        array = array if dtype == wanted else encode(decode(array, dtype), wanted)
        return self._adapter.from_numpy(np.ascontiguousarray(array).reshape(shape), wanted)
