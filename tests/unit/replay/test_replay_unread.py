"""Whether two held runs make the same of a part of a value."""

from __future__ import annotations

import math

import pytest

from aligner.record import Key, Phase
from aligner.replay.unread import _is_as_far

KEY = Key(0, Phase.FORWARD, "block", 0, "input.0")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [(1e-8, 2e-9, True), (0.5, 0.5001, True), (0.5, 0.6, False), (math.inf, math.inf, True), (math.inf, 0.1, False)],
)
def test_errors_are_the_same_within_a_thousandth(one, other, same):
    assert _is_as_far({KEY: one}, {KEY: other}, {}) == same
    assert _is_as_far({KEY: other}, {KEY: one}, {}) == same


def test_a_value_that_one_run_lacks_is_another_run():
    assert not _is_as_far({KEY: 0.0}, {}, {})
