"""Another length that a value is divided by, and tables of the parent that have other values in the port."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.catalogue import sentences
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(13)


def drawn(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


X, TABLE = drawn(6, 9, 16), drawn(20, 16)
KNOWN = (value(TABLE, "places", "net"), value(X, layer="net.embed"))


def found(reference, port):
    sides = [value(np.asarray(side, np.float32), "input.0", "net.next") for side in (reference, port)]
    wrong = case(
        where="glue",
        layer="net",
        between=("net.embed", "net.next"),
        expected=sides[0],
        actual=sides[1],
        known=KNOWN,
        rounding=1e-7,
    )
    return [suspect for suspect in glue.suspects(wrong) if suspect.error is not None and suspect.weight >= 0.6]


def over(x, how, axis=-1):
    return x / how(np.asarray(x, np.float64), axis)


def length(x, axis):
    return np.sqrt(np.square(x).sum(axis, keepdims=True))


def square(x, axis):
    return np.square(x).sum(axis, keepdims=True)


def magnitudes(x, axis):
    return np.abs(x).sum(axis, keepdims=True)


def largest(x, axis):
    return np.abs(x).max(axis, keepdims=True)


@pytest.mark.parametrize(
    ("right", "wrong", "cause"),
    [
        (length, square, "root-missing"),
        (length, magnitudes, "norm-order"),
        (length, largest, "norm-order"),
        (magnitudes, length, "norm-order"),
    ],
)
@pytest.mark.parametrize("axis", [-1, 1])
def test_another_length_is_told(right, wrong, cause, axis):
    first = found(over(X, right, axis), over(X, wrong, axis))[0]
    assert first.cause == cause
    assert first.error < 1e-5
    for language in ("en", "zh"):
        assert "<" not in "".join(sentences(cause, first.facts, language))


def test_the_same_length_over_another_axis_is_left_to_others():
    assert found(over(X, length), over(X, length, 1))[0].cause == "normalize-axis"


def test_a_table_with_other_values_is_named():
    first = found(4.0 * X + TABLE[:9], 4.0 * X + drawn(9, 16))[0]
    assert first.cause == "buffer-differs"
    assert first.facts["other"].startswith("[net places]")
    assert "<" not in "".join(sentences(first.cause, first.facts, "zh"))


@pytest.mark.parametrize("seed", range(4))
def test_noise_proves_nothing(seed):
    random = np.random.default_rng(seed)
    for right in (over(X, length), 4.0 * X + TABLE[:9]):
        assert found(right, right * (1 + 0.01 * random.standard_normal(right.shape))) == []
        assert found(right, random.standard_normal(right.shape)) == []


FEATURES, GAMMA, BETA = drawn(3, 6, 6, 8) + 0.5, drawn(1, 1, 1, 8), drawn(1, 1, 1, 8)


def response(axis=-1, eps=1e-6, over_axes=(1, 2)):
    norm = np.sqrt(np.square(FEATURES).sum(over_axes, keepdims=True))
    return GAMMA * (FEATURES * (norm / (norm.mean(axis, keepdims=True) + eps))) + BETA + FEATURES


@pytest.mark.parametrize(
    ("port", "cause"),
    [(response(axis=0), "reduction-axis"), (response(eps=0.05), "eps-differs")],
)
def test_another_response_norm_is_told(port, cause):
    wrong = case(
        kind="ResponseNorm",
        expected=response().astype(np.float32),
        actual=np.asarray(port, np.float32),
        inputs=(FEATURES,),
        parameters={"gamma": GAMMA, "beta": BETA},
        rounding=1e-7,
    )
    first = next(suspect for suspect in glue.suspects(wrong) if suspect.error is not None and suspect.weight >= 0.7)
    assert first.cause == cause
    assert first.error < 1e-5
    assert "<" not in "".join(sentences(cause, first.facts, "en"))
