"""Who is told of a MindTorch module's calls; see aligner_hooks.torchlike.calls.

OpenI's MindTorch compiles a net as a whole in GRAPH_MODE, and functions under @mindspore.jit. No call of a layer
happens then, and its own hooks say nothing, silently. Here that is an error.
"""

from __future__ import annotations

import os
from functools import cache
from importlib import import_module
from typing import Any, Optional

import mindspore

from aligner.adapter import After, Before, Given, Handle, Made
from aligner.errors import AdapterError
from aligner_hooks.mindtorch_.package import package
from aligner_hooks.torchlike.calls import Calls, Replaced

# Set to "0", MindSpore runs compiled functions as the plain Python they are. It is read at each call.
JIT_SWITCH = "MS_JIT"


def in_graph_mode() -> bool:
    """Whether nets are compiled as a whole."""
    graph = mindspore.get_context("mode") == mindspore.GRAPH_MODE
    return graph and package().compiles and os.environ.get(JIT_SWITCH) != "0"


class _MindTorchCalls(Calls):
    """Calls of MindTorch's modules, which must not be compiled while anybody is told of them."""

    def __init__(self) -> None:
        super().__init__(package().nn.Module)

    def begin(self) -> None:
        super().begin()
        executor = _jit_executor()
        if executor is not None and "__call__" in vars(executor):
            self.replaced.append(Replaced(executor, "__call__", self._refusing))

    def enter(self, module: Any) -> None:
        super().enter(module)
        if self.ears and in_graph_mode():
            raise AdapterError("mindtorch-graph-mode")

    def observe(self, layer: Any, before: Before, after: After) -> Handle:
        _refuse_graph_mode()
        return super().observe(layer, before, after)

    def intervene(self, layer: Any, given: Given, made: Made) -> Handle:
        _refuse_graph_mode()
        return super().intervene(layer, given, made)

    def _refusing(self, original: Any) -> Any:
        """Code under @mindspore.jit runs layers that nobody sees: while somebody is to see them, it does not."""

        def __call__(executor: Any, *args: Any, **kwargs: Any) -> Any:
            if self.ears and package().compiles and os.environ.get(JIT_SWITCH) != "0":
                function = getattr(getattr(executor, "fn", None), "__qualname__", "-")
                raise AdapterError("mindtorch-jit", function=function)
            return original(executor, *args, **kwargs)

        return __call__


def _refuse_graph_mode() -> None:
    if in_graph_mode():
        raise AdapterError("mindtorch-graph-mode")


@cache
def _jit_executor() -> Optional[type]:
    """The class whose instances compile and run functions, if this MindSpore has it where it is known to be."""
    for module in ("mindspore.common.api", "mindspore.graph.api"):
        try:
            api = import_module(module)
        except ImportError:
            continue
        for name in ("_JitExecutor", "_MindsporeFunctionExecutor"):
            found = getattr(api, name, None)
            if isinstance(found, type):
                return found
    return None


CALLS = _MindTorchCalls()
