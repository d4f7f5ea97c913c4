"""The layers of a torch net and their paths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from aligner.record import Note

# How deep layers are looked for in plain lists of lists; a deeper nesting is data, not layers.
_PLAIN_DEPTH = 3


@dataclass(frozen=True, eq=False)
class Place:
    """A layer where it stands. `path` is the canonical one, `raw` the one torch prints in a state_dict.

    `registered` is false for a layer in a plain list or dict, which torch does not know of.
    """

    path: str
    raw: str
    module: Any
    registered: bool = True


def walk(model: Any) -> Iterator[Place]:
    """Every layer once, parents before children, in the order they are defined."""
    registered = {id(module) for module in model.modules()}
    return _walk(Place("", "", model), registered, set())


def _walk(place: Place, registered: set[int], seen: set[int]) -> Iterator[Place]:
    if id(place.module) in seen:
        return
    seen.add(id(place.module))
    inner = _wrapped(place.module)
    if inner is not None:
        # The wrapper has no path of its own in a port: its place is the net's inside it.
        name, module = inner
        yield from _walk(Place(place.path, _join(place.raw, name), module, place.registered), registered, seen)
        return
    yield place
    for name, child in place.module._modules.items():
        if child is not None:
            inside = Place(_join(place.path, name), _join(place.raw, name), child, place.registered)
            yield from _walk(inside, registered, seen)
    for name, child in _plain(place.module, nn.Module):
        if id(child) not in registered and id(child) not in seen:
            registered.update(id(module) for module in child.modules())
            yield from _walk(Place(_join(place.path, name), _join(place.raw, name), child, False), registered, seen)


def _wrapped(module: Any) -> Any:
    """The name and module inside torch.compile's and the data-parallel wrappers; None for anything else."""
    children = module._modules
    if len(children) != 1:
        return None
    ((name, child),) = children.items()
    if name == "_orig_mod" and type(module).__name__ == "OptimizedModule":
        return name, child
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if name == "module" and isinstance(module, parallel):
        return name, child
    return None


def plain_parameters(module: Any) -> Iterator[tuple[str, Any]]:
    """Parameters in plain lists and dicts of a layer, which torch does not know of."""
    return _plain(module, nn.Parameter)


def _plain(module: Any, wanted: type) -> Iterator[tuple[str, Any]]:
    """What stands in a layer's plain attributes: directly (hidden from torch), or in lists, tuples and dicts."""
    if isinstance(module, torch.jit.ScriptModule):
        return  # its attributes live in C++, and looking at one can run code
    for name, value in vars(module).items():
        if name not in _own_attributes():
            yield from _search(name, value, wanted, 0)


def _search(name: str, value: Any, wanted: type, depth: int) -> Iterator[tuple[str, Any]]:
    if isinstance(value, wanted):
        yield name, value
    elif depth < _PLAIN_DEPTH and isinstance(value, (list, tuple, Mapping)):
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, item in items:
            # Most containers hold numbers or words: decide before a path is made.
            if isinstance(item, (wanted, list, tuple, Mapping)):
                yield from _search(f"{name}.{key}", item, wanted, depth + 1)


@cache
def _own_attributes() -> frozenset[str]:
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
    for place in walk(model):
        module, path = place.module, place.path
        if not place.registered:
            yield Note(path, "torch-plain-container", {"layer": path})
        for name, _ in plain_parameters(module):
            yield Note(path, "torch-plain-parameter", {"layer": path or "(net)", "name": name})
        if isinstance(module, torch.jit.ScriptModule) and len(module._modules):
            yield Note(path, "torch-scripted", {"layer": path or "(net)"})
        if fused is None and is_fused(module) and not module.training:
            fused = path
        if any(is_unmaterialised(value) for value in module._parameters.values()):
            yield Note(path, "torch-lazy", {"layer": path or "(net)"})
    if fused is not None:
        yield Note(fused, "torch-fused-attention", {"layer": fused or "(net)"})
    if any(type(module).__name__ == "OptimizedModule" for module in model.modules()):
        yield Note("", "torch-compiled", {"can_stop": hasattr(torch.compiler, "set_stance")})


def is_fused(module: Any) -> bool:
    """Whether torch may run the layer in one piece, past the layers inside it, in eval mode."""
    return isinstance(module, (nn.TransformerEncoder, nn.TransformerEncoderLayer, nn.MultiheadAttention))


def is_unmaterialised(value: Any) -> bool:
    """Whether a parameter of a lazy layer has no shape yet."""
    return isinstance(value, (nn.UninitializedParameter, nn.parameter.UninitializedBuffer))
