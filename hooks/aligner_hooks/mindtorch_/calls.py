"""Who is told of a MindTorch module's calls; see aligner_hooks.torchlike.calls, and graphs.py for compiled ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from importlib import import_module
from typing import Any, Optional

from aligner.adapter import After, Before, Given, Handle, Made
from aligner_hooks.mindtorch_ import graphs
from aligner_hooks.mindtorch_.modules import module_of
from aligner_hooks.mindtorch_.package import package
from aligner_hooks.torchlike.calls import Calls, Replaced


class _MindTorchCalls(Calls):
    """Calls of MindTorch's modules, whichever copy of nn.Module their class comes from."""

    def __init__(self) -> None:
        super().__init__(package().nn.Module)

    def begin(self) -> None:
        super().begin()
        tree = _symbol_tree()
        if tree is not None and "get_network" in vars(tree):
            self.replaced.append(Replaced(tree, "get_network", self._rewriting))

    def observe(self, layer: Any, before: Before, after: After) -> Handle:
        with self.lock:
            handle = super().observe(layer, before, after)
            self._cover(type(layer))
        return graphs.observed(handle, layer, before, after)

    def intervene(self, layer: Any, given: Given, made: Made) -> Handle:
        with self.lock:
            handle = super().intervene(layer, given, made)
            self._cover(type(layer))
        return graphs.intervened(handle)

    def watch_roots(self, on_root: Callable[[object], None]) -> Handle:
        return graphs.watched(super().watch_roots(on_root), on_root, lambda: self.depth.calls > 0)

    def call_instead_of(self, original: Any) -> Any:
        @wraps(original)
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.depth.calls == 1 and graphs.in_graph_mode():
                with graphs.outside(module):
                    return original(module, *args, **kwargs)
            return original(module, *args, **kwargs)

        return super().call_instead_of(run)

    def _cover(self, kind: type) -> None:
        """See to it that calls of this class are told of, whichever copy of nn.Module it comes from."""
        owner = module_of(kind)
        if owner is not None and self.begun and all(replaced.owner is not owner for replaced in self.replaced):
            self.replaced.append(Replaced(owner, "__call__", self.call_instead_of))

    def _rewriting(self, original: Any) -> Any:
        """A net of rewritten classes may come from a copy of nn.Module, and be a root."""

        def get_network(tree: Any) -> Any:
            network = original(tree)
            with self.lock:
                self._cover(type(network))
            return network

        return get_network


@cache
def _symbol_tree() -> Optional[type]:
    """The class by which MindSpore's mixed precision rewrites a net."""
    try:
        found = import_module("mindspore.rewrite").SymbolTree
    except (ImportError, AttributeError):
        return None
    return found if isinstance(found, type) else None


CALLS = _MindTorchCalls()
