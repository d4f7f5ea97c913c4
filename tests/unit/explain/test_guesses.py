"""What numbers hint at where nothing was heard: said as guesses, and not at all where the line is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from aligner.explain.line import OTHER, Fork, Spot
from aligner.explain.suspects import suspects
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(5)
A, B, C = (RANDOM.standard_normal((3, 10, 16)).astype(np.float32) for _ in range(3))


def glue(expected, actual, *known):
    return case("Net", {}, where="glue", layer="net", expected=expected, actual=actual, known=known)


GIVEN, MADE, OTHERS = value(A, "input.0", "net"), value(B, layer="net.b"), value(C, layer="net.c")

CASES = {
    "residual-missing": (glue(A + B, B, GIVEN, MADE), "[net input.0]"),
    "addend-missing": (glue(A + B, A, MADE), "[net.b output.0]"),
    "addend-extra": (glue(A, A + B, MADE), "[net.b output.0]"),
    "addend-sign": (glue(A + B, A - B, MADE), "[net.b output.0]"),
    "wrong-tensor": (glue(B, C, GIVEN, MADE, OTHERS), "[net.b output.0]"),
    "constant-ratio": (glue(A, 2 * A, MADE), None),
    "axes-permuted": (glue(A, np.ascontiguousarray(A.transpose(0, 2, 1)), MADE), None),
}


@pytest.mark.parametrize("cause", CASES)
def test_a_relation_of_the_two_values(cause):
    here, other = CASES[cause]
    found = suspects(here)
    assert found[0].cause == cause
    assert other is None or found[0].facts["other"] == other


@pytest.mark.parametrize("actual", [np.sin(9 * A), A * (1 + 1e-9)])
def test_values_that_nothing_relates(actual):
    assert not [s.cause for s in suspects(glue(A, actual.astype(np.float32), GIVEN)) if s.error is not None]


def test_nothing_is_guessed_where_the_line_is_known():
    spot = Spot("net.py", 3, "x = y", "add")
    here = replace(glue(A + B, B, GIVEN, MADE), fork=lambda: Fork(OTHER, spot, spot))
    assert [s.cause for s in suspects(here)] == ["line-differs"]
