"""One call of a layer of the port, run again on the reference's inputs, from its source as it is or edited.

Layers in it that have a counterpart run once, on the reference's inputs, and hand on the reference's outputs; after
that they hand these on without running.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property, partial
from types import FunctionType
from typing import Any, Optional

from aligner.adapter import Adapter
from aligner.compare.checks import Check
from aligner.compare.net import CallId
from aligner.dtypes import DTYPES, decode, encode
from aligner.effects import Change, Effects
from aligner.fingerprint import Fingerprint
from aligner.mending.care import Care, Tables
from aligner.mending.chosen import NO_ROWS
from aligner.mending.failing import EnoughError, FailedError, InVainError, LostError
from aligner.mending.ground import Ground, UnderWay
from aligner.mending.heard import Heard
from aligner.mending.memory import Arguments
from aligner.mending.rerun import Rerun, Vain
from aligner.mending.right import alike
from aligner.mending.sources import Sources
from aligner.mending.stirring import Stirring
from aligner.mending.whole import Whole
from aligner.noise import DISTURBED, apart, noise
from aligner.patches import together
from aligner.record import Call, Key
from aligner.source.caches import Caches
from aligner.source.constructing import Building, tables
from aligner.source.ear import SECONDS, Ear, replaced
from aligner.source.functions import differs
from aligner.source.listening import Deaf, Listener
from aligner.structure import Tensors, flatten_arguments, substitute_arguments
from aligner.values import Values

STEPS = 2.0
"""An operation that rounds otherwise is a whole step of its floats off as often as not: half a step is lost again where
its result is rounded."""


class Running:
    """Runs calls of the port's layers. To be used as a context: layers run their code through it meanwhile."""

    def __init__(self, adapter: Adapter, model: Any, ground: Ground, ending: Set[str] = frozenset()) -> None:
        self.adapter, self.ground = adapter, ground
        self._model = model
        self._plan = ground.plan
        self.ending = ending
        """Layers with a counterpart that end elsewhere: what they do after it is code of those around them."""
        self._paths = {id(layer): path for path, layer in adapter.layers(model)}
        self._state: Optional[UnderWay] = None
        self._buildings: dict[str, Optional[Building]] = {}
        self._known: dict[Building, bool] = {}
        """Whether layers have what these make."""
        self.spacing = DISTURBED * (DTYPES[self._plan.short or "float32"].eps or 0.0)
        self.rounding = noise(self.spacing)
        """What rounding may make of a value."""

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

    @cached_property
    def caches(self) -> Caches:
        """What the user's files and layers keep from call to call."""
        layers = (layer for _, layer in self.adapter.layers(self._model))
        return Caches(layers, self.adapter.packages, Values(self.adapter).holds)

    @cached_property
    def tables(self) -> Set[int]:
        """What the layers keep, by identity."""
        return {id(value) for _, layer in self.adapter.layers(self._model) for value in tables(self.adapter, layer)}

    @cached_property
    def made_for(self) -> Mapping[CallId, CallId]:
        """The port's call by the reference's."""
        return {theirs: own for own, theirs in self._plan.calls.items()}

    @cached_property
    def mixed(self) -> Set[str]:
        """The port's layers that are called where the reference calls another one, and those that this is."""
        calls, layers = self._plan.calls, self._plan.layers
        others = {theirs.layer for own, theirs in calls.items() if layers.get(own.layer) != theirs.layer}
        own = {own.layer for own, theirs in calls.items() if theirs.layer in others}
        return {own for own, theirs in layers.items() if theirs in others} | {one for one in own if one in layers}

    def counterpart(self, layer: object) -> Optional[str]:
        """The reference's layer that one of the port's is paired with, if its next call is held to it."""
        path = self._paths.get(id(layer))
        held = path is not None and path in self._plan.layers and path not in self.ending
        return self._plan.layers[path] if path is not None and held else None

    def parent(self, call: Call, checks: Sequence[Check]) -> Parent:
        """A call that can be run again."""
        return Parent(self, call, checks)

    def buildings(self, path: str) -> list[Building]:
        """How a layer is built, and those in it whose code is run with its own, as the reference has none like them."""
        inside = f"{path}." if path else ""
        own = (
            one
            for one in self._paths.values()
            if one.startswith(inside) and (one in self.ending or one not in self._plan.layers)
        )
        return [building for one in (path, *own) if (building := self._building(one)) is not None]

    def _building(self, path: str) -> Optional[Building]:
        """None if that cannot be run again, or does not make what the layer has."""
        if path not in self._buildings:
            self._buildings[path] = None
            building = Building.of(self.adapter, self.ground.layer(path))
            known = building is not None and (not building.has_tables or self.known(building))
            self._buildings[path] = building if known else None
        return self._buildings[path]

    def known(self, building: Building) -> bool:
        """Whether a layer has what it is seen to be built with."""
        if building not in self._known:
            self._known[building] = False
            with suppress(Exception):  # then what it has is what it is
                self._known[building] = building.heard(self.ear(Deaf(), Sources({}), None))
        return self._known[building]

    def run(self, state: UnderWay, anew: bool) -> None:
        """Run a call once; `anew`: what the user's files keep from call to call is made again."""
        self._state = state
        layer = self.ground.layer(state.call.layer)
        args, kwargs = state.arguments
        effects = Effects(args, kwargs)
        try:
            with self.adapter.running(layer), self.caches.emptied(anew):
                layer(*args, **kwargs)  # type: ignore[operator]  # a layer is called
        except InVainError:
            raise
        except Exception as error:
            raise FailedError(f"{type(error).__name__}: {error}") from error
        finally:
            self._state = None
            effects.undone()

    def _called(self, path: str, inner: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if self._state is None:
            return inner(*args, **kwargs)
        return self._state.called(path, inner, args, kwargs)

    def ear(self, listener: Any, sources: Sources, runner: Optional[Care], seconds: float = math.inf) -> Ear:
        """What rewritten code calls."""
        return Ear(self.adapter, self._paths, listener, sources.texts, runner, seconds)


class Parent:
    """One call of a layer, and the values of its code that are looked at."""

    def __init__(self, running: Running, call: Call, checks: Sequence[Check]) -> None:
        self.running, self.call, self.checks = running, call, checks
        self.kept: dict[CallId, tuple[Any, dict[str, int], object, object, Sequence[Change]]] = {}
        """What layers handed on, what tells whether it is that still, what they were given if some of it is their own,
        and what they changed in that.
        """
        self.lone: set[CallId] = set()
        """Calls that hand on something of their own beside the reference's values."""
        self.changing: set[CallId] = set()
        """Calls that hand on what the code writes into."""
        self.forms: dict[Key, Optional[Fingerprint]] = {}
        """Values in a form of the port's own, as its code makes them without edits."""
        self.kinds: dict[Key, str] = {}
        """Which kind of numbers it gives to the layers that it calls."""
        self.bytes, self.rows = 0, NO_ROWS
        self.turns: Sequence[str] = ()
        """Layers that are called in the place of each other, in their order."""
        self.given: dict[CallId, object] = {}
        """What the port's own code gives to the layers that it calls."""
        self.numbers: dict[CallId, Mapping[str, object]] = {}
        """Plain numbers that the port's own code gives them."""
        self._memory: Optional[Whole] = None
        self._first: Optional[tuple[frozenset[tuple[str, str]], tuple[Heard, Rerun]]] = None
        """What was heard when what is remembered was made, and of which texts."""
        self._errors: dict[frozenset[tuple[str, str]], Mapping[Key, float]] = {}
        """Of each text that was run in earnest."""
        self._empty: Optional[bool] = None
        """Whether its own code has values without elements."""
        self._anew: Optional[bool] = None
        self.stops = False
        """Its code as it stands raises, behind what is wrong in it."""
        self._took = 0.0
        """Seconds that its code takes as it stands: what takes longer may have no end."""
        self.before = running.ground.before(call)
        self._tables = Tables(running.tables)
        self.used: frozenset[FunctionType] = frozenset()
        """The user's functions that the last run went through."""

    def _makes_anew(self) -> bool:
        """Whether its code does what it did where what is kept from call to call is made again: a state is not made."""
        if self._anew is None:
            self._anew = False
            if self.running.caches.filled:
                known = self._plainly()
                self._anew = True
                made = self._plainly()
                self._anew = bool(known) and alike(known, made)
        return self._anew

    def is_steady(self) -> bool:
        """Whether its code does the same when it is run again: one that keeps a state does not find it as it was.

        Raises:
            FailedError: the code raises.
        """
        return alike(self.trial(Sources({})), self.heard(Sources({}))[1].errors)

    def _plainly(self) -> Mapping[Key, float]:
        with suppress(FailedError):
            return self._run(Sources({}), Deaf(), lambda key, error: False, None).errors
        return {}

    def trial(self, sources: Sources) -> Mapping[Key, float]:
        """How far off each value is that is looked at. It is run once: code that divides by next to nothing makes some
        other rounding of it each time.

        Raises:
            FailedError: the code raises.
        """
        texts = frozenset(sources.texts.items())
        if texts not in self._errors:
            self._errors[texts] = self._run(sources, Deaf(), lambda key, error: False, None).errors
        return self._errors[texts]

    def heard(self, sources: Sources) -> tuple[Heard, Rerun]:
        """The same, and what happened. What was made is remembered."""
        texts = frozenset(sources.texts.items())
        if self._memory is None or self._memory.spoiled or self._first is None or self._first[0] != texts:
            self._memory = Whole(Values(self.running.adapter), self._arguments(), self._tables)
            self._first = texts, self._heard(sources, self._memory)
            self._memory.close()
        return self._first[1]

    def told(self, listener: Listener) -> None:
        """Let one hear what its code does as it stands."""
        self._run(Sources({}), listener, lambda key, error: False, None)

    def tried(self, sources: Sources, vain: Vain, until: Optional[Key] = None) -> Mapping[Key, float]:
        """What `trial` gives, from memory where it can, and up to a value.

        Raises:
            InVainError: of one of them `vain` says that there is no need to go on.
            FailedError: the code raises.
        """
        return self._run(sources, Deaf(), vain, self._remembered(), until).errors

    def heard_again(self, sources: Sources, until: Optional[Key] = None) -> tuple[Heard, Rerun]:
        """What `heard` gives, from memory where it can, and up to a value."""
        return self._heard(sources, self._remembered(), until)

    def moved(self, sources: Sources, key: Key) -> float:
        """How far a value moves where what the code is given is disturbed by as much as rounding may.

        Raises:
            FailedError: the code raises.
        """
        kept, self.kept = self.kept, {}
        try:
            plain = self._run(sources, Deaf(), lambda key, error: False, None, key).last
            self.kept = {}
            other = self._run(sources, Deaf(), lambda key, error: False, None, key, self._disturbed).last
        finally:
            self.kept = kept
        return 0.0 if plain is None or other is None or plain.shape != other.shape else apart(other, plain)

    def stirred(self, sources: Sources, key: Key, seeds: Iterable[int]) -> float:
        """How far a value moves, at least, where each operation of the code rounds otherwise.

        Raises:
            FailedError: the code raises.
        """
        adapter = self.running.adapter
        changes = [noise(STEPS * self.running.spacing, seed) for seed in seeds]
        runners = [None, *(Stirring(Values(adapter), adapter, change) for change in changes)]
        plain, *others = (
            self._run(sources, Deaf(), lambda key, error: False, None, key, runner=one).last for one in runners
        )
        known = [one for one in others if plain is not None and one is not None and one.shape == plain.shape]
        return min((apart(one, plain) for one in known), default=0.0) if plain is not None else 0.0

    def _disturbed(self, found: Tensors) -> Mapping[str, object]:
        adapter, change = self.running.adapter, self.running.rounding
        told = [(slot, tensor, adapter.dtype(tensor)) for slot, tensor in found]
        return {
            slot: adapter.from_numpy(encode(change(decode(adapter.to_numpy(tensor), word), word), word), word)
            for slot, tensor, word in told
            if word in DTYPES and not DTYPES[word].exact
        }

    def concerned(self, used: Iterable[FunctionType], one: Sources, other: Sources) -> bool:
        """Whether a run that goes through these functions does something else with other edits than with these."""
        files = ((function, function.__code__.co_filename) for function in used)
        if any(differs(function, one.texts.get(file), other.texts.get(file)) for function, file in files):
            return True
        return any(building.concerns(other.texts) for building in self.running.buildings(self.call.layer))

    def forget(self) -> None:
        """Let go of what layers handed on, and of what is remembered."""
        self.kept.clear()
        self.bytes, self._memory, self._first = 0, None, None

    def _remembered(self) -> Optional[Whole]:
        if self._memory is not None and self._memory.spoiled:  # what layers handed on may have been written into, too
            self.forget()
        if self._memory is not None:
            self._memory.begin()
        return self._memory

    def _heard(self, sources: Sources, memory: Optional[Whole], until: Optional[Key] = None) -> tuple[Heard, Rerun]:
        listener = Heard(self.running.adapter, sources, self.running.counterpart, memory, self.rows)
        return listener, self._run(sources, listener, lambda key, error: False, memory, until)

    def _run(
        self,
        sources: Sources,
        listener: Any,
        vain: Vain,
        memory: Optional[Whole],
        until: Optional[Key] = None,
        disturb: Optional[Callable[[Tensors], Mapping[str, object]]] = None,
        runner: Optional[Care] = None,
    ) -> Rerun:
        arguments = self._arguments() if memory is None else memory.arguments
        if disturb is not None:
            found: Tensors = []
            flatten_arguments(*arguments, self.running.adapter.is_tensor, found)
            args, kwargs = substitute_arguments(*arguments, disturb(found))
            arguments = args, {**kwargs}
        runner = runner or (memory if memory is not None else self._care(sources))
        ear = self.running.ear(listener, sources, runner, self._took + SECONDS)
        state = Rerun(self, ear, listener, vain, arguments, sources, until, disturb)
        if memory is not None:
            concerned = any(one.concerns(sources.texts) for one in self.running.buildings(self.call.layer))
            memory.under_way(None if concerned else state, sources)
        began = time.monotonic()
        with self._built(sources, listener), suppress(EnoughError):
            try:
                self.running.run(state, self._makes_anew())
            except FailedError:  # what is wrong does not fit what the reference's layers hand on: so far it is told
                if sources.texts or not any(check.fails for check in self.checks) or not state.errors:
                    raise
                self.stops = True
        self._took = max(self._took, 0.0 if sources.texts else time.monotonic() - began)
        self.used = frozenset(ear.used)
        if not sources.texts:
            self._empty = runner.empty
        return state

    @contextmanager
    def _built(self, sources: Sources, listener: Any) -> Iterator[None]:
        """While the layer, and those in it, have the tables that they would have been built with."""
        concerned = [
            building
            for building in self.running.buildings(self.call.layer)
            if (building.has_tables and isinstance(listener, Heard)) or building.concerns(sources.texts)
            if self.running.known(building)
        ]
        with ExitStack() as instead:
            for building in concerned:
                runner = Care(Values(self.running.adapter), True, trusts=not sources.texts)
                try:
                    made = building.run(self.running.ear(listener, sources, runner))
                except Exception as error:
                    raise FailedError(f"{type(error).__name__}: {error}") from error
                instead.enter_context(building.instead(made))
            yield

    def _arguments(self) -> Arguments:
        try:
            return self.running.ground.arguments(self.call)
        except LookupError as error:
            raise LostError(str(error)) from error

    def _care(self, sources: Sources) -> Care:
        if sources.texts and self._empty is None:
            self.trial(Sources({}))
        return Care(Values(self.running.adapter), bool(self._empty), not sources.texts, self._tables)
