"""Rows in another order, and what only looks like it."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.compare.held import Held
from aligner.record import Key, Phase
from aligner.replay.rows import in_other_order

VALUES = np.random.default_rng(0).standard_normal((2, 5, 4)).astype(np.float32)
ORDER = [3, 0, 4, 1, 2]


def held(array):
    return Held(Key(0, Phase.FORWARD, "layer", 0, "output.0"), 0, array.dtype.name, array)


@pytest.mark.parametrize("limit", [0.0, 1e-5])
def test_rows_of_any_axis_in_another_order(limit):
    assert in_other_order(held(VALUES), held(VALUES[:, ORDER]), limit)
    assert in_other_order(held(VALUES), held(VALUES[..., [1, 0, 3, 2]]), limit)


def test_rows_that_are_rounded_otherwise():
    assert in_other_order(held(VALUES), held(VALUES[:, ORDER] * np.float32(1 + 1e-6)), 1e-5)


def test_equal_rows_stand_in_any_of_their_places():
    values = np.concatenate([VALUES, np.zeros_like(VALUES)], axis=1)
    assert in_other_order(held(values), held(values[:, [*range(9, -1, -1)]]), 1e-5)


@pytest.mark.parametrize(
    "other",
    [
        VALUES,
        VALUES[::-1],
        VALUES[:, [3, 3, 4, 1, 2]],
        VALUES[:, ORDER] * np.float32(1.01),
        np.where(VALUES[:, ORDER] > 1, np.float32("nan"), VALUES[:, ORDER]),
        VALUES[:, :4],
    ],
    ids=["the same", "two of them", "one twice", "others", "not finite", "fewer"],
)
def test_what_is_no_other_order(other):
    assert not in_other_order(held(VALUES), held(np.ascontiguousarray(other)), 1e-5)


def test_numbers_in_one_row_and_whole_ones_are_no_rows():
    row = VALUES.reshape(-1)
    assert not in_other_order(held(row), held(row[::-1].copy()), 1e-5)
    whole = np.arange(12).reshape(4, 3)
    assert not in_other_order(held(whole), held(whole[::-1].copy()), 1e-5)


@pytest.mark.parametrize("limit", [1e-5, np.inf])
def test_what_overflowed_has_no_order(limit):
    assert not in_other_order(held(VALUES), held(np.full_like(VALUES, np.inf)), limit)
