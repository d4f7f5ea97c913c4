"""Functions that MindSpore differentiates eagerly, one inside of another: of a gradient in a loss the loss is the outer
function's value, and what the inner backward run makes is a part of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, Optional

from mindspore import nn

from aligner.patches import Handle, Listeners, patch, together
from aligner_hooks.mindsporelike.compiler import graph_api
from aligner_hooks.mindsporelike.nets import is_loop

_RUN = "_pynative_forward_run"
"""What calls a function to differentiate it; it has that one as `fn` in every MindSpore."""


class _Inner:
    """How many backward runs are under way inside of what is differentiated itself, whatever thread tells of them."""

    runs = 0


_INNER = _Inner()


def outermost(told: Callable[[object], None]) -> Handle:
    """Be told of what each function makes that is differentiated and runs inside of no other one that is."""
    executor = type(graph_api("_pynative_executor"))
    with together() as handle:
        handle.add(patch(executor, "end_graph", _ending, told).remove)
        handle.add(patch(executor, "grad", _backward).remove)
    return handle


def is_inner() -> bool:
    """Whether the backward run that is under way is a part of what is differentiated."""
    return _INNER.runs > 0


def _ending(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def end_graph(self: Any, obj: Any, output: Any, *args: Any, **kwargs: Any) -> Any:
        if listeners and not any(one is not obj for one in _running()):
            for told in [*listeners.values()]:
                told(output)
        return original(self, obj, output, *args, **kwargs)

    return end_graph


def _backward(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def grad(self: Any, *args: Any, **kwargs: Any) -> Any:
        inner = bool(listeners) and any(True for _ in _running())
        _INNER.runs += inner
        try:
            return original(self, *args, **kwargs)
        finally:
            _INNER.runs -= inner

    return grad


def _running() -> Iterator[object]:
    """What runs now to be differentiated, the innermost first: functions, and cells that MindSpore was told to.

    MindSpore's own account is left as it was by a function that raises, and begins before anybody listens: the calls
    that are under way are looked at. A loop of training is differentiated by nobody.
    """
    frame: Optional[FrameType] = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == _RUN:
            yield frame.f_locals["fn"]
        elif frame.f_code.co_name == "__call__":
            cell = frame.f_locals.get("self")
            if isinstance(cell, nn.Cell) and getattr(cell, "is_top_cell", False) and not is_loop(cell):
                yield cell
        frame = frame.f_back
