"""Units in the last place."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.ulp import max_ulp
from aligner.dtypes import DTYPES
from tests.properties.test_deviation import entry


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_one_step_and_many(dtype):
    kind = np.dtype(dtype).type
    one = np.array([1, -1, 0, 5e-8, -0.0], dtype)
    assert max_ulp(entry(one), entry(np.nextafter(one, kind(10)))) == 1
    assert max_ulp(entry(one), entry(one)) == 0
    assert max_ulp(entry(np.array([0.0], dtype)), entry(np.array([-0.0], dtype))) == 0
    tiny = np.nextafter(kind(0), kind(1))
    assert max_ulp(entry(np.array([tiny])), entry(np.array([-tiny]))) == 2


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_stored_as_integers(dtype):
    storage = DTYPES[dtype].storage
    one = np.array([3, 64], storage)
    assert max_ulp(entry(one, dtype), entry(one + storage.type(2), dtype)) == 2
    top = storage.type(1 << (storage.itemsize * 8 - 1))
    assert max_ulp(entry(np.array([3], storage), dtype), entry(np.array([top + storage.type(2)], storage), dtype)) == 5


def test_the_whole_range_of_float64():
    largest = np.finfo(np.float64).max
    wanted = 2 * int(np.array(largest).view(np.int64))
    assert max_ulp(entry(np.array([largest])), entry(np.array([-largest]))) == wanted


def test_nan_is_left_out_and_other_types_have_none():
    assert max_ulp(entry(np.array([np.nan, 1.0])), entry(np.array([2.0, 1.0]))) == 0
    assert max_ulp(entry(np.zeros(2, np.float32)), entry(np.zeros(2))) is None
    assert max_ulp(entry(np.zeros(2, np.int32)), entry(np.zeros(2, np.int32))) is None
    assert max_ulp(entry(np.zeros(2, np.complex64)), entry(np.zeros(2, np.complex64))) is None
    assert max_ulp(entry(np.zeros(2)), entry(np.zeros(3))) is None
