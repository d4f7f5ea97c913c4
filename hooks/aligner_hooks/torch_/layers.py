"""The layers of a torch net and their paths, and what of it cannot be observed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from aligner.record import Note
from aligner_hooks.torch_.eager import can_stop_compiling, may_fuse
from aligner_hooks.torchlike.layers import Layers


def _wrapped(module: Any) -> str:
    """Where torch.compile's and the data-parallel wrappers hold the layer they are around."""
    if type(module).__name__ == "OptimizedModule" and "_orig_mod" in module._modules:
        return "_orig_mod"
    return "module" if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)) else ""


LAYERS = Layers(nn, torch.Tensor, _wrapped, nn.utils.parametrize.is_parametrized, (torch.jit.ScriptModule,))
walk, unwrapped, set_training = LAYERS.walk, LAYERS.unwrapped, LAYERS.set_training
plain_parameters, plain_tensors = LAYERS.plain_parameters, LAYERS.plain_tensors


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
