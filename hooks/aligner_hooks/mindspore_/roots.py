"""Telling of the nets that run, whoever runs them: a loop of the user's or one of MindSpore's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any, Callable

from mindspore import nn

from aligner_hooks.mindspore_ import compiled, runtime
from aligner_hooks.mindspore_.layers import WRAPPED, is_wrapper, registered
from aligner_hooks.mindspore_.patches import Handle, Listeners, intercept


def _present(*names: str) -> tuple[type, ...]:
    """Those of these classes that this MindSpore has."""
    return tuple(getattr(nn, name) for name in names if hasattr(nn, name))


# Cells around a net in MindSpore's training and evaluation loops. They are looked through, so that the net and the
# loss are roots of their own, as they are where the loop is written by hand and as they are in torch.
LOOPS = _present(
    "TrainOneStepCell",
    "TrainOneStepWithLossScaleCell",
    "WithLossCell",
    "WithEvalCell",
    "WithGradCell",
    "ForwardValueAndGrad",
)
# What these loops call besides: it works on gradients.
REDUCERS = _present("Identity", "DistributedGradReducer", "PipelineGradReducer")
# Cells that are called by themselves and are no nets.
HELPERS = (nn.Optimizer, nn.learning_rate_schedule.LearningRateSchedule)
# How many functions away a compiled function's net is looked for: step -> value_and_grad's -> forward -> net.
DEEPEST = 6


class _Inside(threading.local):
    """Where this thread is: in a cell's call already, and in how many loops."""

    cell = False
    loops = 0


_INSIDE = _Inside()


def watch_roots(on_root: Callable[[nn.Cell], None]) -> Handle:
    """Call `on_root` for each cell that no other cell called.

    `Cell.__call__` is where MindSpore looks for hooks, so what `on_root` installs is found by this very run. No
    public door tells of a call of a cell nobody knows yet: the method is replaced until the handle is removed.

    A net that a compiled function calls is told of before the function is compiled: what observes it goes into the
    graph.
    """
    handle = Handle(intercept(nn.Cell, "__call__", on_root, _watched_call))
    handle.add(compiled.before_functions(partial(_function, on_root)).remove)
    return handle


def whole_nets() -> Handle:
    """Have those who observe a net told of its calls in GRAPH_MODE, where no hooks are called."""
    return Handle(intercept(nn.Cell, "__call__", None, _watched_call))


def _watched_call(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def __call__(self: nn.Cell, *args: object, **kwargs: object) -> object:
        if _INSIDE.cell:
            return original(self, *args, **kwargs)
        if _is_loop(self) and not runtime.in_graph_mode():
            _INSIDE.loops += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                _INSIDE.loops -= 1
        _INSIDE.cell = True
        try:
            if not isinstance(self, HELPERS) and not (_INSIDE.loops and isinstance(self, REDUCERS)):
                _tell(_looped(self), listeners)
            if runtime.in_graph_mode():
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


def _is_loop(cell: nn.Cell) -> bool:
    """Whether the cell is MindSpore's and runs the net as a part of training or evaluation.

    build_train_network has a WithLossCell of its own that is no subclass of the public one.
    """
    return isinstance(cell, LOOPS) or (type(cell).__module__.startswith("mindspore.train") and is_wrapper(cell))


def _looped(cell: nn.Cell) -> nn.Cell:
    """The net inside one of MindSpore's loops, which is compiled together with it in GRAPH_MODE."""
    while _is_loop(cell):
        children = registered(cell)
        inner = [children[name] for name in ("network", "_network", WRAPPED) if name in children]
        if not inner:
            break
        cell = inner[0]
    return cell


def reached(function: object) -> Iterator[nn.Cell]:
    """The nets that a function works with."""
    return _reached(function, set(), 0)


def _reached(value: Any, seen: set[int], depth: int) -> Iterator[nn.Cell]:
    """The nets that a function works with: what it closes over, is bound to, and names among its globals."""
    if id(value) in seen or depth > DEEPEST:
        return
    seen.add(id(value))
    if isinstance(value, nn.Cell):
        if not isinstance(value, HELPERS):
            yield _looped(value)
        return
    inner: list[Any] = []
    if isinstance(value, FunctionType):
        names = value.__code__.co_names
        inner = [value.__globals__[name] for name in names if name in value.__globals__]
        empty = CellType()  # of a variable that has no value yet
        inner += [held.cell_contents for held in value.__closure__ or () if held != empty]
    elif isinstance(value, MethodType):
        inner = [value.__self__, value.__func__]
    elif isinstance(value, partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, (list, tuple)):
        inner = list(value)
    for item in inner:
        yield from _reached(item, seen, depth + 1)
