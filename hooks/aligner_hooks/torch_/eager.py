"""What runs past the layers of a net, and how it is switched off.

torch.compile runs a graph in which no layer is left, so it stands aside as long as anything is observed; otherwise
there would be nothing to observe. In eval mode without gradients a TransformerEncoderLayer is one fused kernel, and
TransformerEncoder packs its input into nested tensors. That is switched off only where the run is ours
(`TorchAdapter.running`): in a run of the user's own, not one bit may change because somebody looks on.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from aligner.patches import hold


class _Eager:
    """How many want it, and what to undo when the last one is gone."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holders = 0
        self.undo = ExitStack()
        self.stopped_compiling = False


_EAGER = _Eager()


class Hold:
    """One who wants compiled code to run eagerly; a handle and a context manager."""

    def __init__(self) -> None:
        self._held = True
        with _EAGER.lock:
            _EAGER.holders += 1
            try:
                stop_compiling()
            except BaseException:
                self.remove()
                raise

    def remove(self) -> None:
        """Want it no longer."""
        with _EAGER.lock:
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
    if not _EAGER.holders or _EAGER.stopped_compiling or "torch._dynamo" not in sys.modules or not can_stop_compiling():
        return
    with _EAGER.lock:
        if _EAGER.holders and not _EAGER.stopped_compiling:
            _EAGER.undo.enter_context(torch.compiler.set_stance("force_eager"))
            _EAGER.stopped_compiling = True


def may_fuse() -> bool:
    """Whether attention layers may run as one kernel now, if they are in eval mode and there are no gradients."""
    mha: Any = getattr(torch.backends, "mha", None)
    if mha is not None:
        return bool(mha.get_fastpath_enabled())
    return torch.overrides.has_torch_function is not _has_torch_function


@contextmanager
def unfused() -> Iterator[None]:
    """Attention layers run the layers inside them."""
    mha: Any = getattr(torch.backends, "mha", None)
    with ExitStack() as undo:
        if may_fuse() and mha is not None:
            undo.callback(mha.set_fastpath_enabled, True)
            mha.set_fastpath_enabled(False)
        elif may_fuse():
            # Before there was a switch, attention asked this for arguments that are no ordinary tensors, and did not
            # fuse then.
            undo.callback(hold(torch.overrides, "has_torch_function", _has_torch_function).remove)
        yield


def _has_torch_function(arguments: object) -> bool:
    return True


def is_rehearsal() -> bool:
    """Whether a layer's call now is no run of the net: traced, compiled, or recomputed in a backward pass."""
    return _graph_task() != -1 or is_traced()


def is_traced() -> bool:
    """Whether what runs now is being traced or compiled."""
    return _tracing() is not None or bool(_is_compiling())


# Looked up once: these are asked at every call of every layer. What a torch does not have, never happens there.
_tracing = getattr(getattr(torch, "_C", None), "_get_tracing_state", lambda: None)
_graph_task = getattr(getattr(torch, "_C", None), "_current_graph_task_id", lambda: -1)
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)
