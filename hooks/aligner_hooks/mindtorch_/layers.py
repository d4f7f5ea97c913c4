"""The layers of a MindTorch net, and what of it needs a word."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from aligner.record import Note, Scalar
from aligner_hooks.mindtorch_ import shim
from aligner_hooks.mindtorch_.package import OPENI, package
from aligner_hooks.torchlike.constructions import is_recurrent
from aligner_hooks.torchlike.layers import Layers

_NN = package().nn
_PARALLEL: tuple[Any, ...] = tuple(
    found
    for owner, name in ((_NN, "DataParallel"), (getattr(_NN, "parallel", None), "DistributedDataParallel"))
    if isinstance(found := getattr(owner, name, None), type)
)


def _wrapped(module: Any) -> str:
    return "module" if isinstance(module, _PARALLEL) and "module" in module._modules else ""


def parametrized(module: Any) -> bool:
    """Whether weights of a layer are computed by modules of its own."""
    return "parametrizations" in module._modules


LAYERS = Layers(_NN, package().tensor, _wrapped, parametrized)


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
        if not place.registered:
            yield Note(place.path, "mindtorch-plain-container", {"layer": place.path})
        for name, _ in LAYERS.plain_parameters(model, place.content):
            yield Note(place.path, "mindtorch-plain-parameter", {"layer": place.path or "(net)", "name": name})
