"""Values: exact bits out of MindSpore's tensors, and back."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Optional

import mindspore
import numpy as np
from mindspore import Tensor

from aligner.dtypes import DTYPES
from aligner.errors import Reason
from aligner.record import Array
from aligner_hooks.mindsporelike.late import read
from aligner_hooks.mindsporelike.seen import Seen

# Sparse values are no Tensors, yet a layer may be given one: they are tensors whose values we cannot write.
SPARSE = tuple(getattr(mindspore, name) for name in ("COOTensor", "CSRTensor", "RowTensor") if hasattr(mindspore, name))


TENSORS = (Tensor, *SPARSE, Seen)
# Up to this size a copy of the bytes is made sooner than MindSpore makes an array that shares its memory.
SMALL = 16 << 10


@cache
def words() -> Mapping[Any, str]:
    """aligner's word for each of MindSpore's types."""
    known = {getattr(mindspore, name): name for name in DTYPES if hasattr(mindspore, name)}
    known[mindspore.bool_] = "bool"
    return known


@cache
def types() -> Mapping[str, Any]:
    """MindSpore's type for each of aligner's words."""
    return {word: kind for kind, word in words().items()}


def is_tensor(value: object) -> bool:
    """Whether it is one of MindSpore's tensors, dense or sparse."""
    return isinstance(value, TENSORS)


def dtype(tensor: Any) -> str:
    """The word for its type."""
    if isinstance(tensor, Seen):
        return tensor.dtype
    kind = tensor.dtype
    return words().get(kind) or str(kind).lower()


def to_numpy(tensor: Any) -> Array:
    """The exact bits, sharing memory with the tensor where MindSpore allows it."""
    if isinstance(tensor, Seen):
        return tensor.array
    reason = _unreadable(tensor)
    if reason is not None:
        raise reason
    word = dtype(tensor)
    known = DTYPES[word]
    if known.decode is None and tensor.nbytes > SMALL:
        array: Array = read(tensor.asnumpy)
        return array
    if tensor.size == 0:
        return np.empty(tensor.shape, known.storage)
    # numpy knows neither bfloat16 nor float8, and with numpy 2 asnumpy() raises for them: the bits it is.
    try:
        bits = read(tensor.get_bytes)
    except (TypeError, RuntimeError) as error:
        raise Reason("why-view", word) from error
    return np.frombuffer(bits, known.storage).reshape(tensor.shape)


def _unreadable(tensor: Any) -> Optional[Reason]:
    """Why there are no values to read, if there are none."""
    if isinstance(tensor, SPARSE):
        return Reason("why-sparse-cell", type(tensor).__name__)
    if dtype(tensor) not in DTYPES:
        return Reason("why-no-counterpart", dtype(tensor))
    if getattr(tensor, "is_meta", False):
        return Reason("why-meta")
    if getattr(tensor, "has_init", False):
        return Reason("why-not-made-yet")
    return None


def from_numpy(array: Array, dtype: str) -> Tensor:
    """A tensor with these bits, sharing no memory."""
    if dtype not in types():
        raise ValueError(f"this MindSpore has no {dtype}")
    array = np.asarray(array)
    if DTYPES[dtype].decode is None:
        return Tensor(array.astype(array.dtype.newbyteorder("="), order="C"), types()[dtype])
    # The outer Tensor: what comes of the bytes is of an inner class without operators.
    return Tensor(Tensor.convert_bytes_to_tensor(array.tobytes(), array.shape, types()[dtype]))


def overwrite(tensor: Any, other: Any) -> None:
    """Have this very object hold the values of another; whatever shared its memory until now keeps what it had.

    The values go by the host: an operator that copies them would round them where the layer that runs has casts.
    """
    reason = _not_overwritten(tensor, other)
    if reason:
        raise ValueError(reason)
    tensor.assign_value(from_numpy(to_numpy(other), dtype(other)))


def _not_overwritten(tensor: Any, other: Any) -> str:
    """Why the one cannot hold the other's values, or ""."""
    if not (isinstance(tensor, Tensor) and isinstance(other, Tensor)):
        return "only a dense tensor of MindSpore can be overwritten, and by one"
    if isinstance(tensor, mindspore.Parameter):
        return "a parameter is not overwritten: give it new values with load()"
    if tuple(tensor.shape) != tuple(other.shape):
        return f"a tensor of shape {tuple(tensor.shape)} cannot hold one of shape {tuple(other.shape)}"
    if tensor.dtype != other.dtype:
        return f"a tensor of {dtype(tensor)} cannot hold one of {dtype(other)}"
    return ""
