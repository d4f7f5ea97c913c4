"""One call of a layer of the port, run again on the reference's inputs, from its source as it is or edited.

Layers in it that have a counterpart run once, on the reference's inputs, and hand on the reference's outputs; after
that they hand these on without running.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from types import FunctionType
from typing import Any, Optional

from aligner.adapter import Adapter
from aligner.compare.checks import Check
from aligner.compare.net import CallId, is_input
from aligner.fingerprint import print_of
from aligner.mending.care import Care
from aligner.mending.events import RETURN, Event
from aligner.mending.ground import Ground
from aligner.mending.heard import Deaf, Heard
from aligner.mending.memory import Arguments, Memory
from aligner.mending.sources import Sources
from aligner.mending.witness import Caught
from aligner.patches import together
from aligner.record import Call, Key, Phase
from aligner.source.constructing import Building
from aligner.source.ear import Ear, replaced
from aligner.source.functions import differs
from aligner.structure import Tensors, flatten_arguments, flatten_result, substitute_arguments, substitute_result
from aligner.values import Values

KEPT = 64 << 20
"""Bytes of what layers hand on that are kept from one run to the next."""


Vain = Callable[[Key, float], bool]
"""Of a value and how far it is off: whether an edit that makes it is none."""


class InVainError(Exception):
    """What is run has shown already that it does not do."""


class FailedError(Exception):
    """The code raised, or was not run to its end because a kernel may die of it."""


class LostError(FailedError):
    """What the call was given cannot be built again, as objects of the user's."""


