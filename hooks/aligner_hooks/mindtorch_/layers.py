"""The layers of a MindTorch net, and what of it needs a word."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aligner.record import Note, Scalar
from aligner_hooks.mindtorch_ import graphs, shim
from aligner_hooks.mindtorch_.modules import AnyModule
from aligner_hooks.mindtorch_.package import OPENI, package
from aligner_hooks.torchlike.constructions import is_recurrent
from aligner_hooks.torchlike.layers import Layers

_NN = package().nn
_PARALLEL: tuple[Any, ...] = tuple(
    found
    for owner, name in ((_NN, "DataParallel"), (getattr(_NN, "parallel", None), "DistributedDataParallel"))
    if isinstance(found := getattr(owner, name, None), type)
)


# What torch.amp.auto_mixed_precision puts around the net that MindSpore's made.
_ADAPTER: Any = getattr(getattr(package().torch, "amp", None), "_CastToAdapter", ())
_ADAPTED = "_ms_amp_net"


def _wrapped(module: Any) -> str:
    if isinstance(module, _ADAPTER):
        return _ADAPTED
    return "module" if isinstance(module, _PARALLEL) and "module" in module._modules else ""


def parametrized(module: Any) -> bool:
    """Whether weights of a layer are computed by modules of its own."""
    return "parametrizations" in module._modules


class _MindTorchLayers(Layers):
    """Layers that mixed precision has rewritten are found too, of which MindTorch itself knows nothing."""

    def children(self, module: Any) -> Mapping[str, Any]:
        """A Sequential runs the layers in its list, and only that holds the rewritten ones if it is the net itself."""
        listed = vars(module).get("cell_list")
        if isinstance(listed, (list, tuple)) and len(listed) == len(module._modules):
            return dict(zip(module._modules, listed))
        return super().children(module)

    def modules(self, model: Any) -> Iterator[Any]:
        return self._inside(model, set())

    def _inside(self, module: Any, seen: set[int]) -> Iterator[Any]:
        if id(module) not in seen and isinstance(module, AnyModule):
            seen.add(id(module))
            yield module
            for child in self.children(module).values():
                yield from self._inside(child, seen)

    def set_training(self, model: Any, training: bool) -> None:
        """Also where the package's own `train` does not reach."""
        super().set_training(model, training)
        for place in self.walk(model):
            if bool(place.content.training) is not training:
                place.content.train(training)


LAYERS = _MindTorchLayers(_NN, package().tensor, _wrapped, parametrized, module=AnyModule)


def cautions(model: Any) -> Iterator[Note]:
    """What the net's author should know."""
    if shim.was_put_in():
        yield Note("", "mindtorch-shim", {"version": package().version})
    for place in LAYERS.walk(model):
        layer: Any = place.content
        if package().maker == OPENI and is_recurrent(type(layer)) and layer.dropout and layer.num_layers > 1:
            facts: dict[str, Scalar] = {"layer": place.path or "(net)", "p": float(layer.dropout)}
            facts["type"] = type(layer).__name__
            yield Note(place.path, "mindtorch-recurrent-dropout", facts)
        reason = graphs.untold(place.module)
        if reason:
            facts = {"layer": place.path or "(net)", "type": type(layer).__name__, "reason": reason}
            yield Note(place.path, "mindspore-untold", facts)
        if not place.registered:
            yield Note(place.path, "mindtorch-plain-container", {"layer": place.path})
        for name, _ in LAYERS.plain_parameters(model, place.content):
            yield Note(place.path, "mindtorch-plain-parameter", {"layer": place.path or "(net)", "name": name})
