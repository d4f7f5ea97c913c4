"""Who is told of a MindTorch module's calls; see aligner_hooks.torchlike.calls, and graphs.py for compiled ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, wraps
from importlib import import_module
from typing import Any, Optional

from aligner.adapter import After, Before, Given, Handle, Made
from aligner.patches import Listeners, patch
from aligner_hooks.mindtorch_ import graphs
from aligner_hooks.mindtorch_.modules import module_of
from aligner_hooks.mindtorch_.package import package
from aligner_hooks.torchlike.calls import Calls


class _MindTorchCalls(Calls):
    """Calls of MindTorch's modules, whichever copy of nn.Module their class comes from."""

    def __init__(self) -> None:
        super().__init__(package().nn.Module)
        self.covered: set[type] = set()
        """The copies of nn.Module of whose calls is told."""

    def begin(self) -> None:
        super().begin()
        self.covered = {self.module}
        tree = _symbol_tree()
        if tree is not None and "get_network" in vars(tree):
            self.installed.add(patch(tree, "get_network", self._rewriting).remove)

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

    def route(self, model: Any, nets: Mapping[str, Any]) -> Handle:
        with self.lock:
            for net in (model, *nets.values()):
                self._cover(type(net))
        return super().route(model, nets)

    def call_instead_of(self, original: Any, listeners: Listeners) -> Any:
        @wraps(original)
        def run(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self.depth.calls == 1 and graphs.in_graph_mode():
                with graphs.outside(module):
                    return original(module, *args, **kwargs)
            return original(module, *args, **kwargs)

        return super().call_instead_of(run, listeners)

    def _cover(self, kind: type) -> None:
        """See to it that calls of this class are told of, whichever copy of nn.Module it comes from."""
        owner = module_of(kind)
        if owner is not None and self.begun and owner not in self.covered:
            self.covered.add(owner)
            self.installed.add(patch(owner, "__call__", self.call_instead_of).remove)

    def _rewriting(self, original: Any, listeners: Listeners) -> Any:
        """A net of rewritten classes may come from a copy of nn.Module, and be a root."""

        def get_network(tree: Any) -> Any:
            network = original(tree)
            if listeners:
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
