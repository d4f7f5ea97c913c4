"""Choices told by numbers are set against choices told by ones, in whatever type the port has."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.hot import hot
from aligner.dtypes import encode
from aligner.record import Key, Phase, Record
from tests.unit.compare.memory_dump import MemoryEntry

CHOSEN = np.random.default_rng(3).integers(0, 5, (4, 6))
ONES = np.eye(5)[CHOSEN]


def entry(array, dtype):
    return MemoryEntry(Record(Key(0, Phase.FORWARD, "layer", 0, "output.0"), 0, dtype, encode(array, dtype)))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "bool"])
@pytest.mark.parametrize("axis", [1, 2])
def test_numbers_as_ones(dtype, axis):
    wanted = entry(np.moveaxis(ONES, 2, axis), dtype)
    found = hot(entry(CHOSEN, "int64"), wanted)
    assert found.dtype == dtype
    assert found.raw().dtype == wanted.raw().dtype
    assert np.array_equal(found.raw(), wanted.raw())


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_ones_as_numbers(dtype):
    wanted = entry(CHOSEN, dtype)
    assert np.array_equal(hot(entry(ONES, "float32"), wanted).raw(), wanted.raw())


def test_what_is_no_choice_is_left():
    numbers = entry(CHOSEN, "int64")
    assert hot(numbers, entry(ONES + ONES[::-1], "float32")) is None  # several
    assert hot(numbers, entry(0.5 * ONES, "float32")) is None
    assert hot(entry(CHOSEN + 1, "int64"), entry(ONES, "float32")) is None  # more than there are
    assert hot(numbers, entry(ONES.sum(-1), "float32")) is None
    assert hot(entry(CHOSEN[:1, :3], "int64"), entry(ONES[:1, :3], "float32")) is None  # too few to tell
