"""Single elements: differences, the worst places, selections."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from aligner.compare.tolerance import FLOOR
from aligner.errors import UsageError
from aligner.report.elements import difference, select, selection, worst

FLOATS = hnp.arrays(np.float32, (4, 5), elements=st.floats(-10, 10, width=32))


@settings(deadline=None)
@given(FLOATS, FLOATS)
def test_worst_are_the_largest_errors_in_order(reference, port):
    found = worst(reference, port, 5)
    scale = max(min(1.0, float(np.sqrt(np.mean(np.square(reference, dtype=np.float64))))), FLOOR)
    errors = np.abs(port - reference) / (scale + np.abs(reference))
    largest = np.sort(errors.ravel())[::-1]
    assert [errors[one.index] for one in found] == pytest.approx(list(largest[largest > 0][:5]), rel=1e-5)
    for one in found:
        assert (one.reference, one.port) == (reference[one.index], port[one.index])


def test_a_mask_does_not_hide_what_matters():
    reference, port = np.array([-1e9, 0.1], np.float32), np.array([-1e9 + 64, 0.3], np.float32)
    assert worst(reference, port)[0].index == (1,)


def test_one_sided_nan_comes_first_and_common_nan_not_at_all():
    reference = np.array([np.nan, 1.0, 2.0, np.inf])
    port = np.array([np.nan, np.nan, 5.0, np.inf])
    assert [one.index for one in worst(reference, port)] == [(1,), (2,)]


def test_equal_arrays_have_no_worst():
    assert worst(np.zeros(3), np.zeros(3)) == []


def test_scalars_integers_booleans_and_complex():
    assert worst(np.array(1.0), np.array(2.0))[0].index == ()
    assert worst(np.array([1, 2]), np.array([1, 5]))[0].difference == 3
    assert worst(np.array([True]), np.array([False]))[0].reference is True
    assert worst(np.array([1j]), np.array([2j]))[0].difference == 1j


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match="shapes differ"):
        worst(np.zeros(3), np.zeros(4))


@pytest.mark.parametrize(
    ("one", "other", "dtype"),
    [("f4", "f4", "f4"), ("f2", "f2", "f4"), ("f8", "f4", "f8"), ("i4", "i4", "f8"), ("c8", "c8", "c8")],
)
def test_difference_type(one, other, dtype):
    assert difference(np.zeros(2, one), np.zeros(2, other)).dtype == dtype


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("0,:3", (0, slice(None, 3))),
        ("...,-1", (..., -1)),
        ("[1:9:2]", (slice(1, 9, 2),)),
        (" : ", (slice(None, None),)),
    ],
)
def test_selection(text, wanted):
    assert selection(text) == wanted


@pytest.mark.parametrize("text", ["", "a", "0;1", "__import__('os')", "...,...", "1:2:3:4"])
def test_other_selections_are_refused(text):
    with pytest.raises(UsageError, match="selects nothing"):
        selection(text)


def test_selecting_outside_says_the_shape():
    with pytest.raises(UsageError, match=r"outside an array of shape \(3,\)"):
        select(np.zeros(3), (5,), "5")
