"""Weights in canonical words. Names are torch's; what torch does not have is left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore
import numpy as np

from aligner.adapter import Parameter
from aligner.dtypes import DTYPES, decode
from aligner.record import Array
from aligner_hooks.mindtorch_ import tensors
from aligner_hooks.mindtorch_.layers import LAYERS, parametrized
from aligner_hooks.mindtorch_.package import OPENI, package
from aligner_hooks.torchlike.constructions import is_recurrent
from aligner_hooks.torchlike.layers import Place

_AFFINE = ("weight", "bias")
_STATISTICS = ("running_mean", "running_var")


def walk(model: Any) -> Iterator[Parameter]:
    """Parameters, then buffers, of each layer in turn; a shared one once, under its first name."""
    seen: set[int] = set()
    for place in LAYERS.walk(model):
        for name, tensor, buffer in _owned(model, place.content):
            if tensor is None or id(tensor) in seen or _without_effect(place.content, name):
                continue
            seen.add(id(tensor))
            yield _parameter(place, name, tensor, buffer)


def _owned(model: Any, module: Any) -> Iterator[tuple[str, Any, bool]]:
    """Name, tensor and whether it is a buffer; OpenI's norms keep their statistics among both."""
    buffers = module._buffers
    for name, tensor in (*module._parameters.items(), *LAYERS.plain_parameters(model, module)):
        if name not in buffers:
            yield name, tensor, False
    if parametrized(module):
        yield from ((name, p, False) for name, p in module.parametrizations.named_parameters("parametrizations"))
    yield from ((name, tensor, True) for name, tensor in buffers.items())


def _parameter(place: Place, name: str, tensor: Any, buffer: bool) -> Parameter:
    return Parameter(
        name=f"{place.raw}.{name}" if place.raw else name,
        layer=place.path,
        role=name,
        shape=tuple(tensor.shape),
        dtype=tensors.dtype(tensor),
        trainable=not buffer and bool(tensor.requires_grad),
        tensor=tensor,
        buffer=buffer,
        kept=not buffer or name not in getattr(place.content, "_non_persistent_buffers_set", ()),
    )


def _without_effect(module: Any, name: str) -> bool:
    """Whether it only stands where torch has none: OpenI's norms keep weights of one and zero when they have none."""
    if package().maker != OPENI or not hasattr(module, "_is_adapter_norm"):
        return False
    if name in _AFFINE:
        return getattr(module, "affine", True) is False
    return name in _STATISTICS and getattr(module, "track_running_stats", True) is False


def load(parameter: Parameter, array: Array, dtype: str) -> None:
    """New values for the tensor that is there, in its own type.

    A function under @mindspore.jit goes on reading the memory that a parameter had when it was compiled, also when
    that is freed: values that are there already are left alone, and statistics get theirs in place, as in training.

    Raises:
        ValueError: the array has another shape.
    """
    tensor: Any = parameter.tensor
    if tuple(array.shape) != tuple(tensor.shape):
        raise ValueError(f"{parameter.name} has shape {tuple(tensor.shape)}, the values have {tuple(array.shape)}")
    own = tensors.dtype(tensor)
    if own == dtype and tensors.holds(tensor, array):
        return
    if own == dtype:
        value = tensors.lowered_from(array, dtype)
    elif DTYPES[own].decode is None:
        value = tensors.lowered_from(decode(array, dtype).astype(DTYPES[own].storage.newbyteorder("=")), own)
    else:
        wide = tensors.lowered_from(np.asarray(decode(array, dtype), np.float32), "float32")
        value = tensors.settled(wide.astype(tensors.mindspore_type(own)))
    if parameter.buffer and package().compiles and isinstance(tensor, mindspore.Parameter):
        mindspore.ops.assign(tensor, value)
    else:
        tensors.assign(tensor, value)


def cast(model: Any, dtype: str) -> None:
    """Put floating parameters and buffers of all layers into this dtype, and floating tensors in plain attributes.

    A parameter of OpenI's is a new object afterwards, as it is with its own `half()`: MindSpore remembers the type
    that the old one had when it first ran. One that is shared is shared again.

    Raises:
        ValueError: MindSpore has no such floating dtype.
    """
    if "float" not in dtype:
        raise ValueError(f"{dtype} is no floating type")
    kind = tensors.mindspore_type(dtype)
    fresh: dict[int, tuple[Any, Any]] = {}  # with the old one, so that its id stays its own
    for place in LAYERS.walk(model):
        module = place.content
        for table in (module._parameters, module._buffers):
            for name, tensor in table.items():
                if id(tensor) not in fresh and _is_to_change(tensor, dtype):
                    fresh[id(tensor)] = (tensor, _in_type(tensor, kind))
                table[name] = fresh[id(tensor)][1] if id(tensor) in fresh else tensor
        if is_recurrent(type(module)) and "_flat_weights" in vars(module):
            vars(module)["_flat_weights"] = [module._parameters.get(name) for name in module._flat_weights_names]
        for tensor in LAYERS.plain_tensors(module):
            if _is_to_change(tensor, dtype):
                tensors.assign(tensor, _retyped(tensor, kind))


def _is_to_change(tensor: Any, dtype: str) -> bool:
    word = "" if tensor is None else tensors.dtype(tensor)
    return "float" in word and word != dtype


def _retyped(tensor: Any, kind: Any) -> Any:
    return tensors.settled(package().lowered(tensor).astype(kind))


def _in_type(tensor: Any, kind: Any) -> Any:
    """The tensor in another type: itself, or for a parameter of OpenI's another one of the same name."""
    value = _retyped(tensor, kind)
    if package().maker == OPENI and isinstance(tensor, package().nn.Parameter):
        made = package().nn.Parameter(package().raised(value), requires_grad=bool(tensor.requires_grad))
        made.name = tensor.name
        return made
    tensors.assign(tensor, value)
    return tensor
