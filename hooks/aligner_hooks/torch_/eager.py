"""While a net is observed, torch must really run its layers one by one.

Two things run past them. In eval mode a TransformerEncoderLayer is one fused kernel, and TransformerEncoder packs
its input into nested tensors. torch.compile runs a graph in which no layer is left. Both are switched off as long as
anything is observed and put back afterwards; the adapter's cautions tell that the last bits may differ from an
unobserved run for it.
"""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import Any

import torch


class _Eager:
    """How many want it, and what to undo when the last one is gone."""

    def __init__(self) -> None:
        self.holders = 0
        self.undo = ExitStack()
        self.stopped_compiling = False


_EAGER = _Eager()


class Hold:
    """One who wants eager mode; a handle and a context manager."""

    def __init__(self) -> None:
        self._held = True
        _EAGER.holders += 1
        try:
            if _EAGER.holders == 1:
                _stop_fusing()
            stop_compiling()
        except BaseException:
            self.remove()
            raise

    def remove(self) -> None:
        """Want it no longer."""
        if self._held:
            self._held = False
            _EAGER.holders -= 1
            if _EAGER.holders == 0:
                _EAGER.stopped_compiling = False
                _EAGER.undo.close()

    def __enter__(self) -> Hold:
        return self

    def __exit__(self, *error: object) -> None:
        self.remove()


def can_stop_compiling() -> bool:
    """Whether this torch can be told to run compiled code eagerly: torch 2.6 and later."""
    return hasattr(getattr(torch, "compiler", None), "set_stance")


def stop_compiling() -> None:
    """Have compiled code run eagerly, if somebody holds and the compiler is there.

    Importing the compiler takes seconds, and nothing can have been compiled without it: so it is asked for again
    whenever something may have been.
    """
    if _EAGER.holders and not _EAGER.stopped_compiling and "torch._dynamo" in sys.modules and can_stop_compiling():
        _EAGER.undo.enter_context(torch.compiler.set_stance("force_eager"))
        _EAGER.stopped_compiling = True


def _stop_fusing() -> None:
    mha: Any = getattr(torch.backends, "mha", None)
    if mha is not None:
        if mha.get_fastpath_enabled():
            mha.set_fastpath_enabled(False)
            _EAGER.undo.callback(mha.set_fastpath_enabled, True)
        return
    # Before there was a switch, attention asked this for arguments that are no ordinary tensors, and did not fuse then.
    _EAGER.undo.callback(setattr, torch.overrides, "has_torch_function", torch.overrides.has_torch_function)
    torch.overrides.has_torch_function = _has_torch_function


def _has_torch_function(arguments: object) -> bool:
    return True


def is_rehearsal() -> bool:
    """Whether a layer's call now is no run of the net: traced, compiled, or recomputed in a backward pass."""
    return _tracing() is not None or _graph_task() != -1 or bool(_is_compiling())


# Looked up once: these are asked at every call of every layer. What a torch does not have, never happens there.
_tracing = getattr(getattr(torch, "_C", None), "_get_tracing_state", lambda: None)
_graph_task = getattr(getattr(torch, "_C", None), "_current_graph_task_id", lambda: -1)
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
