"""Numbers never change sides of the tolerance by being shortened."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aligner.report.figures import exact, figure, index, size

NUMBERS = st.floats(1e-12, 1e12)


@pytest.mark.parametrize(
    ("value", "shown"),
    [(8.3e-3, "8.3e-03"), (0.0, "0"), (None, "-"), (math.inf, "inf"), (math.nan, "nan"), (12345.0, "1.2e+04")],
)
def test_figure(value, shown):
    assert figure(value) == shown


def test_figure_shows_that_it_is_over():
    assert figure(1.04e-3, 1e-3) == "1.04e-03"
    assert figure(1.00004e-3, 1e-3) == "1.00004e-03"
    assert figure(1e-3, 1e-3) == "1.0e-03"


@settings(deadline=None)
@given(NUMBERS, NUMBERS)
def test_figure_keeps_its_side(value, tolerance):
    assert (float(figure(value, tolerance)) > tolerance) == (value > tolerance)


@settings(deadline=None)
@given(st.floats(allow_nan=False))
def test_exact_comes_back(value):
    assert float(exact(value)) == value


def test_exact_is_short():
    assert exact(1e-3) == "1e-03"
    assert exact(0.0025) == "2.5e-03"


def test_index_and_size():
    assert index((0, 3)) == "[0, 3]"
    assert index(()) == "[]"
    assert [size(n) for n in (12, 1500, 3.2e6, 7e12)] == ["12 B", "1.5 kB", "3.2 MB", "7.0 TB"]
