"""A lone number is many sums and products: a cause is not told of fewer numbers than could speak against it."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.patterns.pair import distinct
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(23)
X, SCALE, WEIGHTS = (RANDOM.standard_normal(shape).astype(np.float32) for shape in ((3, 7, 12), (1,), (3,)))


def found(reference, port):
    sides = [value(np.asarray(side, np.float32), "output.0", "net") for side in (reference, port)]
    known = (value(SCALE, "alpha", "net"), value(WEIGHTS, "weights", "net"), value(X, layer="net.norm"))
    wrong = case(
        where="glue",
        layer="net",
        between=("net.norm", ""),
        expected=sides[0],
        actual=sides[1],
        known=known,
        rounding=1e-7,
    )
    return [suspect for suspect in glue.suspects(wrong) if suspect.error is not None]


@pytest.mark.parametrize(("reference", "port"), [(1.2345, 1.0871), (-0.7713, 0.2229), ([0.31, 0.42], [0.53, -0.64])])
def test_nothing_is_proved_of_one_number_or_two(reference, port):
    assert found(reference, port) == []


def test_another_reduction_is_told_of_one_number():
    first = found([X.mean()], [X.max()])[0]
    assert first.cause == "reduction-other"


def test_a_number_that_was_spread_over_a_channel_proves_no_ratio_or_shift():
    spread = np.broadcast_to(np.float32(0.2345), (3, 1, 12))
    assert found(np.concatenate([X, spread], 1), np.concatenate([X, 0.41 * spread], 1)) == []


def test_zeros_are_told_as_zeros_and_not_as_a_function_that_gives_them():
    first = found(np.zeros_like(X), X)[0]
    assert (first.cause, first.facts["other"]) == ("wrong-tensor", "0 everywhere")


def test_what_was_spread_counts_once_and_zero_not_at_all():
    assert distinct(np.array([0.0, 0.5, 0.5, 0.5, np.nan])) == 1
    assert distinct(np.zeros(4)) == 0
