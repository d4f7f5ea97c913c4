"""Dtypes decode to the numbers they stand for, every one of them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from aligner.dtypes import DTYPES, decode, encode

ALL_BYTES = np.arange(256, dtype=np.uint8)


def by_definition(code, exponent_bits, bias, has_inf):
    """A float8's value written down from its definition, with Python's floats."""
    mantissa_bits = 7 - exponent_bits
    sign = -1.0 if code >> 7 else 1.0
    exponent, mantissa = (code >> mantissa_bits) % (1 << exponent_bits), code % (1 << mantissa_bits)
    highest = (1 << exponent_bits) - 1
    if has_inf and exponent == highest:
        return math.nan if mantissa else sign * math.inf
    if not has_inf and exponent == highest and mantissa == (1 << mantissa_bits) - 1:
        return math.nan
    fraction = mantissa / (1 << mantissa_bits)
    return sign * (math.ldexp(fraction, 1 - bias) if exponent == 0 else math.ldexp(1 + fraction, exponent - bias))


@pytest.mark.parametrize(
    ("dtype", "layout", "largest"),
    [("float8_e4m3fn", (4, 7, False), 448.0), ("float8_e5m2", (5, 15, True), 57344.0)],
)
def test_float8_decodes_by_its_definition(dtype, layout, largest):
    wanted = np.array([by_definition(int(code), *layout) for code in ALL_BYTES], np.float32)
    decoded = decode(ALL_BYTES, dtype)
    assert decoded.dtype == np.float32
    assert np.array_equal(decoded, wanted, equal_nan=True)
    assert np.array_equal(np.signbit(decoded[[0, 128]]), [False, True])
    assert np.max(decoded[np.isfinite(decoded)]) == largest


def test_bfloat16_is_the_upper_half_of_float32():
    bits = np.arange(65536, dtype=np.uint16)
    decoded = decode(bits, "bfloat16")
    assert decoded.dtype == np.float32
    assert np.array_equal(decoded.view(np.uint32), bits.astype(np.uint32) * 65536)
    assert decode(np.array([0x3F80, 0xC040], np.uint16), "bfloat16").tolist() == [1.0, -3.0]


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "float32"])
def test_decoding_agrees_with_torch(dtype):
    torch = pytest.importorskip("torch", reason="checks our tables against torch's")
    if not hasattr(torch, dtype):
        pytest.skip(f"torch {torch.__version__} has no {dtype}")
    storage = DTYPES[dtype].storage
    bits = np.random.default_rng(0).integers(0, 256, 4096 * storage.itemsize, np.uint8)
    bits = ALL_BYTES if storage.itemsize == 1 else bits
    tensor = torch.from_numpy(bits.copy()).view(getattr(torch, dtype)).to(torch.float32)
    assert np.array_equal(decode(bits.view(storage), dtype).astype(np.float32), tensor.numpy(), equal_nan=True)


@pytest.mark.parametrize("dtype", sorted(name for name, known in DTYPES.items() if not known.exact))
def test_eps_is_the_step_after_one(dtype):
    eps, storage = DTYPES[dtype].eps, DTYPES[dtype].storage
    if DTYPES[dtype].decode is None:
        assert eps == np.finfo(storage).eps
        return
    codes = np.arange(2 ** (8 * storage.itemsize)).astype(storage)
    decoded = decode(codes, dtype)
    values = decoded[np.isfinite(decoded)].astype(np.float64)
    assert np.min(values[values > 1]) - 1 == eps


@pytest.mark.parametrize("dtype", sorted(DTYPES))
def test_any_shape_decodes_and_ordinary_types_are_left_alone(dtype):
    storage = DTYPES[dtype].storage
    for shape in [(), (0, 3), (2, 1, 3)]:
        array = np.zeros(shape, storage)
        decoded = decode(array, dtype)
        assert decoded.shape == shape
        assert (decoded is array) == (DTYPES[dtype].decode is None)


def test_integers_and_booleans_are_exact():
    exact = {name for name, known in DTYPES.items() if known.exact}
    assert exact == {"bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))}


def test_storage_is_little_endian_everywhere():
    assert all(known.storage == known.storage.newbyteorder("<") for known in DTYPES.values())


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_encoding_rounds_to_the_nearest_and_keeps_what_is_not_finite(dtype):
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(4000) * 10.0 ** rng.integers(-3, 4, 4000)).astype(np.float32)
    back = decode(encode(values, dtype), dtype)
    small = 2.0**-24 if dtype == "float16" else 0.0  # below its normal numbers float16 has fixed steps
    assert np.all(np.abs(back - values) <= np.maximum(DTYPES[dtype].eps / 2 * np.abs(values), small))
    assert np.array_equal(encode(back, dtype), encode(values, dtype)), "what is on the grid stays where it is"
    special = decode(encode(np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], np.float32), dtype), dtype)
    assert np.array_equal(special, [np.nan, np.inf, -np.inf, 0.0, -0.0], equal_nan=True)
    assert np.signbit(special[4])


def test_nothing_is_rounded_to_eight_bits():
    with pytest.raises(ValueError, match="float8_e5m2"):
        encode(np.zeros(1, np.float32), "float8_e5m2")
