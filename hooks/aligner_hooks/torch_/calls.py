"""Who is told of a torch module's calls; see aligner_hooks.torchlike.calls. Only torch has a compiler to keep away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib import import_module
from typing import Any, Optional

import torch
from torch import nn

from aligner_hooks.torch_.eager import Hold, is_rehearsal, stop_compiling
from aligner_hooks.torchlike.calls import Calls, Replaced


class _TorchCalls(Calls):
    """Calls of torch's modules, which run eagerly while anybody is told of them."""

    is_rehearsal = staticmethod(is_rehearsal)

    def __init__(self) -> None:
        super().__init__(nn.Module)
        self.hold: Optional[Hold] = None

    def begin(self) -> None:
        self.hold = Hold()
        super().begin()
        if hasattr(torch, "compile"):
            self.replaced.append(Replaced(torch, "compile", _compile_instead_of))

    def end(self) -> None:
        super().end()
        if self.hold is not None:
            self.hold.remove()
            self.hold = None

    def tell_of_root(self, module: Any) -> None:
        # Reading a parametrized weight (weight_norm) calls a module too, outside of any run.
        if not isinstance(module, nn.utils.parametrize.ParametrizationList):
            stop_compiling()
            super().tell_of_root(module)


_TOLD = _TorchCalls()
observe, intervene, watch_roots = _TOLD.observe, _TOLD.intervene, _TOLD.watch_roots
is_in_callback, callback = _TOLD.is_in_callback, _TOLD.callback


def _compile_instead_of(original: Callable[..., Any]) -> Any:
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
