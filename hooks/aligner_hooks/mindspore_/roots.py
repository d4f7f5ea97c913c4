"""Telling of the nets that run, whoever runs them: a loop of the user's or one of MindSpore's."""

from __future__ import annotations

import threading
from typing import Any, Callable

from mindspore import nn

from aligner.errors import AdapterError
from aligner_hooks.mindspore_ import runtime
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


class _Inside(threading.local):
    """Where this thread is: in a cell's call already, in how many loops."""

    cell = False
    loops = 0


_INSIDE = _Inside()


def watch_roots(on_root: Callable[[nn.Cell], None]) -> Handle:
    """Call `on_root` for each cell that no other cell called.

    `Cell.__call__` is where MindSpore looks for hooks, so what `on_root` installs is found by this very run. No
    public door tells of a call of a cell nobody knows yet: the method is replaced until the handle is removed.
    """
    handle = Handle(intercept(nn.Cell, "__call__", on_root, _watched_call))
    executor = runtime.jit_executor()
    if executor is not None:
        handle.add(intercept(executor, "compile", (), _refused_compile))
    return handle


def _watched_call(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def __call__(self: nn.Cell, *args: object, **kwargs: object) -> object:
        if _INSIDE.cell:
            return original(self, *args, **kwargs)
        if isinstance(self, LOOPS):
            _INSIDE.loops += 1
            try:
                return original(self, *args, **kwargs)
            finally:
                _INSIDE.loops -= 1
        _INSIDE.cell = True
        try:
            if not isinstance(self, HELPERS) and not (_INSIDE.loops and isinstance(self, REDUCERS)):
                _tell(self, listeners)
            return original(self, *args, **kwargs)
        finally:
            _INSIDE.cell = False

    return __call__


def _tell(root: nn.Cell, listeners: Listeners) -> None:
    if runtime.in_graph_mode():
        raise AdapterError("mindspore-graph-mode")
    for on_root in list(listeners.values()):
        on_root(root)


def _refused_compile(original: Callable[..., Any], _listeners: Listeners) -> Callable[..., Any]:
    """Where the user's own function is compiled with the net inside it, nothing would ever be seen: say so."""

    def compile(self: Any, *args: object, **kwargs: object) -> object:
        function = self.fn
        if not _INSIDE.cell and not str(getattr(function, "__module__", "")).startswith("mindspore."):
            raise AdapterError("mindspore-jit-outside", function=getattr(function, "__qualname__", str(function)))
        return original(self, *args, **kwargs)

    return compile
