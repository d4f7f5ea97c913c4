"""Which precision a port computes in is read off its values."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.dtypes import decode, encode
from aligner.replay.precision import grid

RANDOM = np.random.default_rng(0).standard_normal(5000).astype(np.float32)


@pytest.mark.parametrize("word", ["float16", "bfloat16"])
def test_rounded_values_lie_on_their_types_grid(word):
    assert grid(decode(encode(RANDOM, word), word).astype(np.float32)) == word


@pytest.mark.parametrize(
    "values",
    [RANDOM, np.zeros(1000), np.arange(1000.0), np.float16(RANDOM[:20]), np.full(1000, np.nan), RANDOM[:0]],
    ids=["float32", "zeros", "whole numbers", "too few", "nan", "nothing"],
)
def test_what_tells_nothing_lies_on_no_grid(values):
    assert grid(np.asarray(values, np.float32)) is None


def test_a_single_value_off_the_grid_tells():
    values = RANDOM.astype(np.float16).astype(np.float32)
    values[17] = np.float32(1 / 3)
    assert grid(values) is None