class Running:
    """Runs calls of the port's layers. To be used as a context: layers run their code through it meanwhile."""

    def __init__(self, adapter: Adapter, model: Any, ground: Ground) -> None:
        self.adapter, self.ground = adapter, ground
        self._model = model
        self._plan = ground.plan
        self._paths = {id(layer): path for path, layer in adapter.layers(model)}
        self._state: Optional[_State] = None
        self._buildings: dict[str, Optional[Building]] = {}

    @contextmanager
    def installed(self) -> Iterator[Running]:
        """Until the end each layer's code is run by this."""
        with together() as handle:
            try:
                for path, layer in self.adapter.layers(self._model):
                    owner, name = self.adapter.computing(layer)
                    handle.add(replaced(owner, name, partial(self._called, path, getattr(owner, name))))
                yield self
            finally:
                handle.remove()

    def counterpart(self, layer: object) -> Optional[str]:
        """The reference's layer that one of the port's is paired with, if its next call is held to it."""
        path = self._paths.get(id(layer))
        return None if path is None or path not in self._plan.layers else self._plan.layers[path]

    def parent(self, call: Call, checks: Sequence[Check]) -> Parent:
        """A call that can be run again."""
        return Parent(self, call, checks)

    def building(self, path: str) -> Optional[Building]:
        """How a layer is built; None if that cannot be run again, or does not make what the layer has."""
        if path not in self._buildings:
            self._buildings[path] = None
            building = Building.of(self.adapter, self.ground.layer(path))
            with suppress(Exception):  # then what it has is what it is
                if building is not None and building.heard(self.ear(Deaf(), Sources({}), None)):
                    self._buildings[path] = building
        return self._buildings[path]

    def run(self, state: _State) -> None:
        """Run a call once."""
        self._state = state
        try:
            layer = self.ground.layer(state.call.layer)
            args, kwargs = state.arguments
            with self.adapter.running(layer):
                layer(*args, **kwargs)  # type: ignore[operator]  # a layer is called
        except InVainError:
            raise
        except Exception as error:
            raise FailedError(f"{type(error).__name__}: {error}") from error
        finally:
            self._state = None

    def _called(self, path: str, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._state is None:
            return inner(*args, **kwargs)
        return self._state.called(path, inner, args, kwargs)

    def ear(self, listener: Any, sources: Sources, runner: Optional[Care]) -> Ear:
        """What rewritten code calls."""
        return Ear(self.adapter, self._paths, listener, sources.texts, runner)


class Parent:
    """One call of a layer, and the values of its code that are looked at."""

    def __init__(self, running: Running, call: Call, checks: Sequence[Check]) -> None:
        self.running, self.call, self.checks = running, call, checks
        self.kept: dict[CallId, tuple[Any, dict[str, int], object]] = {}
        """What layers handed on, and what tells whether it is that still."""
        self.changing: set[CallId] = set()
        """Calls that hand on what the code writes into."""
        self.bytes = 0
        self.given: dict[CallId, object] = {}
        """What the port's own code gives to the layers that it calls."""
        self._memory: Optional[Memory] = None
        self._empty: Optional[bool] = None
        """Whether its own code has values without elements."""
        self.before = running.ground.before(call)
        self.used: frozenset[FunctionType] = frozenset()
        """The user's functions that the last run went through."""

    def trial(self, sources: Sources, vain: Vain = lambda key, error: False) -> Mapping[Key, float]:
        """How far off each value is that is looked at.

        Raises:
            InVainError: of one of them `vain` says that there is no need to go on.
            FailedError: the code raises.
        """
        return self._run(sources, Deaf(), vain, None).errors

    def heard(self, sources: Sources) -> tuple[Heard, _State]:
        """The same, and what happened. What was made is remembered."""
        self._memory = Memory(Values(self.running.adapter), self._arguments())
        found = self._heard(sources, self._memory)
        self._memory.close()
        return found

    def caught(self, number: int) -> Caught:
        """The same, with what the operation of that number was given."""
        listener = Caught(self.running.adapter, self.running.counterpart, number)
        self._run(Sources({}), listener, lambda key, error: False, None)
        return listener

    def tried(self, sources: Sources, vain: Vain) -> Mapping[Key, float]:
        """What `trial` gives, from memory where it can."""
        return self._run(sources, Deaf(), vain, self._remembered()).errors

    def heard_again(self, sources: Sources) -> tuple[Heard, _State]:
        """What `heard` gives, from memory where it can."""
        return self._heard(sources, self._remembered())

    def concerned(self, used: Iterable[FunctionType], one: Sources, other: Sources) -> bool:
        """Whether a run that goes through these functions does something else with other edits than with these."""
        files = ((function, function.__code__.co_filename) for function in used)
        if any(differs(function, one.texts.get(file), other.texts.get(file)) for function, file in files):
            return True
        building = self.running.building(self.call.layer)
        return building is not None and building.concerns(other.texts)

    def forget(self) -> None:
        """Let go of what layers handed on, and of what is remembered."""
        self.kept.clear()
        self.bytes, self._memory = 0, None

    def _remembered(self) -> Optional[Memory]:
        if self._memory is not None and self._memory.spoiled:  # what layers handed on may have been written into, too
            self.forget()
        if self._memory is not None:
            self._memory.begin()
        return self._memory

    def _heard(self, sources: Sources, memory: Optional[Memory]) -> tuple[Heard, _State]:
        listener = Heard(self.running.adapter, sources, self.running.counterpart, memory)
        return listener, self._run(sources, listener, lambda key, error: False, memory)

    def _run(self, sources: Sources, listener: Any, vain: Vain, memory: Optional[Memory]) -> _State:
        arguments = self._arguments() if memory is None else memory.arguments
        runner = memory if memory is not None else self._care(sources)
        ear = self.running.ear(listener, sources, runner)
        state = _State(self, ear, listener, vain, arguments, sources)
        with self._built(sources, listener):
            self.running.run(state)
        self.used = frozenset(ear.used)
        if not sources.texts:
            self._empty = runner.empty
        return state

    @contextmanager
    def _built(self, sources: Sources, listener: Any) -> Iterator[None]:
        """While the layer has the tables that it would have been built with."""
        building = self.running.building(self.call.layer)
        if building is None or not (isinstance(listener, Heard) or building.concerns(sources.texts)):
            yield
            return
        ear = self.running.ear(listener, sources, Care(Values(self.running.adapter), True, trusts=not sources.texts))
        try:
            made = building.run(ear)
        except Exception as error:
            raise FailedError(f"{type(error).__name__}: {error}") from error
        with building.instead(made):
            yield

    def _arguments(self) -> Arguments:
        try:
            return self.running.ground.arguments(self.call)
        except LookupError as error:
            raise LostError(str(error)) from error

    def _care(self, sources: Sources) -> Care:
        if sources.texts and self._empty is None:
            self.trial(Sources({}))
        return Care(Values(self.running.adapter), bool(self._empty), trusts=not sources.texts)


class _State:
    """A run that is under way."""

    def __init__(
        self, parent: Parent, ear: Ear, listener: Any, vain: Vain, arguments: Arguments, sources: Sources
    ) -> None:
        self._vain, self.arguments = vain, arguments
        self._edited = bool(sources.texts)
        more, fewer = (
            {one.layer for one in parent.given if names & {*one.layer.split(".")}}
            for names in (sources.added(), sources.removed())
        )
        self._more_of, self._fewer_of = more, fewer
        """Layers that edits may call once more, or once less."""
        self._taken: set[Optional[CallId]] = set()
        self.call = parent.call
        self.errors: dict[Key, float] = {}
        self.found: dict[Key, int] = {}
        """The numbers of the values that are looked at."""
        self.at: dict[Key, tuple[int, Optional[Event]]] = {}
        """How many events there were when they were, and the one that uses the value: a layer's call, or the return."""
        self.users: dict[CallId, Optional[Event]] = {}
        """The events that are calls of layers which are held."""
        self._parent, self._ear, self._listener = parent, ear, listener
        running = parent.running
        self._adapter, self._ground = running.adapter, running.ground
        self._counts = {**parent.before, parent.call.layer: parent.call.number}
        self._depth = 0
        self._added = 0
        """Calls that are under way and that edits added."""

    def called(self, path: str, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A layer is called."""
        number = self._counts.get(path, 0)
        self._counts[path] = number + 1
        this = CallId(path, number)
        if self._added:
            return self._more(inner, args, kwargs)
        if self._depth == 0:
            return self._outermost(this, inner, args, kwargs)
        if self._depth > 1:
            return self._inner(inner, args, kwargs)
        same = self._same(this, args, kwargs)
        if same is None:
            return self._more(inner, args, kwargs)
        if same not in self._ground.plan.calls:
            return self._inner(inner, args, kwargs)
        return self._held(same, inner, args, kwargs)

    def _same(self, this: CallId, args: Any, kwargs: Any) -> Optional[CallId]:
        """Which call of the port's own code this is, where edits call a layer once more, or once less; None for a call
        that they add. It is given other values than any was. Behind one that they take away others may be, too.
        """
        given = self._parent.given
        if not self._edited:
            given[this] = self._mark(args, kwargs)
        if this.layer not in self._more_of | self._fewer_of:
            return this
        left = [one for one in given if one.layer == this.layer and one not in self._taken]
        mark = self._mark(args, kwargs)
        same = next((one for one in left if given[one] == mark), None)
        if same is None and this.layer in self._fewer_of:
            same = next((one for one in left if one in self._ground.plan.calls), None)
        self._taken.add(same)
        return same

    def _mark(self, args: Any, kwargs: Any) -> object:
        found: Tensors = []
        flatten_arguments(args, kwargs, self._adapter.is_tensor, found)
        return tuple(print_of(self._adapter.to_numpy(tensor)) for _, tensor in found)

    def _more(self, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call that edits add: all of it runs, with what they change inside it."""
        self._added += 1
        try:
            return (self._ear.form(inner) or inner)(*args, **kwargs)
        finally:
            self._added -= 1

    def _outermost(self, this: CallId, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        self._depth = 1
        try:
            output = self._inner(inner, args, kwargs)
        finally:
            self._depth = 0
        found: Tensors = []
        flatten_result(output, self._adapter.is_tensor, found)
        self._look(this, found)
        return output

    def _inner(self, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Code of the parent's own, or of a layer that the reference has not."""
        form = self._ear.form(inner) if self._depth == 1 else None
        return (form or inner)(*args, **kwargs)

    def _held(self, this: CallId, inner: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        found: Tensors = []
        flatten_arguments(args, kwargs, self._adapter.is_tensor, found)
        self._look(this, found)
        if isinstance(self._listener, Heard):
            self.users[this] = self._user(this)
        if this in self._parent.kept:
            output, counts, mark = self._parent.kept[this]
            if self._mark((output,), {}) == mark:
                self._counts.update(counts)
                return output
            del self._parent.kept[this]  # the code writes into it
            self._parent.changing.add(this)
        before = dict(self._counts)
        args, kwargs = substitute_arguments(args, kwargs, self._ground.others(self.call, this, found))
        self._depth += 1
        try:
            output = inner(*args, **kwargs)
        finally:
            self._depth -= 1
        found = []
        flatten_result(output, self._adapter.is_tensor, found)
        given = self._ground.others(self.call, this, found)
        output = substitute_result(output, given)
        if not any(self._is_own(this, slot, tensor) for slot, tensor in found if slot not in given):
            self._keep(this, output, found, before)
        return output

    def _is_own(self, this: CallId, slot: str, tensor: object) -> bool:
        """Whether a value has another size than its counterpart: what is made depends on what the code gives."""
        entry = self._ground.plan.entries.get(Key(self.call.step, Phase.FORWARD, *this, slot))
        return entry is not None and math.prod(entry.shape) != math.prod(self._adapter.to_numpy(tensor).shape)

    def _keep(self, this: CallId, output: Any, found: Tensors, before: Mapping[str, int]) -> None:
        size = sum(self._adapter.to_numpy(tensor).nbytes for _, tensor in found)
        if self._parent.bytes + size <= KEPT and this not in self._parent.changing:
            self._parent.bytes += size
            counts = {path: count for path, count in self._counts.items() if before.get(path, 0) != count}
            self._parent.kept[this] = output, counts, self._mark((output,), {})

    def _user(self, this: CallId) -> Optional[Event]:
        if self._depth == 0:
            return next((one for one in reversed(self._listener.story.events) if one.word == RETURN), None)
        pending = self._listener.pending[-1:]
        return next((one for one in pending if one.layer == self._ground.plan.layers.get(this.layer)), None)

    def _look(self, this: CallId, found: Tensors) -> None:
        tensors = dict(found)
        for check in self._parent.checks:
            key = check.port
            if (key.layer, key.call) != this or is_input(key.slot) == (self._depth == 0) or key in self.errors:
                continue
            if key.slot in tensors:
                self.errors[key] = self._ground.off(check, tensors[key.slot])
                if self._vain(key, self.errors[key]):
                    raise InVainError
                if isinstance(self._listener, Heard):
                    self.found[key] = self._listener.number(tensors[key.slot])
                    self.at[key] = len(self._listener.story.events), self._user(this)
