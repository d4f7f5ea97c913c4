"""Parameters and buffers of a torch net: torch's own names are the canonical ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from aligner.adapter import Parameter
from aligner.record import Array
from aligner_hooks.torch_ import layers, tensors
from aligner_hooks.torchlike.layers import Place
from aligner_hooks.torchlike.settings import is_transposed_linear


def walk(model: Any) -> Iterator[Parameter]:
    """Parameters, then buffers, of each layer in turn; a tied one once, under its first name.

    A parametrized weight (weight_norm) is not stored: what it is computed from stands with its layer, under the role
    "parametrizations.weight.original0".
    """
    seen: set[int] = set()
    for place in layers.walk(model):
        module = place.content
        trained = [*module._parameters.items(), *layers.plain_parameters(model, module)]
        buffers = [*module._buffers.items()]
        if nn.utils.parametrize.is_parametrized(module):
            trained += module.parametrizations.named_parameters("parametrizations")
            buffers += module.parametrizations.named_buffers("parametrizations")
        for name, tensor in trained:
            yield from _parameter(place, name, tensor, seen, buffer=False)
        for name, tensor in buffers:
            yield from _parameter(place, name, tensor, seen, buffer=True)


def _parameter(place: Place, name: str, tensor: Any, seen: set[int], buffer: bool) -> Iterator[Parameter]:
    # A lazy layer's parameter has no shape yet; cautions() tells of it.
    if tensor is None or id(tensor) in seen or layers.is_unmaterialised(tensor):
        return
    seen.add(id(tensor))
    requires_grad = bool(tensor.requires_grad)
    if name == "weight" and is_transposed_linear(place.content):
        tensor = tensor.detach().t()  # a view in a Linear's layout: reading and loading go through it
    yield Parameter(
        name=f"{place.raw}.{name}" if place.raw else name,
        layer=place.path,
        role=name,
        shape=tuple(tensor.shape),
        dtype=tensors.dtype_word(tensor),
        trainable=not buffer and requires_grad,
        tensor=tensor,
        buffer=buffer,
        kept=not buffer or name not in getattr(place.content, "_non_persistent_buffers_set", ()),
    )


def load(parameter: Parameter, array: Array, dtype: str) -> None:
    """Copy values into the parameter where it is, converted to its dtype.

    Raises:
        ValueError: the array has another shape.
    """
    tensor: Any = parameter.tensor
    if tuple(array.shape) != tuple(tensor.shape):
        raise ValueError(f"{parameter.name} has shape {tuple(tensor.shape)}, the values have {tuple(array.shape)}")
    with _writing(tensor):
        tensor.copy_(tensors.from_numpy(array, dtype))


def _writing(tensor: Any) -> Any:
    """What a tensor may be changed in: one made in inference mode in inference mode only."""
    return torch.inference_mode() if tensor.is_inference() else torch.no_grad()


def cast(model: Any, dtype: str) -> None:
    """Put floating parameters and buffers of all layers into this dtype, and floating tensors in plain attributes.

    The tensors stay the objects they are, so that a tied one stays tied. Complex ones keep their type.

    Raises:
        ValueError: this torch has no such floating dtype.
    """
    target = getattr(torch, dtype, None)
    if not isinstance(target, torch.dtype) or not target.is_floating_point:
        raise ValueError(f"torch {torch.__version__} has no floating dtype {dtype}")
    for place in layers.walk(model):
        for tensor in _tensors(place.content):
            if tensor.is_floating_point() and tensor.dtype is not target:
                with _writing(tensor):
                    tensor.data = tensor.data.to(target)


def _tensors(module: Any) -> Iterator[Any]:
    """A layer's own tensors: registered ones, those behind a parametrization, and those in plain attributes."""
    if isinstance(module, torch.jit.ScriptModule):  # the layers inside one are not walked: they stand in C++
        yield from (*module.parameters(), *module.buffers())
        return
    own = [*module._parameters.values(), *module._buffers.values(), *layers.plain_tensors(module)]
    if nn.utils.parametrize.is_parametrized(module):
        own += [*module.parametrizations.parameters(), *module.parametrizations.buffers()]
    yield from (tensor for tensor in own if tensor is not None and not layers.is_unmaterialised(tensor))
