"""The layers of a torch net and their paths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from aligner.record import Note
from aligner_hooks.torch_.eager import can_stop_compiling, may_fuse

# How deep layers are looked for in plain lists of lists; a deeper nesting is data, not layers.
_PLAIN_DEPTH = 3


@dataclass(frozen=True, eq=False)
class Place:
    """A layer where it stands. `path` is the canonical one, `raw` the one torch prints in a state_dict.

    `module` is what is called and observed, `content` the layer itself: they differ where torch.compile or a
    data-parallel wrapper stands around it. `registered` is false for a layer in a plain list or dict, which torch
    does not know of.
    """

    path: str
    raw: str
    module: Any
    content: Any
    registered: bool = True


def walk(model: Any) -> Iterator[Place]:
    """Every layer once, parents before children, in the order they are defined."""
    registered = {id(module) for module in model.modules()}
    return _walk("", "", model, True, registered, set())


def _walk(
    path: str, raw: str, module: Any, is_registered: bool, registered: set[int], seen: set[int]
) -> Iterator[Place]:
    inside, content = _unwrap(module)
    raw = _join(raw, inside) if inside else raw
    if id(content) in seen:
        return
    seen.add(id(content))
    yield Place(path, raw, module, content, is_registered)
    for name, child in content._modules.items():
        # What computes a weight from others (weight_norm) is part of the layer, not a layer of the net.
        if child is not None and not (name == "parametrizations" and nn.utils.parametrize.is_parametrized(content)):
            yield from _walk(_join(path, name), _join(raw, name), child, is_registered, registered, seen)
    for name, child in _plain(content, nn.Module):
        if id(child) not in registered:
            registered.update(id(inner) for inner in child.modules())
            yield from _walk(_join(path, name), _join(raw, name), child, False, registered, seen)


def unwrapped(module: Any) -> Any:
    """The layer inside torch.compile's and the data-parallel wrappers, or the layer itself."""
    return _unwrap(module)[1]


def _unwrap(module: Any) -> tuple[str, Any]:
    """The path through wrappers that have no place in a port, and what stands inside them."""
    inside = ""
    while True:
        if type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules:
            name = "_orig_mod"
        elif isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            name = "module"
        else:
            return inside, module
        inside, module = _join(inside, name), module._modules[name]


def plain_parameters(model: Any, module: Any) -> Iterator[tuple[str, Any]]:
    """Parameters in plain attributes of a layer that no layer of the net has registered.

    A plain list of registered ones (an LSTM's own _flat_weights) is only another way to reach them.
    """
    found = list(_plain(module, nn.Parameter))
    if found:
        registered = {id(parameter) for parameter in model.parameters()}
        yield from ((name, parameter) for name, parameter in found if id(parameter) not in registered)


def plain_tensors(module: Any) -> Iterator[Any]:
    """Tensors in plain attributes of a layer, which no state_dict knows of."""
    yield from (tensor for _, tensor in _plain(module, torch.Tensor))


def _plain(module: Any, wanted: type) -> Iterator[tuple[str, Any]]:
    """What stands in a layer's plain attributes: directly (hidden from torch), or in lists, tuples and dicts."""
    if isinstance(module, torch.jit.ScriptModule):
        return  # its attributes live in C++, and looking at one can run code
    for name, value in vars(module).items():
        if name not in own_attributes():
            yield from _search(name, value, wanted, 0)


def _search(name: str, value: Any, wanted: type, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, wanted):
        yield name, value
    elif depth < _PLAIN_DEPTH and isinstance(value, (list, tuple, dict)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            # Most containers hold numbers or words: decide before a path is made.
            if isinstance(item, (wanted, list, tuple, dict)):
                yield from _search(f"{name}.{key}", item, wanted, depth + 1)


@cache
def own_attributes() -> frozenset[str]:
    """The attributes every module has, which hold torch's own tables."""
    return frozenset(vars(nn.Module()))


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def set_training(model: Any, training: bool) -> None:
    """Put the net into a mode, layers in plain lists included."""
    model.train(training)
    for place in walk(model):
        if not place.registered:
            place.module.train(training)


def cautions(model: Any) -> Iterator[Note]:
    """What cannot be observed fully, and why."""
    fused = None
    scripted: list[str] = []
    for place in walk(model):
        module, path = place.content, place.path
        if not place.registered:
            yield Note(path, "torch-plain-container", {"layer": path})
        for name, _ in plain_parameters(model, module):
            yield Note(path, "torch-plain-parameter", {"layer": path or "(net)", "name": name})
        if isinstance(module, torch.jit.ScriptModule) and len(module._modules) and not _inside(path, scripted):
            scripted.append(path)
            yield Note(path, "torch-scripted", {"layer": path or "(net)"})
        if fused is None and is_fused(module) and not module.training:
            fused = path
        if any(is_unmaterialised(value) for value in module._parameters.values()):
            yield Note(path, "torch-lazy", {"layer": path or "(net)"})
    if fused is not None and may_fuse():
        yield Note(fused, "torch-fused-attention", {"layer": fused or "(net)"})
    if any(type(module).__name__ == "OptimizedModule" for module in model.modules()):
        yield Note("", "torch-compiled", {"can_stop": can_stop_compiling()})


def _inside(path: str, others: list[str]) -> bool:
    return any(not other or path.startswith(f"{other}.") for other in others)


def is_fused(module: Any) -> bool:
    """Whether torch may run the layer in one piece, past the layers inside it, in eval mode."""
    return isinstance(module, (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention))


def is_unmaterialised(value: Any) -> bool:
    """Whether a parameter of a lazy layer has no shape yet."""
    return isinstance(value, (nn.UninitializedParameter, nn.parameter.UninitializedBuffer))
