"""One layer of the port run by itself on the reference's inputs, or a copy of it with something changed."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping
from contextlib import ExitStack
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.adapter import Adapter
from aligner.compare.checks import LIMIT, OTHER_SHAPE, SAME_COUNT, Check
from aligner.compare.formed import due
from aligner.compare.held import Held, held
from aligner.compare.net import CallId
from aligner.compare.pairing import Pair
from aligner.compare.reading import LOW_PRECISION, read
from aligner.compare.tolerance import Tolerance
from aligner.compare.training import as_it_begins
from aligner.dtypes import DTYPES, decode, encode
from aligner.explain.suspect import Suspect
from aligner.record import Array, Call, Key, LayerSpec, Phase
from aligner.replay.answering import Made
from aligner.replay.built import built
from aligner.replay.code import Again, Code, numbers_before
from aligner.replay.forms import laid, laid_out, once, own_axes
from aligner.replay.frames import Plan
from aligner.replay.judgement import as_entry, judged
from aligner.replay.masks import as_mask
from aligner.replay.objects import copied
from aligner.replay.weights import Weights
from aligner.source.owning import is_own
from aligner.structure import Form, Tensors, flatten_result, rebuild_arguments

if TYPE_CHECKING:
    from aligner.dump.reader import Dump

WHOLE = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)) | {"bool"}
"""Types of whole numbers, and of truth values."""

LAID = 1e-4
"""A value that is off by no more is known again in another order of axes."""


class Alone:
    """Runs single layers; nothing of the port is changed by it."""

    def __init__(
        self, adapter: Adapter, model: Any, reference: Dump, port: Dump, plan: Plan, silence_dropout: bool = False
    ) -> None:
        self._adapter = adapter
        self._silence_dropout = silence_dropout
        self._reference = reference
        self._port = port
        self.plan = plan
        self._layers = dict(adapter.layers(model))
        self._calls = {(c.step, c.layer, c.number): c for c in port.calls if c.phase is Phase.FORWARD}
        self._ports = {one: other for other, one in reversed([*plan.layers.items()])}
        self._single = self._singles()
        self._rule = Tolerance()
        self._weights = Weights(adapter, model, reference, port, plan)
        self.instead: dict[str, object] = {}
        """Layers of the user's classes that may stand in the place of others, by the text that builds them."""

    def arguments(self, call: Call) -> tuple[tuple[object, ...], dict[str, object]]:
        """The reference's arguments of a call of the port's, in the port's form.

        Raises:
            LookupError: an argument of it is in no dump.
        """
        return self._rebuilt(call, lambda slot: self._argument(call, slot, None))

    def _rebuilt(self, call: Call, tensor: Callable[[str], object]) -> tuple[tuple[object, ...], dict[str, object]]:
        objects = self.plan.objects.get((call.step, CallId(call.layer, call.number)), ())
        return rebuild_arguments(call.inputs, tensor, (copied(one, self._adapter.is_tensor) for one in objects))

    def before(self, call: Call) -> Mapping[str, int]:
        """How often each layer had run in its step when this call began."""
        return numbers_before(self._calls.values(), call)

    def others(self, call: Call, this: CallId, found: Tensors) -> Mapping[str, object]:
        """The reference's values for those of one call inside `call`, each in its own type; whole numbers in the
        port's, for kernels take but some."""
        others = Code(self._adapter, self.plan, None, call, {}, None).others(*this, found, None)
        for slot, tensor in found:
            entry = self.plan.entries.get(Key(call.step, Phase.FORWARD, *this, slot))
            word = self._adapter.dtype(tensor)
            if entry is None or not {entry.dtype, word} <= WHOLE or self._adapter.to_numpy(tensor).shape != entry.shape:
                continue
            wanted = entry.raw()
            own = wanted.astype(DTYPES[word].storage)
            if np.array_equal(own, wanted):
                others[slot] = self._adapter.from_numpy(own, word)
        return others

    def is_given_objects(self, call: Call) -> bool:
        """Whether a call of the port's is given objects of the user's: what is in them was made elsewhere."""
        objects = self.plan.objects.get((call.step, CallId(call.layer, call.number)), ())
        return any(one is not None and not isinstance(one, Form) for one in objects)

    def off(self, check: Check, tensor: object) -> float:
        """How far a value is off that was made at a check's place, as the forced pass tells it."""
        border = check.passed_on or check.against
        entry = self._reference.find(border) if border is not None else self.plan.entries.get(check.port)
        entry = entry or self._reference.find(check.key) or self.plan.entries.get(check.port)
        if entry is None:
            raise LookupError(check.port.slot)
        found = Held(check.port, 0, self._adapter.dtype(tensor), self._adapter.to_numpy(tensor))
        rows, own = due(entry, found.raw()), self._port.find(check.port)
        wanted = held(entry) if rows is None else Held(entry.key, entry.order, entry.dtype, rows)
        wanted = once(wanted, found) if check.reason == OTHER_SHAPE else wanted
        usual = (wanted.shape,) if check.reason == OTHER_SHAPE or own is None else (wanted.shape, own.shape)
        told = as_mask(wanted, found, own)
        if told is not None:
            return told
        plain = self._port.find(check.port._replace(phase=Phase.FORCED)) if check.reason == OTHER_SHAPE else None
        axes = check.axes or own_axes(wanted, plain, found, LIMIT * check.expected)
        if axes is None and len(wanted.shape) and found.shape not in usual:
            return math.inf  # the same values, with axes of one elsewhere: other code may not take them so
        if axes is not None:
            wanted = laid(wanted, axes, found.shape)
        elif check.reason == SAME_COUNT and found.shape != wanted.shape:  # as the port's layer takes it
            order = laid_out(wanted, found.raw(), found.dtype, LIMIT * check.expected) or (*range(len(wanted.shape)),)
            if order and wanted.shape[order[-1]] != found.shape[-1]:  # the same numbers in other rows
                return math.inf
            wanted = laid(wanted, order, found.shape)
        return judged(self.plan.short, wanted, found, (check.where, check.owner, check.between), False).error

    def takes(self, call: Call) -> bool:
        """Whether the port's layer makes of the reference's arguments what the reference's makes of them."""
        try:
            copy = self._adapter.respecified(self._layers[call.layer], {}, None)
            args, kwargs = self.arguments(call)
            return self._deviation(call, self._run(copy, args, kwargs), None) <= 1.0
        except Exception:  # the user's code may raise anything; it does not take them then
            return False

    def _singles(self) -> Container[Made]:
        """Calls of the port's that hand on one tensor, of the type and shape of the reference's."""
        found = set()
        for (step, layer, number), call in self._calls.items():
            address = Key(step, Phase.FORWARD, layer, number, "output.0")
            own, wanted = self._port.find(address), self.plan.entries.get(address)
            alike = own and wanted and (own.shape, own.dtype) == (wanted.shape, wanted.dtype)
            if alike and call.outputs == {"tensor": "output.0"}:
                found.add((step, CallId(layer, number)))
        return found

    def layer(self, path: str) -> Optional[object]:
        """The port's layer."""
        return self._layers.get(path)

    def port_of(self, layer: str) -> str:
        """The port's counterpart of one of the reference's layers."""
        return self._ports.get(layer, layer)

    def spec(self, path: str) -> Optional[LayerSpec]:
        """What the port's layer was built with."""
        return self._adapter.spec(self._layers[path]) if path in self._layers else None

    def size(self, path: str) -> int:
        """Elements of all parameters of the port's layer."""
        return sum(math.prod(parameter.shape) for parameter in self._adapter.parameters(self._layers[path]))

    def is_own(self, path: str) -> bool:
        """Whether the port's layer is of a class of the user's own."""
        return path in self._layers and is_own(self._adapter, self._layers[path])

    def error(
        self,
        check: Check,
        suspect: Optional[Suspect] = None,
        dtype: Optional[str] = None,
        told: Optional[Callable[[Key, str, Array], None]] = None,
        added: Optional[Key] = None,
        others: Mapping[str, object] = MappingProxyType({}),
    ) -> float:
        """How far the check's layer is off on the reference's inputs, with what the suspect says undone: the worst of
        its outputs.

        `told` gets each output that has a counterpart, by the port's address; `added` is an argument of the reference
        that the port's call was not given; `others` stand for arguments.

        Raises:
            ValueError: such a copy cannot be made; the text says why.
            LookupError: the call cannot be made again: an argument of it is in no dump.
        """
        call = self._calls[check.port.step, check.port.layer, check.port.call]
        copy = self._changed(call.layer, check.key.layer, suspect, dtype)
        own = partial(self._argument, call, dtype=dtype, axes=check.axes)
        args, kwargs = self._rebuilt(call, lambda slot: others[slot] if slot in others else own(slot))
        if added is not None:
            args, kwargs = self._with(args, kwargs, added)
        output = self._run(copy, args, kwargs)
        return self._deviation(call, output, told, check.axes)

    def counted(self, path: str, key: Key, suspect: Optional[Suspect]) -> float:
        """How far off what a layer keeps of a step's calls is, the reference's statistics before it and its inputs
        given: the worst, as a part of what the step changes.

        Raises:
            ValueError, LookupError: as `error`.
        """
        copy = self._changed(path, key.layer, suspect, None)
        wanted = {
            p: self._reference.find(key._replace(slot=p.role)) for p in self._adapter.parameters(copy) if p.buffer
        }
        begun = {p: as_it_begins(self._reference, key._replace(slot=p.role)) for p in wanted}
        for parameter, entry in begun.items():
            if entry is not None:
                self._adapter.load(parameter, entry.raw(), entry.dtype)
        for call in sorted(self._calls.values(), key=lambda call: call.first):
            if (call.step, call.layer) == (key.step, path):
                args, kwargs = self.arguments(call)
                self._run(copy, args, kwargs)
        off = [0.0]
        for parameter, entry in wanted.items():
            before = begun[parameter]
            if entry is not None and before is not None and not DTYPES[entry.dtype].exact:
                right, first = (np.asarray(one.load(), np.float64) for one in (entry, before))
                own = np.asarray(decode(self._adapter.read(parameter), parameter.dtype), np.float64)
                change = float(np.linalg.norm(right - first))
                off.append(float(np.linalg.norm(own - right)) / (change or 1.0))
        return max(off)

    def _changed(self, path: str, ours: str, suspect: Optional[Suspect], dtype: Optional[str]) -> object:
        """A copy of the port's layer at `path` with that undone, or the layer that the suspect builds in its place."""
        layer = self._layers[path]
        if suspect is not None and suspect.built:
            made = self.instead[text] if (text := suspect.built) in self.instead else built(self._adapter, text)
            self._adapter.set_training(made, self._adapter.training(layer))
            self._weights.load(made, ours, [p.role for p in self._adapter.parameters(made)])
            return made
        copy = self._adapter.respecified(layer, {} if suspect is None else suspect.change, dtype)
        if suspect is not None and suspect.training is not None:
            self._adapter.set_training(copy, suspect.training)
        if suspect is not None:
            self._weights.load(copy, ours, suspect.parameters)
            self._weights.load_inside(copy, layer, ours)
            self._weights.load(copy, ours, list(suspect.turned), suspect.turned)
        if dtype is not None:
            self._weights.load_all(copy, path)
        return copy

    @property
    def rough(self) -> float:
        """What the reference's own rounding makes of a whole net, where it computes in a short type itself."""
        return 10 * LOW_PRECISION * max((DTYPES[word].eps or 0.0 for word in self.plan.lowered.values()), default=0.0)

    def inside(
        self, check: Check, dtype: Optional[str], given: Optional[str], suspect: Optional[Suspect] = None
    ) -> tuple[float, Again]:
        """A value that code of a parent makes, made again by a copy of all of the parent in `dtype`; and its error.

        The layers inside hand on the reference's values, in the float type `given`. What the suspect says is undone.

        Raises:
            ValueError, LookupError: as `error`.
        """
        around = self.parent(check)
        copy = self._changed(around.layer, check.owner, suspect, dtype)
        args, kwargs = self._rebuilt(around, lambda slot: self._wide(around, slot, dtype, given))
        before = numbers_before(self._calls.values(), around)
        code = Code(self._adapter, self.plan, copy, around, before, given, self._single)
        made = code.value(check, lambda: self._run(copy, args, kwargs))
        return self._severity(check.port, made.tensor), made

    def widened(self, dtype: str) -> tuple[object, Callable[[int], None]]:
        """A copy of the whole port in `dtype`, and what runs it on the reference's inputs of a step.

        Raises:
            ValueError: it cannot be copied.
        """
        copy = self._adapter.respecified(self._layers[""], {}, dtype)
        self._weights.load_all(copy, "")

        def run(step: int) -> None:
            for call in sorted(self._calls.values(), key=lambda call: call.first):
                if (call.step, call.layer) == (step, ""):
                    args, kwargs = self._rebuilt(call, partial(self._wide, call, dtype=dtype, given=dtype))
                    self._run(copy, args, kwargs)

        return copy, run

    def _wide(self, call: Call, slot: str, dtype: Optional[str], given: Optional[str]) -> object:
        """An argument, its floats in the type `given`."""
        tensor = self._argument(call, slot, dtype)
        word = self._adapter.dtype(tensor)
        if given is None or word == given or DTYPES[word].exact or "complex" in word:
            return tensor
        return self._adapter.from_numpy(encode(decode(self._adapter.to_numpy(tensor), word), given), given)

    def parent(self, check: Check) -> Call:
        """The call whose code made the check's value."""
        own = self._calls[check.port.step, check.port.layer, check.port.call]
        return self.around(own, self.port_of(check.owner))

    def around(self, own: Call, parent: str) -> Call:
        """The call of the port's layer `parent` in which this one was made."""
        calls = (call for call in self._calls.values() if (call.step, call.layer) == (own.step, parent))
        return next(c for c in calls if c.first <= own.first and (c.last is None or own.first <= c.last))

    def _run(self, copy: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        with ExitStack() as stack:
            stack.enter_context(self._adapter.running(copy))
            if self._silence_dropout and self._adapter.training(copy):  # a copy comes without the port's hooks
                stack.callback(self._adapter.silence_dropout(copy).remove)
            return copy(*args, **kwargs)  # type: ignore[operator]  # a layer is called

    def _with(
        self, args: tuple[object, ...], kwargs: Mapping[str, object], added: Key
    ) -> tuple[tuple[object, ...], dict[str, object]]:
        """The arguments with one more: by its name, or at its place behind the others (None stands for what lacks)."""
        entry = self._reference.find(added)
        if entry is None:
            raise LookupError(added.slot)
        tensor = self._adapter.from_numpy(entry.raw(), entry.dtype)
        name = added.slot.partition(".")[2]
        if not name.isdigit():
            return args, {**kwargs, name: tensor}
        filled = [*args, *[None] * (int(name) + 1 - len(args))]
        filled[int(name)] = tensor
        return tuple(filled), dict(kwargs)

    def _argument(self, call: Call, slot: str, dtype: Optional[str], axes: Optional[tuple[int, ...]] = None) -> object:
        """The reference's value in the port's form, with its axes in this order; the port's own where it has none."""
        address = Key(call.step, Phase.FORWARD, call.layer, call.number, slot)
        own = self._port.find(address)
        wanted = self.plan.entries.get(address)
        entry = wanted or self._port.find(address._replace(phase=Phase.FORCED)) or own
        if entry is None:
            raise LookupError(slot)
        value, word = entry.raw(), entry.dtype
        if own is not None and wanted is not None and own.dtype != word:
            exact = DTYPES[own.dtype].exact, DTYPES[word].exact
            if exact[0] != exact[1]:
                value, word = own.raw(), own.dtype
            elif exact[0] or dtype is None:
                value, word = encode(decode(value, word), own.dtype), own.dtype
        axes = self.plan.orders.get(address) if axes is None else axes
        if own is not None and wanted is not None and axes is not None and value.size == math.prod(own.shape):
            plain = Held(address, 0, word, value)
            turned = laid(plain, axes, own.shape) if len(axes) in (value.ndim, len(own.shape)) else plain
            value = turned.raw() if turned.shape == own.shape else value
        if own is not None and value.size == math.prod(own.shape) and value.ndim != len(own.shape):
            value = value.reshape(own.shape)
        return self._adapter.from_numpy(value, word)

    def _deviation(
        self,
        call: Call,
        output: object,
        told: Optional[Callable[[Key, str, Array], None]],
        axes: Optional[tuple[int, ...]] = None,
    ) -> float:
        found: Tensors = []
        flatten_result(output, self._adapter.is_tensor, found)
        worst = 0.0
        judged = False
        for slot, tensor in found:
            address = Key(call.step, Phase.FORWARD, call.layer, call.number, slot)
            entry = self.plan.entries.get(address)
            dtype = self._adapter.dtype(tensor)
            if entry is None or dtype not in DTYPES:
                continue
            if told is not None:
                told(address, dtype, self._adapter.to_numpy(tensor))
            worst = max(worst, self._severity(address, tensor, axes))
            judged = True
        if not judged:
            raise ValueError("nothing that came out has a counterpart")
        return worst

    def _severity(self, address: Key, tensor: object, axes: Optional[tuple[int, ...]] = None) -> float:
        """How far off a value is that has a counterpart."""
        found: Any = Held(address, 0, self._adapter.dtype(tensor), self._adapter.to_numpy(tensor))
        entry, axes = self.plan.entries[address], axes or self.plan.orders.get(address)
        alike = math.prod(entry.shape) == math.prod(found.shape)
        if alike and axes is not None and len(axes) in (len(entry.shape), len(found.shape)):
            wanted = held(entry)
            return read(Pair(as_entry(laid(wanted, axes, found.shape)), found), self._rule).severity
        if entry.shape != found.shape:
            wanted = held(entry)
            order = laid_out(wanted, found.raw(), found.dtype, LAID)
            if order is not None:
                return read(Pair(as_entry(laid(wanted, order, found.shape)), found), self._rule).severity
        return read(Pair(entry, found), self._rule).severity
