"""Who runs at the top: every call of a module that no other module made.

torch has global hooks for this, but they come too late and stay too long. A global pre-hook runs when the list of the
module's own hooks has been taken already, so hooks it installs miss this very run; nothing tells when a call ends that
raised; and any global hook makes torch.compile's wrapper warn. So `nn.Module.__call__` itself is replaced while
somebody watches. The price is one frame of this file in a user's traceback, which the script runner takes out.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from aligner.adapter import Handle
from aligner_hooks.torch_.eager import Hold, is_rehearsal, stop_compiling

OnRoot = Callable[[object], None]


class _Depth(threading.local):
    """How many module calls this thread is inside of."""

    calls = 0


class _Watch:
    """What is replaced while anybody watches, and who watches."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.watchers: tuple[Watcher, ...] = ()
        self.depth = _Depth()
        self.undo: list[Callable[[], None]] = []


_WATCH = _Watch()


class Watcher:
    """One who is told of roots; a handle."""

    def __init__(self, on_root: OnRoot) -> None:
        self.on_root = on_root
        self._hold: Handle = Hold()
        with _WATCH.lock:
            if not _WATCH.watchers:
                _install()
            _WATCH.watchers = (*_WATCH.watchers, self)

    def remove(self) -> None:
        """Stop being told; with the last watcher torch is as it was."""
        with _WATCH.lock:
            if self not in _WATCH.watchers:
                return
            _WATCH.watchers = tuple(other for other in _WATCH.watchers if other is not self)
            if not _WATCH.watchers:
                while _WATCH.undo:
                    _WATCH.undo.pop()()
        self._hold.remove()


def watch(on_root: OnRoot) -> Handle:
    """Call `on_root(module)` before each outermost call of a module, in any thread."""
    return Watcher(on_root)


def _install() -> None:
    _replace(nn.Module, "__call__", _call_instead_of)
    compile_ = getattr(torch, "compile", None)
    if compile_ is not None:
        # Compiling loads the compiler, and from then on it must be told to stand aside.
        _replace(torch, "compile", _compile_instead_of)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put another function in an attribute's place, and plan to put the old one back."""
    original = vars(owner)[name]
    ours = make(original)

    def restore() -> None:
        # If somebody has wrapped ours since, theirs must stay; ours then only hands on.
        if vars(owner)[name] is ours:
            setattr(owner, name, original)

    setattr(owner, name, ours)
    _WATCH.undo.append(restore)


def _call_instead_of(original: Any) -> Any:
    depth = _WATCH.depth

    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        if depth.calls == 0 and _WATCH.watchers and not is_rehearsal():
            _tell(self)
        depth.calls += 1
        try:
            return original(self, *args, **kwargs)
        finally:
            depth.calls -= 1

    # The compiler must not look into it, nor keep what it saw there.
    __call__._torchdynamo_disable = True  # type: ignore[attr-defined] # functions take attributes
    return __call__


def _tell(module: Any) -> None:
    # Reading a parametrized weight (weight_norm) calls a module too, outside of any run.
    if isinstance(module, parametrize.ParametrizationList):
        return
    stop_compiling()
    for watcher in _WATCH.watchers:
        watcher.on_root(module)


def _compile_instead_of(original: Any) -> Any:
    def compile(*args: Any, **kwargs: Any) -> Any:
        compiled = original(*args, **kwargs)
        stop_compiling()
        return compiled

    return compile
