"""torch tensors to numpy and back, bit by bit."""

from __future__ import annotations

from functools import cache
from typing import Any, NoReturn, Optional

import numpy as np
import torch

from aligner.dtypes import DTYPES
from aligner.errors import Reason
from aligner.record import Array

_PLAIN = (torch.Tensor, torch.nn.Parameter)


@cache
def dtype_of(dtype: Any) -> str:
    """A torch dtype's word: "bfloat16" for torch.bfloat16."""
    return str(dtype).partition(".")[2]


def dtype_word(tensor: Any) -> str:
    """The word for a tensor's dtype."""
    return dtype_of(tensor.dtype)


@cache
def _carrier(dtype: Any) -> Optional[Any]:
    """The integer type that numpy shares with torch, for a dtype that numpy lacks."""
    return {"bfloat16": torch.int16, "float8_e4m3fn": torch.uint8, "float8_e5m2": torch.uint8}.get(dtype_of(dtype))


def to_numpy(tensor: Any) -> Array:
    """The exact bits on the host, sharing the tensor's memory where that can be.

    Raises:
        ValueError: the tensor has no readable values; the text says why.
    """
    if type(tensor) in _PLAIN:
        bits = _read_at_once(tensor)
        return _read(tensor) if bits is None else bits
    # A subclass may answer detach() or numpy() with anything; underneath it is a tensor like others.
    disable = getattr(torch._C, "DisableTorchFunctionSubclass", torch._C.DisableTorchFunction)
    with disable():
        return _read(tensor)


def _read_at_once(tensor: Any) -> Optional[Array]:
    """The ordinary case, with the fewest questions: a tensor in its own order on the host."""
    try:
        if tensor.device.type == "cpu" and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg()):
            return _shown(tensor)
    except (RuntimeError, TypeError):
        pass
    return None


class _Memory:
    """A tensor's memory as numpy asks for it. `tensor.numpy()` would forbid the net to give the memory back later."""

    def __init__(self, tensor: Any, storage: Any, pointer: int) -> None:
        self._tensor = tensor  # the memory lives as long as the array
        self.__array_interface__ = {
            "version": 3,
            "shape": tuple(tensor.shape),
            "typestr": storage.str,
            "data": (pointer, False),
        }


def _shown(tensor: Any) -> Optional[Array]:
    """The bits of a tensor in its own order on the host; None for what has no memory, or a type unknown here."""
    known = DTYPES.get(dtype_of(tensor.dtype))
    if known is None:
        return None
    pointer = tensor.data_ptr()
    if pointer:
        return np.asarray(_Memory(tensor, known.storage, pointer))
    return np.empty(tuple(tensor.shape), known.storage) if tensor.numel() == 0 else None


def _read(tensor: Any) -> Array:
    try:
        return _read_with_care(tensor)
    except (ValueError, MemoryError):
        raise
    except Exception as error:  # a tensor inside a transform or of a type that numpy lacks; a subclass raises anything
        first = str(error).splitlines()[0] if str(error) else type(error).__name__  # torch's own words say it best
        raise Reason("why-unshown", "torch", _describe(tensor), first) from error


def _read_with_care(tensor: Any) -> Array:
    if tensor.layout is not torch.strided:
        tensor = _strided(tensor)
    if tensor.is_quantized or tensor.is_meta or _is_nested(tensor):
        _refuse(tensor)
    plain = tensor.detach()
    if plain.device.type != "cpu":
        plain = plain.cpu()
    if plain.is_complex():
        plain = plain.resolve_conj()
    plain = plain.resolve_neg().contiguous()
    if plain.numel() and _storage_bytes(plain) == 0:
        _refuse(tensor)
    shown = _shown(plain)
    if shown is not None:
        return shown
    carrier = _carrier(plain.dtype)
    bits: Array = plain.numpy() if carrier is None else plain.view(carrier).numpy()
    return bits if carrier is None else bits.view(DTYPES[dtype_of(plain.dtype)].storage)


def _is_nested(tensor: Any) -> bool:
    """Whether a tensor holds rows of different lengths; torch before 1.12 has none."""
    return bool(getattr(tensor, "is_nested", False))


def _storage_bytes(tensor: Any) -> int:
    """How much memory stands behind a tensor: none where a sharded parameter was set free. torch 2.0 and later tell."""
    return int(tensor.untyped_storage().nbytes()) if hasattr(tensor, "untyped_storage") else -1


def _strided(tensor: Any) -> Any:
    if str(tensor.layout) == "torch._mkldnn":
        return tensor.to_dense()
    return _refuse(tensor)


def _refuse(tensor: Any) -> NoReturn:
    """Say why a tensor has no readable values."""
    if _is_nested(tensor):
        reason = "why-nested"
    elif tensor.layout is not torch.strided:
        reason = "why-sparse"
    elif tensor.is_meta:
        reason = "why-meta"
    elif tensor.is_quantized:
        reason = "why-quantized"
    else:
        reason = "why-freed"
    raise Reason(reason, _describe(tensor))


def _describe(tensor: Any) -> str:
    kind = type(tensor).__name__
    return f"{dtype_word(tensor)} tensor" if type(tensor) in _PLAIN else f"{dtype_word(tensor)} {kind}"


def from_numpy(array: Array, dtype: str) -> Any:
    """A tensor with these bits and memory of its own.

    Raises:
        ValueError: this torch has no such dtype.
    """
    target = getattr(torch, dtype, None)
    if target is None:
        raise ValueError(f"torch {torch.__version__} has no dtype {dtype}")
    native = DTYPES[dtype].storage.newbyteorder("=")
    own = np.array(array, dtype=native, order="C", copy=True)
    carrier = _carrier(target)
    if carrier is None:
        return torch.from_numpy(own)
    # A view in the carrier's type: torch.from_numpy knows no uint16 before 2.3.
    return torch.from_numpy(own.view(np.int16 if carrier is torch.int16 else np.uint8)).view(target)


def overwrite(tensor: Any, other: Any) -> None:
    """Put a copy of the other's values under this very object; memory that it shared stays with the rest.

    Raises:
        ValueError: it is a parameter, or shape, dtype or place differ.
    """
    if isinstance(tensor, (torch.nn.Parameter, torch.nn.parameter.UninitializedTensorMixin)):
        reason = "a parameter of the net is not overwritten: its values belong to the layer, not to a run"
        raise ValueError(reason)  # noqa: TRY004 - the contract's word for all that cannot be overwritten
    for what, found, wanted in (
        ("shape", tuple(other.shape), tuple(tensor.shape)),
        ("dtype", dtype_word(other), dtype_word(tensor)),
        ("layout", other.layout, tensor.layout),
        ("device", other.device, tensor.device),
    ):
        if found != wanted:
            raise ValueError(f"the tensor has {what} {wanted}, the other one {found}")
    # A tensor made in inference mode may be changed in inference mode only.
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        try:
            tensor.data = other.detach().clone()
        except (RuntimeError, TypeError) as error:
            first = str(error).splitlines()[0]
            raise ValueError(f"torch cannot give this {_describe(tensor)} other values: {first}") from error
