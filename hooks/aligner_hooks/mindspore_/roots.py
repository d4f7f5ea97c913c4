"""Telling of the nets that run, whoever runs them: a loop of the user's or one of MindSpore's."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Callable

from mindspore import nn

from aligner.patches import Handle, Listeners, patch
from aligner_hooks.mindsporelike.compiler import in_graph_mode
from aligner_hooks.mindsporelike.graphs import compiled
from aligner_hooks.mindsporelike.nets import REDUCERS, is_helper, is_loop, looped, reached


class _Inside(threading.local):
    """Where this thread is: in a cell's call already, and in how many loops."""

    cell = False
    loops = 0


_INSIDE = _Inside()
_ROUTES: dict[int, Callable[..., Any]] = {}
"""What an outermost call of a cell goes to instead, by the cell's id."""


def watch_roots(on_root: Callable[[nn.Cell], None]) -> Handle:
    """Call `on_root` for each cell that no other cell called.

    `Cell.__call__` is where MindSpore looks for hooks, so what `on_root` installs is found by this very run. No
    public door tells of a call of a cell nobody knows yet: the method is replaced until the handle is removed.

    A net that a compiled function calls is told of before the function is compiled: what observes it goes into the
    graph.
    """
    handle = patch(nn.Cell, "__call__", _watched_call, on_root)
    handle.add(compiled.before_functions(partial(_function, on_root)).remove)
    return handle


def routed(model: nn.Cell, nets: Mapping[str, nn.Cell]) -> Handle:
    """Have each outermost call of one of these be one of the model that holds them, for `net`, its name."""
    names = {id(net): name for name, net in nets.items()}
    handle = patch(nn.Cell, "__call__", _watched_call) if nets else Handle()
    _ROUTES.update({key: partial(model, net=name) for key, name in names.items()})
    handle.add(lambda: [_ROUTES.pop(key, None) for key in names])
    return handle


def whole_nets() -> Handle:
    """Have those who observe a net told of its calls in GRAPH_MODE, where no hooks are called."""
    return patch(nn.Cell, "__call__", _watched_call)


def _watched_call(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def __call__(self: nn.Cell, *args: object, **kwargs: object) -> object:
        if _INSIDE.cell or not listeners:
            return original(self, *args, **kwargs)
        if is_loop(self) and not in_graph_mode():
            _INSIDE.loops += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                _INSIDE.loops -= 1
        if id(self) in _ROUTES:
            return _ROUTES[id(self)](*args, **kwargs)
        _INSIDE.cell = True
        try:
            if not is_helper(self) and not (_INSIDE.loops and isinstance(self, REDUCERS)):
                _tell(looped(self), listeners)
            if id(self) in _ROUTES:  # who was told of it has seen to that
                _INSIDE.cell = False
                return _ROUTES[id(self)](*args, **kwargs)
            if in_graph_mode():
                return compiled.call(self, original, args, kwargs)
            return original(self, *args, **kwargs)
        finally:
            _INSIDE.cell = False

    return __call__


def _function(on_root: Callable[[nn.Cell], None], function: object) -> None:
    """A compiled function is about to run."""
    if _INSIDE.cell:
        return
    _INSIDE.cell = True
    try:
        for cell in reached(function):
            on_root(cell)
    finally:
        _INSIDE.cell = False


def _tell(root: nn.Cell, listeners: Listeners) -> None:
    for on_root in list(listeners.values()):
        if on_root is not None:
            on_root(root)
