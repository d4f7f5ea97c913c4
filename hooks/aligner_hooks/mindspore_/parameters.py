"""Weights in canonical words: torch's names and torch's layout, both ways."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, nn

from aligner.adapter import Parameter
from aligner.dtypes import DTYPES, decode
from aligner.record import Array
from aligner_hooks.mindspore_ import tensors
from aligner_hooks.mindspore_.layers import parts, places
from aligner_hooks.mindspore_.norms import stands_in_for_no_affine
from aligner_hooks.mindspore_.spec import is_a


def _kinds(*names: str) -> tuple[type, ...]:
    """Those of these classes that this MindSpore has."""
    return tuple(getattr(nn, name) for name in names if hasattr(nn, name))


_AFFINE = {"gamma": "weight", "beta": "bias"}
_STATISTICS = {"moving_mean": "running_mean", "moving_variance": "running_var"}
INSTANCE_NORMS = _kinds("InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d")
RECURRENT = _kinds("LSTM", "GRU", "RNN")
# MindSpore's name for a parameter -> torch's, by the class that owns it. mint's classes have torch's names already.
ROLES: tuple[tuple[tuple[type, ...], dict[str, str]], ...] = (
    (_kinds("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"), {**_AFFINE, **_STATISTICS}),
    (INSTANCE_NORMS, {**_AFFINE, **_STATISTICS}),
    (_kinds("LayerNorm", "GroupNorm"), _AFFINE),
    (_kinds("Embedding", "EmbeddingLookup"), {"embedding_table": "weight"}),
    (_kinds("PReLU"), {"w": "weight"}),
)
# These keep their one-dimensional kernel as a two-dimensional one of height 1.
FLAT_KERNELS = _kinds("Conv1d", "Conv1dTranspose")
FLAT_AXIS = 2


# Parameters to MindSpore, buffers to torch.
BUFFERS = {*_STATISTICS, "running_mean", "running_var", "num_batches_tracked"}


def parameters(model: nn.Cell) -> Iterator[Parameter]:
    """All of them, a shared one once, in the order of the cells and within a cell as they were made."""
    seen: set[int] = set()
    for path, cell, _ in places(model):
        for part, owner in [("", cell), *parts(cell)]:
            for own, tensor, registered in owned(owner):
                if id(tensor) in seen or _without_effect(owner, own):
                    continue
                seen.add(id(tensor))
                yield Parameter(
                    name=".".join(word for word in (path, part, own) if word),
                    layer=path,
                    role=role(owner, own),
                    shape=_canonical_shape(owner, own, tuple(tensor.shape)),
                    dtype=tensors.dtype(tensor),
                    trainable=registered and bool(tensor.requires_grad),
                    tensor=tensor,
                    buffer=not registered or own in BUFFERS,
                    kept=registered or own not in (getattr(owner, "_non_persistent_buffers_set", None) or ()),
                )


def role(cell: nn.Cell, own: str) -> str:
    """The canonical name of a cell's own parameter."""
    for kinds, names in ROLES:
        if is_a(cell, kinds):
            return names.get(own, own)
    return own


def owned(cell: nn.Cell) -> Iterator[tuple[str, Any, bool]]:
    """Name, tensor and whether it is a Parameter (or a buffer), of what the cell itself holds."""
    grouped = _groups(cell)
    for name, tensor in cell.parameters_and_names(expand=False):
        yield grouped.pop(id(tensor), (name, tensor))[0], tensor, True
    # MindSpore does not count the parameters of a plain list among the net's; they take part in the run all the same.
    for name, tensor in grouped.values():
        yield name, tensor, True
    for name, tensor in getattr(cell, "_buffers", {}).items():
        if tensor is not None:
            yield name, tensor, False


def _groups(cell: nn.Cell) -> dict[int, tuple[str, Any]]:
    """Parameters in tuples and lists of a user's cell, as torch's ParameterList would name them: "scales.0".

    The recurrent layers' own tuples hold parameters that are named as torch names them.
    """
    if is_a(cell, RECURRENT):
        return {}
    return {
        id(item): (f"{name}.{index}", item)
        for name, value in vars(cell).items()
        if isinstance(value, (list, tuple)) and all(isinstance(item, mindspore.Parameter) for item in value)
        for index, item in enumerate(value)
    }


def _without_effect(cell: nn.Cell, own: str) -> bool:
    """Whether this parameter only stands where torch has none: it is constant, or nobody reads it.

    A norm with affine=False keeps a gamma of ones and a beta of zeros; an InstanceNorm keeps running statistics but
    always normalises by those of its input, as a BatchNorm does that was told to.
    """
    if own in _AFFINE:
        return stands_in_for_no_affine(cell)
    if own in _STATISTICS:
        return is_a(cell, INSTANCE_NORMS) or getattr(cell, "use_batch_statistics", None) is True
    return False


def _canonical_shape(cell: nn.Cell, own: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    if own == "weight" and is_a(cell, FLAT_KERNELS):
        return shape[:FLAT_AXIS] + shape[FLAT_AXIS + 1 :]
    return shape


def read(parameter: Parameter) -> Array:
    """The bits in canonical layout."""
    return tensors.to_numpy(parameter.tensor).reshape(parameter.shape)


def load(parameter: Parameter, array: Array, dtype: str) -> None:
    """New values, in the parameter's own type and layout."""
    if tuple(array.shape) != parameter.shape:
        raise ValueError(f"{parameter.name} has the shape {parameter.shape}, not {tuple(array.shape)}")
    tensor: Any = parameter.tensor
    own = tensors.dtype(tensor)
    # The layouts differ only by axes of size 1, in which reshaping moves nothing.
    array = np.ascontiguousarray(array).reshape(tuple(tensor.shape))
    if own == dtype:
        value = tensors.from_numpy(array, dtype)
    elif DTYPES[own].decode is None:
        native = DTYPES[own].storage.newbyteorder("=")  # MindSpore 2.7 takes no other, be it the same order
        value = Tensor(decode(array, dtype).astype(native), tensor.dtype)
    else:
        value = Tensor(np.asarray(decode(array, dtype), np.float32)).astype(tensor.dtype)
    if isinstance(tensor, mindspore.Parameter):
        tensor.set_data(value)
    else:  # a buffer
        tensor.assign_value(value)
