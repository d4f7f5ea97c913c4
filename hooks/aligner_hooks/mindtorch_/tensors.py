"""Values: exact bits out of MindTorch's tensors, and back. Underneath they are MindSpore's."""

from __future__ import annotations

from functools import cache
from typing import Any

import mindspore
import numpy as np

from aligner.dtypes import DTYPES
from aligner.errors import Reason
from aligner.record import Array
from aligner_hooks.mindsporelike.late import read
from aligner_hooks.mindsporelike.seen import Seen
from aligner_hooks.mindtorch_.package import package


@cache
def word(text: str) -> str:
    return text.rpartition(".")[2].lower()


def dtype(tensor: Any) -> str:
    """The word for its type: both packages print it, with their own name or MindSpore's before it, or in capitals."""
    return word(str(tensor.dtype))


def mindspore_type(word: str) -> Any:
    """MindSpore's type for aligner's word.

    Raises:
        ValueError: it has none.
    """
    found = getattr(mindspore, "bool_" if word == "bool" else word, None)
    if found is None:
        raise ValueError(f"MindSpore {mindspore.__version__}, on which this MindTorch runs, has no {word}")
    return found


def is_tensor(value: object) -> bool:
    """Whether it is one of the package's tensors, or of MindSpore's."""
    return not isinstance(value, type) and isinstance(value, (package().tensor, Seen))


def to_numpy(tensor: Any) -> Array:
    """The exact bits, sharing memory with the tensor where MindSpore allows it.

    Raises:
        ValueError: there are no values to read; the text says why.
    """
    if isinstance(tensor, Seen):
        return tensor.array
    word = dtype(tensor)
    if word not in DTYPES:
        raise Reason("why-no-counterpart", word)
    if getattr(tensor, "is_meta", False) is True:
        raise Reason("why-meta")
    known = DTYPES[word]
    # OpenI's makes a copy of what it lowers, which takes longer than all else that is done with weights.
    is_plain = known.decode is None and isinstance(tensor, package().nn.Parameter)
    plain = tensor if is_plain else package().lowered(tensor)
    shape = tuple(plain.shape)
    if 0 in shape:
        return np.empty(shape, known.storage)
    try:
        if known.decode is None:
            array: Array = np.ascontiguousarray(read(plain.asnumpy))
            return array.reshape(shape)
        # numpy knows no bfloat16: the bits it is.
        return np.frombuffer(read(plain.contiguous().get_bytes), known.storage).reshape(shape)
    except (TypeError, RuntimeError, ValueError) as error:
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise Reason("why-unshown", "MindSpore", word, first) from error


def holds(tensor: Any, array: Array) -> bool:
    """Whether these are the tensor's bits; the array is of the tensor's shape and of what stores its dtype."""
    wanted = np.ascontiguousarray(array, DTYPES[dtype(tensor)].storage)
    return np.array_equal(to_numpy(tensor).reshape(-1).view(np.uint8), wanted.reshape(-1).view(np.uint8))


def lowered_from(array: Array, word: str) -> Any:
    """A tensor of MindSpore with these bits and memory of its own.

    Raises:
        ValueError: MindSpore has no such dtype.
    """
    kind = mindspore_type(word)
    array = np.asarray(array)
    if DTYPES[word].decode is None:
        return mindspore.Tensor(array.astype(array.dtype.newbyteorder("="), order="C", copy=True), kind)
    # The outer Tensor: what comes of the bytes is of an inner class without operators.
    return mindspore.Tensor(mindspore.Tensor.convert_bytes_to_tensor(array.tobytes(), array.shape, kind))


def from_numpy(array: Array, word: str) -> Any:
    """A tensor of the package with these bits and memory of its own."""
    return package().raised(lowered_from(array, word))


def overwrite(tensor: Any, other: Any) -> None:
    """Have this very object hold the values of another; whatever shared its memory until now keeps what it had.

    Raises:
        ValueError: it is a parameter, or shape or dtype differ.
    """
    if not (is_tensor(tensor) and is_tensor(other)):
        reason = "only a tensor can be overwritten, and by one"
        raise ValueError(reason)
    if isinstance(tensor, package().nn.Parameter):
        reason = "a parameter is not overwritten: its values belong to the layer, not to a run"
        raise ValueError(reason)  # noqa: TRY004 - as above
    for what, found, wanted in (
        ("shape", tuple(other.shape), tuple(tensor.shape)),
        ("dtype", dtype(other), dtype(tensor)),
    ):
        if found != wanted:
            raise ValueError(f"the tensor has {what} {wanted}, the other one {found}")
    assign(tensor, lowered_from(to_numpy(other), dtype(other)))


def settled(value: Any) -> Any:
    """A tensor of MindSpore that is computed and has memory of its own: parameters do not take a promise of one."""
    return lowered_from(to_numpy(value), dtype(value))


def assign(tensor: Any, value: Any) -> None:
    """Have this very object hold another tensor of MindSpore.

    OpenI's tensors are a shell around one: the shell gets another, and whoever shared the old one keeps it.
    """
    if "stub" in vars(tensor) and "tensor" in vars(tensor):
        vars(tensor).pop("stub_shape", None)
        vars(tensor).pop("stub_dtype", None)
        tensor.stub, tensor.tensor = None, value
    else:
        tensor.assign_value(value)
