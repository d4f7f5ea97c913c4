"""Who is told of a module's calls: `observe` and `intervene` for one layer, `watch_roots` for a run's outermost call.

All stand on one thing: `nn.Module.__call__` is replaced while anybody is to be told, and put back afterwards. Hooks
registered on the modules would be the usual way, and were left for these reasons:

- hooks are part of a module. torch.save and pickle of the net would fail on them, copy.deepcopy (an averaged copy of
  the net) would carry them along and tell of the copy's runs, and torch.jit.script would try to compile them;
- they stand in a row with the user's own hooks, before torch 2.0 they see no keyword arguments, and TransformerEncoder
  behaves differently for having them;
- a global pre-hook, which could find the net that runs, is called when the list of its own hooks has been taken
  already, so that hooks installed then miss this very run; and nothing tells when a call ends that raised.

The price is one frame of this file for each layer in a traceback, which the script runner takes out. Not told of are
calls of `layer.forward(...)`, which pass by `__call__`, and layers inside a scripted one, which run in C++.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, NamedTuple, Optional

import torch
from torch import nn

from aligner.adapter import After, Before, Given, Handle, Made
from aligner_hooks.torch_.eager import Hold, is_rehearsal, stop_compiling

OnRoot = Callable[[object], None]


class _Depth(threading.local):
    """How many module calls this thread is inside of, and how many of our callbacks."""

    calls = 0
    callbacks = 0


class _Ears(NamedTuple):
    """Who is to be told of one layer's calls, those who came first in front."""

    interventions: tuple[Intervention, ...] = ()
    observers: tuple[Observer, ...] = ()

    def and_(self, listener: Listener) -> _Ears:
        """With one more."""
        if isinstance(listener, Intervention):
            return self._replace(interventions=(*self.interventions, listener))
        assert isinstance(listener, Observer)
        return self._replace(observers=(*self.observers, listener))

    def without(self, listener: Listener) -> _Ears:
        """With one less."""
        return _Ears(
            tuple(other for other in self.interventions if other is not listener),
            tuple(other for other in self.observers if other is not listener),
        )


_NOBODY = _Ears()


