"""Who is told of a module's calls: `observe` and `intervene` for one layer, `watch_roots` for a run's outermost call.

All stand on one thing: `__call__` of the package's Module is replaced while anybody is to be told, and put back
afterwards. Hooks registered on the modules would be the usual way, and were left for these reasons:

- hooks are part of a module. Pickling the net would fail on them, copy.deepcopy (an averaged copy of the net) would
  carry them along and tell of the copy's runs, and a compiler would try to compile them;
- they stand in a row with the user's own hooks, some see no keyword arguments (torch before 2.0, MindTorch), some
  never fire (MindTorch 0.3), and torch's TransformerEncoder behaves differently for having them;
- a global pre-hook, which could find the net that runs, is called when the list of its own hooks has been taken
  already, so that hooks installed then miss this very run; and nothing tells when a call ends that raised.

The price is one frame of this file for each layer in a traceback, which the script runner takes out. Not told of are
calls of `layer.forward(...)`, which pass by `__call__`, and layers inside a compiled one, which run in C++.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

from aligner import patches
from aligner.adapter import After, Before, Given, Handle, Made
from aligner.patches import Listeners, patch

OnRoot = Callable[[object], None]


class _Depth(threading.local):
    """How many module calls this thread is inside of, and how many of our callbacks."""

    calls = 0
    callbacks = 0


class Ears(NamedTuple):
    """Who is to be told of one layer's calls, those who came first in front."""

    interventions: tuple[Intervention, ...] = ()
    observers: tuple[Observer, ...] = ()

    def and_(self, listener: Listener) -> Ears:
        """With one more."""
        if isinstance(listener, Intervention):
            return self._replace(interventions=(*self.interventions, listener))
        assert isinstance(listener, Observer)
        return self._replace(observers=(*self.observers, listener))

    def without(self, listener: Listener) -> Ears:
        """With one less."""
        return Ears(
            tuple(other for other in self.interventions if other is not listener),
            tuple(other for other in self.observers if other is not listener),
        )


_NOBODY = Ears()


