"""What each dtype word means: how its bits are stored, and how to turn them into numbers numpy can compute with.

The word is the framework's own ("bfloat16"). numpy lacks bfloat16 and float8; their bits travel as unsigned
integers and become float32 (exact) only when somebody computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Optional

import numpy as np

from aligner.record import Array


@dataclass(frozen=True)
class DType:
    """`storage` is the numpy type of the stored bits; `decode` is None where numpy computes with it as it is.

    `eps` is the spacing of the floating-point numbers at 1.0 and None for exact types.
    """

    name: str
    storage: np.dtype[np.generic]
    decode: Optional[Callable[[Array], Array]] = None
    eps: Optional[float] = None

    @property
    def exact(self) -> bool:
        """Integers and booleans: compared for equality, not within a tolerance."""
        return self.eps is None


def _bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


@cache
def _float8_table(exponent_bits: int, bias: int, has_inf: bool) -> Array:
    """The 256 values of an 8-bit float, worked out from its definition."""
    mantissa_bits = 7 - exponent_bits
    top = (1 << exponent_bits) - 1
    values = np.empty(256, np.float32)
    for code in range(256):
        sign = -1.0 if code & 0x80 else 1.0
        exponent = (code >> mantissa_bits) & top
        mantissa = code & ((1 << mantissa_bits) - 1)
        if has_inf and exponent == top:
            value = np.inf if mantissa == 0 else np.nan
        elif not has_inf and exponent == top and mantissa == (1 << mantissa_bits) - 1:
            value = np.nan
        elif exponent == 0:
            value = mantissa * 2.0 ** (1 - bias - mantissa_bits)
        else:
            value = (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)
        values[code] = sign * value
    return values


def _float8_e4m3fn(bits: Array) -> Array:
    return np.asarray(_float8_table(4, 7, False)[bits])


def _float8_e5m2(bits: Array) -> Array:
    return np.asarray(_float8_table(5, 15, True)[bits])


def _numpy(name: str, eps: Optional[float] = None) -> DType:
    return DType(name, np.dtype(name).newbyteorder("<"), None, eps)


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        _numpy("float64", 2.0**-52),
        _numpy("float32", 2.0**-23),
        _numpy("float16", 2.0**-10),
        DType("bfloat16", np.dtype("<u2"), _bfloat16, 2.0**-7),
        DType("float8_e4m3fn", np.dtype("u1"), _float8_e4m3fn, 2.0**-3),
        DType("float8_e5m2", np.dtype("u1"), _float8_e5m2, 2.0**-2),
        _numpy("complex64", 2.0**-23),
        _numpy("complex128", 2.0**-52),
        *(_numpy(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
        _numpy("bool"),
    )
}


def decode(array: Array, dtype: str) -> Array:
    """Stored bits -> numbers: float32 for bfloat16 and float8, the array itself otherwise."""
    turn = DTYPES[dtype].decode
    return array if turn is None else turn(array)


def encode(array: Array, dtype: str) -> Array:
    """Numbers -> the bits of this dtype, rounded to the nearest; the counterpart of `decode`.

    Raises:
        ValueError: for a type of eight bits; nothing is computed in these.
    """
    storage = DTYPES[dtype].storage
    if DTYPES[dtype].decode is None:
        with np.errstate(over="ignore"):
            return array.astype(storage)
    if dtype != "bfloat16":
        raise ValueError(f"nothing is rounded to {dtype}")
    bits = np.ascontiguousarray(array, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(array), np.uint32(0x7FC0), rounded).astype(storage)
