"""Checks of `to_numpy` and `from_numpy`: exact bits, both ways, for every dtype."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from aligner.adapter import Adapter
from aligner.dtypes import DTYPES, decode
from aligner.record import Array
from aligner.testing.supplies import Supplies, equal_bits


class TensorChecks(Supplies):
    """dtype, to_numpy, from_numpy."""

    def _supported(self, dtype: str) -> str:
        if dtype not in self.dtypes:
            pytest.skip(f"the framework holds no readable {dtype} tensors here")
        return dtype

    @pytest.mark.parametrize("dtype", sorted(DTYPES))
    @pytest.mark.parametrize("shape", [(6, 10), (), (0, 3), (1,), (2, 1, 3)], ids=str)
    def test_bits_come_back(self, adapter: Adapter, dtype: str, shape: tuple[int, ...]) -> None:
        array = sample(self._supported(dtype), shape)
        tensor = adapter.from_numpy(array, dtype)
        assert adapter.is_tensor(tensor)
        assert adapter.dtype(tensor) == dtype
        assert equal_bits(adapter.to_numpy(tensor), array)

    @pytest.mark.parametrize("dtype", sorted(DTYPES))
    def test_a_view_is_read_in_its_own_order(self, adapter: Adapter, dtype: str) -> None:
        array = sample(self._supported(dtype), (3, 5))
        view = self.transposed(adapter.from_numpy(array, dtype))
        assert equal_bits(adapter.to_numpy(view), np.ascontiguousarray(array.T))

    @pytest.mark.parametrize("dtype", ["float32", "float64", "int64", "complex64"])
    def test_odd_memory_comes_in_right(self, adapter: Adapter, dtype: str) -> None:
        array = sample(self._supported(dtype), (8, 6))
        for odd in (array[::2, ::-1], array.T, array.astype(array.dtype.newbyteorder(">"))):
            assert equal_bits(adapter.to_numpy(adapter.from_numpy(odd, dtype)), _plain_copy(odd))

    def test_from_numpy_shares_no_memory_and_takes_read_only_arrays(self, adapter: Adapter) -> None:
        array = sample("float32", (4, 4))
        kept = array.copy()
        tensor = adapter.from_numpy(array, "float32")
        array[:] = 0
        assert equal_bits(adapter.to_numpy(tensor), kept)
        kept.flags.writeable = False
        tensor = adapter.from_numpy(kept, "float32")
        self.add_in_place(tensor, 1.0)
        assert equal_bits(kept, sample("float32", (4, 4)))

    def test_a_copy_of_to_numpy_is_not_moved_by_the_tensor(self, adapter: Adapter) -> None:
        tensor = adapter.from_numpy(np.zeros((2, 2), np.float32), "float32")
        bits = adapter.to_numpy(tensor).copy()
        self.add_in_place(tensor, 1.0)
        assert not bits.any()
        assert adapter.to_numpy(tensor).all()

    def test_tensors_without_values_say_why(self, adapter: Adapter) -> None:
        for tensor in self.unreadable():
            assert adapter.is_tensor(tensor)
            with pytest.raises(ValueError) as error:
                adapter.to_numpy(tensor)
            assert len(str(error.value)) > 10


def sample(dtype: str, shape: Sequence[int]) -> Any:
    """Bits of that dtype with the special values in front: infinities, quiet NaN, negative zero, denormals, limits."""
    storage: Any = DTYPES[dtype].storage
    generator = np.random.default_rng(len(dtype))
    size = int(np.prod(shape, dtype=np.int64))
    if dtype == "bool":
        return generator.integers(0, 2, shape).astype(bool)
    if DTYPES[dtype].decode is not None:
        bits = generator.integers(0, np.iinfo(storage).max, size, endpoint=True).astype(storage)
        # NaNs other than the quiet one need not survive: processors rewrite them.
        bits[np.isnan(decode(bits, dtype))] = 1
        special = np.array([0x7FC0, 0x8000, 0xFF80, 1], storage) if dtype == "bfloat16" else bits[:0]
    elif storage.kind in "iu":
        limits = np.iinfo(storage)
        bits = generator.integers(limits.min, limits.max, size, dtype=storage.newbyteorder("="), endpoint=True)
        special = np.array([limits.min, limits.max], storage)
    else:
        bits = generator.standard_normal(size).astype(storage)
        tiny = np.finfo(storage).tiny / 4
        special = np.array([np.nan, np.inf, -np.inf, -0.0, tiny, np.finfo(storage).max], storage)
        if storage.kind == "c":
            bits = (bits + 1j * generator.standard_normal(size)).astype(storage)
    bits = bits.astype(storage)
    bits[: len(special)] = special[:size]
    return bits.reshape(tuple(shape))


def _plain_copy(array: Array) -> Array:
    return np.ascontiguousarray(array).astype(array.dtype.newbyteorder("="))