class Calls:
    """Everybody who is to be told of calls of one package's modules, and what is replaced for it.

    Readers take no lock: they see whole tuples. A package that needs more done overrides `begin`, `end`, `enter`,
    `is_rehearsal` and `call_instead_of`.
    """

    def __init__(self, module: Any) -> None:
        self.module = module
        self.lock = threading.RLock()
        self.ears: dict[int, Ears] = {}
        self.watchers: tuple[Watcher, ...] = ()
        self.surroundings: tuple[Surrounding, ...] = ()
        self.routes: dict[int, Callable[..., Any]] = {}
        """What an outermost call of a module goes to instead, by the module's id."""
        self.installed = patches.Handle()
        self.begun = False
        self._forgets_in_forks = False
        self.depth = _Depth()

    # What a package may do otherwise.

    def begin(self) -> None:
        """The first has come: replace what is needed."""
        self.installed.add(patch(self.module, "__call__", self.call_instead_of).remove)

    def end(self) -> None:
        """The last has gone: put it back."""
        self.installed.remove()

    def enter(self, module: Any) -> None:
        """An outermost call begins."""
        if self.watchers and not self.is_rehearsal():
            self.tell_of_root(module)

    @staticmethod
    def is_rehearsal() -> bool:
        """Whether a layer's call now is no run of the net."""
        return False

    # What an adapter hands on.

    def observe(self, layer: Any, before: Before, after: After) -> Handle:
        """Tell of every call of the layer: what it is given before any hook, what it hands on after all of them."""
        return Observer(self, layer, before, after)

    def intervene(self, layer: Any, given: Given, made: Made) -> Handle:
        """Stand around the layer, outside of all observers: they see what it really runs on and what it makes of it."""
        return Intervention(self, layer, given, made)

    def watch_roots(self, on_root: OnRoot) -> Handle:
        """Call `on_root(module)` before each outermost call of a module, in any thread."""
        return Watcher(self, on_root)

    def surround(self, make: Callable[[], AbstractContextManager[object]]) -> Handle:
        """Have each outermost call of a module, in any thread, run inside what `make()` gives."""
        return Surrounding(self, make)

    def route(self, model: Any, nets: Mapping[str, Any]) -> Handle:
        """Have each outermost call of one of these be one of the model that holds them, for `net`, its name."""
        names = {id(net): name for name, net in nets.items()}
        self.routes.update({key: partial(model, net=name) for key, name in names.items()})
        return patches.Handle(lambda: [self.routes.pop(key, None) for key in names])

    def is_in_callback(self) -> bool:
        """Whether this thread runs a callback of ours now: what that does with tensors is not the net's doing."""
        return self.depth.callbacks > 0

    @contextmanager
    def callback(self) -> Iterator[None]:
        """What runs in the block is a callback of ours."""
        self.depth.callbacks += 1
        try:
            yield
        finally:
            self.depth.callbacks -= 1

    # How it works.

    def change(self) -> None:
        """Replace what is needed when the first has come, put it back when the last has gone."""
        wanted = bool(self.ears or self.watchers or self.surroundings)
        if wanted and not self.begun:
            if not self._forgets_in_forks:
                os.register_at_fork(after_in_child=self._forget)
                self._forgets_in_forks = True
            try:
                self.begin()
            except BaseException:
                self.end()
                raise
            self.begun = True
        elif not wanted and self.begun:
            self.begun = False
            self.end()

    def _forget(self) -> None:
        """In a forked child (a worker that loads data) nobody is told: the dump belongs to the parent."""
        self.lock = threading.RLock()
        with self.lock:
            self.ears.clear()
            self.watchers = ()
            self.surroundings = ()
            self.routes.clear()
            self.change()

    def tell_of_root(self, module: Any) -> None:
        """Tell all who watch."""
        for watcher in self.watchers:
            watcher.on_root(module)

    def call_instead_of(self, original: Any, listeners: Listeners) -> Any:
        """What stands in the place of a `__call__`."""
        depth, ears_of, calls, is_rehearsal = self.depth, self.ears, self, self.is_rehearsal

        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not listeners:
                return original(self, *args, **kwargs)
            around = None
            if depth.calls == 0:
                if id(self) not in calls.routes:
                    calls.enter(self)
                if id(self) in calls.routes:  # who was told of it may have seen to that
                    return calls.routes[id(self)](*args, **kwargs)
                if calls.surroundings:
                    around = calls.surrounded()
            depth.calls += 1
            try:
                ears = ears_of.get(id(self))
                if ears is None or is_rehearsal():
                    return original(self, *args, **kwargs)
                args, kwargs = calls.tell_before(ears, args, kwargs)
                output = original(self, *args, **kwargs)
                return calls.tell_after(ears, args, kwargs, output)
            finally:
                depth.calls -= 1
                if around is not None:
                    around.close()

        # torch's compiler must not look into it.
        __call__._torchdynamo_disable = True  # type: ignore[attr-defined] # functions take attributes
        return __call__

    def surrounded(self) -> ExitStack:
        """Enter what outermost calls run inside of."""
        with ExitStack() as stack:
            for surrounding in self.surroundings:
                stack.enter_context(surrounding.make())
            return stack.pop_all()

    def tell_before(self, ears: Ears, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Ask those who intervene, then tell those who look on. Who was removed meanwhile hears no more of it."""
        self.depth.callbacks += 1
        try:
            for intervention in ears.interventions:
                if intervention.layer is not None:
                    args, kwargs = intervention.given(args, kwargs)
            for observer in ears.observers:
                if observer.layer is not None:
                    observer.before(args, kwargs)
            return args, kwargs
        finally:
            self.depth.callbacks -= 1

    def tell_after(self, ears: Ears, args: Any, kwargs: Any, output: Any) -> Any:
        """Tell those who look on what the layer made, then ask those who intervene what is handed on."""
        self.depth.callbacks += 1
        try:
            for observer in ears.observers:
                if observer.layer is not None:
                    observer.after(args, kwargs, output)
            for intervention in ears.interventions:
                if intervention.layer is not None:
                    output = intervention.made(args, kwargs, output)
            return output
        finally:
            self.depth.callbacks -= 1


class Listener:
    """One who is told of one layer's calls; a handle."""

    __slots__ = ("calls", "layer")

    def __init__(self, calls: Calls, layer: Any) -> None:
        self.calls = calls
        # The layer is kept so that its id stays its own.
        self.layer: Any = layer
        with calls.lock:
            calls.ears[id(layer)] = calls.ears.get(id(layer), _NOBODY).and_(self)
            calls.change()

    def remove(self) -> None:
        """Be told no longer; twice is harmless."""
        calls = self.calls
        with calls.lock:
            if self.layer is None:
                return
            key = id(self.layer)
            left = calls.ears.get(key, _NOBODY).without(self)
            if left == _NOBODY:
                calls.ears.pop(key, None)
            else:
                calls.ears[key] = left
            self.layer = None
            calls.change()


class Observer(Listener):
    """One who looks on."""

    __slots__ = ("after", "before")

    def __init__(self, calls: Calls, layer: Any, before: Before, after: After) -> None:
        self.before = before
        self.after = after
        super().__init__(calls, layer)


class Intervention(Listener):
    """One who says what a layer runs on, and what it hands on."""

    __slots__ = ("given", "made")

    def __init__(self, calls: Calls, layer: Any, given: Given, made: Made) -> None:
        self.given = given
        self.made = made
        super().__init__(calls, layer)


class Surrounding:
    """What outermost calls run inside of; a handle."""

    def __init__(self, calls: Calls, make: Callable[[], AbstractContextManager[object]]) -> None:
        self.calls = calls
        self.make = make
        with calls.lock:
            calls.surroundings = (*calls.surroundings, self)
            calls.change()

    def remove(self) -> None:
        """No more; twice is harmless."""
        calls = self.calls
        with calls.lock:
            calls.surroundings = tuple(other for other in calls.surroundings if other is not self)
            calls.change()


class Watcher:
    """One who is told of roots; a handle."""

    def __init__(self, calls: Calls, on_root: OnRoot) -> None:
        self.calls = calls
        self.on_root = on_root
        with calls.lock:
            calls.watchers = (*calls.watchers, self)
            calls.change()

    def remove(self) -> None:
        """Be told no longer; twice is harmless."""
        calls = self.calls
        with calls.lock:
            if self in calls.watchers:
                calls.watchers = tuple(other for other in calls.watchers if other is not self)
                calls.change()
