"""Whether two held runs make the same of a part of a value."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from aligner.compare.checks import OTHER_FORM, Check
from aligner.record import Key, Phase
from aligner.replay.unread import _acquitted, _is_as_far, _same

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


def check(layer, slot, error, **more):
    key = Key(0, Phase.FORWARD, layer, 0, slot)
    return Check(key, key, "glue" if slot.startswith("input") else "layer", "", ("", layer), error, 1e-6, **more)


ARGUMENT = check("decoder", "input.1", 14.0)
ROWS, RESULT = check("decoder.out", "input.0", 0.0), check("decoder", "output.0", 1e-7)


def acquitted(checks, found, dtypes=("bool", "int32")):
    reference, port = (SimpleNamespace(dtype=dtype) for dtype in dtypes)
    plan, dump = SimpleNamespace(entries={ARGUMENT.port: reference}), SimpleNamespace(find=lambda key: port)
    return [*_acquitted(checks, {one.port for one in found}, dump, plan)]


def test_an_argument_that_says_other_things_is_right_if_only_unread_rows_spoke_against_it():
    found = acquitted([ARGUMENT, ROWS, RESULT], [ROWS])
    assert [(one.error, one.reason) for one in found] == [(0.0, OTHER_FORM), (0.0, ""), (1e-7, "")]


@pytest.mark.parametrize(
    ("checks", "found", "dtypes"),
    [
        ([ARGUMENT, ROWS, check("decoder", "output.0", 0.5)], [ROWS], ("bool", "int32")),
        ([ARGUMENT, ROWS, check("decoder.norm", "input.0", 0.5), RESULT], [ROWS], ("bool", "int32")),
        ([ARGUMENT, ROWS, RESULT], [], ("bool", "int32")),
        ([ARGUMENT, ROWS, RESULT], [ROWS], ("int64", "int32")),
    ],
)
def test_else_it_stays_blamed(checks, found, dtypes):
    assert acquitted(checks, found, dtypes)[0] is ARGUMENT


@pytest.mark.parametrize(
    ("one", "other", "same"), [(6.7e23, 240.0, False), (2.0, 2.0, True), (np.inf, np.inf, True), (np.inf, 1.0, False)]
)
def test_values_too_large_to_be_squared_are_told_apart(one, other, same):
    runs = ([np.array([1.0, each], np.float32)] for each in (one, other))
    assert _same(*runs) is same
