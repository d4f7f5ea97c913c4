"""Weights that hide nothing: random, deterministic, of a size at which every layer of a net moves its output.

What frameworks initialise with hides most mistakes: last norms of zero, layer scales of 1e-6, attention scores near
zero, BatchNorm statistics of 0 and 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

DENSE = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
TURNED = (nn.ConvTranspose1d, nn.ConvTranspose2d)
SCALES = ("gamma", "scale", "temperature")
"""Parameters called so multiply; all others that stand free are added: tokens, tables, positions."""


def image(size: int, width: int = 0, seed: int = 7) -> torch.Tensor:
    """Two pictures of random pixels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, 3, size, width or size, generator=generator)


def hide_nothing(net: nn.Module, *inputs: torch.Tensor, seed: int = 1, gain: float = 1.0) -> nn.Module:
    """Fill `net` in place; BatchNorm statistics are taken as `inputs` run through it, layer by layer.

    A deep net of ReLUs without norms needs a gain of sqrt(2), or only its biases arrive at the end.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for _, module in net.named_modules():
            for name, parameter in module.named_parameters(recurse=False):
                value = _value(module, name, parameter, generator)
                parameter.copy_(value * gain if isinstance(module, DENSE) and name == "weight" else value)
        _statistics(net.eval(), inputs, generator)
    return net


def _value(module: nn.Module, name: str, old: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if _is_norm(module):
        if name == "weight":
            return _uniform(old, 0.6, 1.4, generator)
        return _normal(old, 0.1, generator)
    if name == "bias":
        return _normal(old, 0.1, generator)
    if isinstance(module, (*DENSE, *TURNED)) and name == "weight":
        fan_in = old.numel() // old.shape[0]
        if isinstance(module, TURNED):
            fan_in = old.numel() // old.shape[1]
        return _normal(old, 1 / math.sqrt(fan_in), generator)
    if isinstance(module, nn.Embedding):
        return _normal(old, 0.7, generator)
    if old.dim() and any(word in name for word in SCALES):
        return _uniform(old, 0.3, 0.7, generator)
    return _normal(old, 0.2, generator)


def _is_norm(module: nn.Module) -> bool:
    return any("Norm" in kind.__name__ for kind in type(module).__mro__) and hasattr(module, "weight")


def _normal(old: torch.Tensor, deviation: float, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(old.shape, generator=generator) * deviation


def _uniform(old: torch.Tensor, low: float, high: float, generator: torch.Generator) -> torch.Tensor:
    return torch.rand(old.shape, generator=generator) * (high - low) + low


def _statistics(net: nn.Module, inputs: tuple[Any, ...], generator: torch.Generator) -> None:
    """A running mean and variance near those of what arrives, for each BatchNorm as it first runs.

    Taken in one pass of train mode and shaken afterwards, values explode in deep nets.
    """
    done: set[nn.Module] = set()

    def fill(module: Any, arguments: tuple[Any, ...]) -> None:
        if module in done:
            return
        done.add(module)
        value = arguments[0].transpose(0, 1).flatten(1)
        variance, mean = torch.var_mean(value, dim=1, unbiased=False)
        variance = variance.clamp(
            min=0.1 * float(variance.mean())
        )  # a channel that hardly moves would blow up rounding
        module.running_mean.copy_(mean + 0.2 * variance.sqrt() * torch.randn(mean.shape, generator=generator))
        module.running_var.copy_(variance * _uniform(mean, 0.75, 1.25, generator))

    hooks = [module.register_forward_pre_hook(fill) for module in _batch_norms(net)]
    net(*inputs)
    for hook in hooks:
        hook.remove()


def _batch_norms(net: nn.Module) -> Iterator[nn.Module]:
    return (module for module in net.modules() if getattr(module, "running_mean", None) is not None)