class _Replaced:
    """An attribute with another value, until it is put back."""

    def __init__(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        self.owner, self.name = owner, name
        self.original = vars(owner)[name]
        self.ours = make(self.original)
        setattr(owner, name, self.ours)

    def put_back(self) -> None:
        """The old value again; if somebody has wrapped ours since, theirs stays, and ours only hands on."""
        if vars(self.owner)[self.name] is self.ours:
            setattr(self.owner, self.name, self.original)


class _Told:
    """Everybody who is to be told, and what is replaced for it. Readers take no lock: they see whole tuples."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.ears: dict[int, _Ears] = {}
        self.watchers: tuple[Watcher, ...] = ()
        self.replaced: list[_Replaced] = []
        self.hold: Optional[Hold] = None
        self.forgets_in_forks = False

    def change(self) -> None:
        """Replace what is needed when the first has come, put it back when the last has gone."""
        wanted = bool(self.ears or self.watchers)
        if wanted and self.hold is None:
            if not self.forgets_in_forks:
                os.register_at_fork(after_in_child=_forget)
                self.forgets_in_forks = True
            self.hold = Hold()
            self.replaced.append(_Replaced(nn.Module, "__call__", _call_instead_of))
            if hasattr(torch, "compile"):
                self.replaced.append(_Replaced(torch, "compile", _compile_instead_of))
        elif not wanted and self.hold is not None:
            while self.replaced:
                self.replaced.pop().put_back()
            self.hold.remove()
            self.hold = None


_TOLD = _Told()
_DEPTH = _Depth()


def _forget() -> None:
    """In a forked child (a worker that loads data) nobody is told: the dump belongs to the parent."""
    _TOLD.lock = threading.RLock()
    with _TOLD.lock:
        _TOLD.ears.clear()
        _TOLD.watchers = ()
        _TOLD.change()


class Listener:
    """One who is told of one layer's calls; a handle."""

    __slots__ = ("layer",)

    def __init__(self, layer: Any) -> None:
        # The layer is kept so that its id stays its own.
        self.layer: Any = layer
        with _TOLD.lock:
            _TOLD.ears[id(layer)] = _TOLD.ears.get(id(layer), _NOBODY).and_(self)
            _TOLD.change()

    def remove(self) -> None:
        """Be told no longer; twice is harmless."""
        with _TOLD.lock:
            if self.layer is None:
                return
            key = id(self.layer)
            left = _TOLD.ears.get(key, _NOBODY).without(self)
            if left == _NOBODY:
                _TOLD.ears.pop(key, None)
            else:
                _TOLD.ears[key] = left
            self.layer = None
            _TOLD.change()


class Observer(Listener):
    """One who looks on."""

    __slots__ = ("after", "before")

    def __init__(self, layer: Any, before: Before, after: After) -> None:
        self.before = before
        self.after = after
        super().__init__(layer)


class Intervention(Listener):
    """One who says what a layer runs on, and what it hands on."""

    __slots__ = ("given", "made")

    def __init__(self, layer: Any, given: Given, made: Made) -> None:
        self.given = given
        self.made = made
        super().__init__(layer)


class Watcher:
    """One who is told of roots; a handle."""

    def __init__(self, on_root: OnRoot) -> None:
        self.on_root = on_root
        with _TOLD.lock:
            _TOLD.watchers = (*_TOLD.watchers, self)
            _TOLD.change()

    def remove(self) -> None:
        """Be told no longer; twice is harmless."""
        with _TOLD.lock:
            if self in _TOLD.watchers:
                _TOLD.watchers = tuple(other for other in _TOLD.watchers if other is not self)
                _TOLD.change()


def observe(layer: Any, before: Before, after: After) -> Handle:
    """Tell of every call of the layer: what it is given before any hook, what it hands on after all of them."""
    return Observer(layer, before, after)


def intervene(layer: Any, given: Given, made: Made) -> Handle:
    """Stand around the layer, outside of all observers: they see what it really runs on and what it makes of that."""
    return Intervention(layer, given, made)


def watch_roots(on_root: OnRoot) -> Handle:
    """Call `on_root(module)` before each outermost call of a module, in any thread."""
    return Watcher(on_root)


def is_in_callback() -> bool:
    """Whether this thread runs a callback of ours now: what that does with tensors is not the net's doing."""
    return _DEPTH.callbacks > 0


def _call_instead_of(original: Any) -> Any:
    depth, ears_of = _DEPTH, _TOLD.ears

    @wraps(original)
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if depth.calls == 0 and _TOLD.watchers and not is_rehearsal():
            _tell_of_root(self)
        depth.calls += 1
        try:
            ears = ears_of.get(id(self))
            if ears is None or is_rehearsal():
                return original(self, *args, **kwargs)
            args, kwargs = _tell_before(ears, args, kwargs)
            output = original(self, *args, **kwargs)
            return _tell_after(ears, args, kwargs, output)
        finally:
            depth.calls -= 1

    # The compiler must not look into it.
    __call__._torchdynamo_disable = True  # type: ignore[attr-defined] # functions take attributes
    return __call__


def _tell_before(ears: _Ears, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Ask those who intervene, then tell those who look on. Who was removed meanwhile hears no more of it."""
    _DEPTH.callbacks += 1
    try:
        for intervention in ears.interventions:
            if intervention.layer is not None:
                args, kwargs = intervention.given(args, kwargs)
        for observer in ears.observers:
            if observer.layer is not None:
                observer.before(args, kwargs)
        return args, kwargs
    finally:
        _DEPTH.callbacks -= 1


def _tell_after(ears: _Ears, args: Any, kwargs: Any, output: Any) -> Any:
    """Tell those who look on what the layer made, then ask those who intervene what is handed on."""
    _DEPTH.callbacks += 1
    try:
        for observer in ears.observers:
            if observer.layer is not None:
                observer.after(args, kwargs, output)
        for intervention in ears.interventions:
            if intervention.layer is not None:
                output = intervention.made(args, kwargs, output)
        return output
    finally:
        _DEPTH.callbacks -= 1


def _tell_of_root(module: Any) -> None:
    # Reading a parametrized weight (weight_norm) calls a module too, outside of any run.
    if isinstance(module, nn.utils.parametrize.ParametrizationList):
        return
    stop_compiling()
    for watcher in _TOLD.watchers:
        watcher.on_root(module)


def _compile_instead_of(original: Any) -> Any:
    """torch.compile brings the compiler in; from then on it must stand aside."""

    @wraps(original)
    def compile(*args: Any, **kwargs: Any) -> Any:
        _import_compiler()
        compiled = original(*args, **kwargs)
        stop_compiling()
        return compiled

    return compile


def _import_compiler() -> None:
    """Import the compiler while `nn.Module.__call__` is torch's own: at import it notes what the original is."""
    with _TOLD.lock:
        if "torch._dynamo" in sys.modules or not _TOLD.replaced:
            return
        call = _TOLD.replaced[0]
        call.put_back()
        try:
            import_module("torch._dynamo")
        finally:
            if vars(nn.Module)["__call__"] is call.original:
                setattr(nn.Module, "__call__", call.ours)  # noqa: B010 - mypy refuses the plain assignment
