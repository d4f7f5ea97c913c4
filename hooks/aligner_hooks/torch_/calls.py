"""Who is told of a torch module's calls; see aligner_hooks.torchlike.calls. Only torch has a compiler to keep away."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import nn

from aligner.patches import Listeners, lifted, patch
from aligner_hooks.torch_.eager import Hold, is_rehearsal, stop_compiling
from aligner_hooks.torchlike.calls import Calls


class _TorchCalls(Calls):
    """Calls of torch's modules, which run eagerly while anybody is told of them."""

    is_rehearsal = staticmethod(is_rehearsal)

    def begin(self) -> None:
        self.installed.add(Hold().remove)
        super().begin()
        if hasattr(torch, "compile"):
            self.installed.add(patch(torch, "compile", _compile_instead_of).remove)

    def tell_of_root(self, module: Any) -> None:
        # Reading a parametrized weight (weight_norm) calls a module too, outside of any run.
        if not isinstance(module, nn.utils.parametrize.ParametrizationList):
            stop_compiling()
            super().tell_of_root(module)


_TOLD = _TorchCalls(nn.Module)
observe, intervene, watch_roots = _TOLD.observe, _TOLD.intervene, _TOLD.watch_roots
surround, is_in_callback, callback, route = _TOLD.surround, _TOLD.is_in_callback, _TOLD.callback, _TOLD.route


def _compile_instead_of(original: Callable[..., Any], listeners: Listeners) -> Any:
    """torch.compile brings the compiler in; from then on it must stand aside."""

    def compile(*args: Any, **kwargs: Any) -> Any:
        if listeners:
            _import_compiler()
        compiled = original(*args, **kwargs)
        stop_compiling()
        return compiled

    return compile


def _import_compiler() -> None:
    """Import the compiler while `nn.Module.__call__` is torch's own: at import it notes what the original is."""
    with _TOLD.lock:
        if "torch._dynamo" not in sys.modules:
            with lifted(nn.Module, "__call__"):
                import_module("torch._dynamo")
