"""Mistakes in a function that is taken of one value, of a part of what is handed on, or of what is summed up."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.catalogue import sentences
from aligner.explain.patterns.functions import FUNCTIONS, leaky, softplus
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(5)


def drawn(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


X, EXTRA, OTHER, WIDE = drawn(2, 8, 5, 5), drawn(2, 1, 5, 5), drawn(2, 1, 5, 5), drawn(24)
LEFT, RIGHT = drawn(24), drawn(24)


def found(reference, port, known):
    sides = [value(np.asarray(side, np.float32), "input.0", "net.next") for side in (reference, port)]
    wrong = case(
        where="glue",
        layer="net",
        between=("net.conv", "net.next"),
        expected=sides[0],
        actual=sides[1],
        known=known,
        rounding=1e-7,
    )
    return [suspect for suspect in glue.suspects(wrong) if suspect.error is not None and suspect.weight >= 0.6]


CONV = (value(X, layer="net.conv"),)


def joined(left, right):
    return np.concatenate([left, right], 1)


def sharp(x, beta):
    return softplus(beta * x) / beta


@pytest.mark.parametrize(
    ("reference", "port", "cause", "port_value"),
    [
        (joined(leaky(X, 0.2), EXTRA), joined(leaky(X, 0.01), OTHER), "leakyrelu-slope-default", "0.01"),
        (sharp(X, 2.0).sum((2, 3)), softplus(X).sum((2, 3)), "softplus-beta", "1"),
        (sharp(X, 5.0).mean((2, 3)), sharp(X, 2.0).mean((2, 3)), "softplus-beta", "2"),
        (sharp(X, 2.0), softplus(X), "softplus-beta", "1"),
    ],
)
def test_another_number_of_a_function_is_told(reference, port, cause, port_value):
    first = found(reference, port, CONV)[0]
    assert (first.cause, first.facts["port_value"]) == (cause, port_value)
    assert first.error < 1e-5
    for language in ("en", "zh"):
        assert "<" not in "".join(sentences(cause, first.facts, language))


def test_another_function_of_a_part_is_told():
    first = found(joined(FUNCTIONS["GELU"](X), EXTRA), joined(FUNCTIONS["SiLU"](X), EXTRA), CONV)[0]
    assert first.cause == "activation-other"
    assert first.facts["port_code"] == "y[:, 0:8] = SiLU([net.conv output.0])"


def test_a_function_that_is_not_taken_before_a_sum_is_told():
    assert found(np.tanh(X).sum((2, 3)), X.sum((2, 3)), CONV)[0].cause == "activation-missing"


@pytest.mark.parametrize(
    ("wrong", "causes"),
    [
        (LEFT + 0.2 * RIGHT, {"scale-other", "addend-scaled"}),
        (LEFT + RIGHT, {"scale-missing"}),
        (LEFT - 5.0 * RIGHT, {"addend-sign"}),
        (LEFT, {"addend-missing", "residual-missing"}),
    ],
)
def test_the_mistake_beneath_a_function_is_told(wrong, causes):
    score = LEFT + 5.0 * RIGHT
    known = (
        value(np.float32(0.2).reshape(1), "temperature", "net"),
        value(LEFT, layer="net.wide"),
        value(RIGHT, layer="net.deep"),
        value(score, "input.0", "net.softplus"),
        value(sharp(score, 2.0), layer="net.softplus"),
    )
    first = found(sharp(score, 2.0), sharp(wrong, 2.0), known)[0]
    assert first.cause in causes
    assert first.facts["reference_code"].startswith("Softplus(beta=2)(")


@pytest.mark.parametrize("seed", range(4))
def test_noise_proves_nothing(seed):
    random = np.random.default_rng(seed)
    for right in (joined(leaky(X, 0.2), EXTRA), sharp(X, 2.0).sum((2, 3)), sharp(X, 2.0)):
        assert found(right, right + 0.01 * random.standard_normal(right.shape), CONV) == []
        assert found(right, random.standard_normal(right.shape), CONV) == []


MAPS = drawn(2, 6, 6, 6)


def blocks(function, x, side=2):
    return function(x.reshape(2, 6, side, 6 // side, side, 6 // side), axis=(3, 5)).reshape(2, -1)


@pytest.mark.parametrize(
    ("reference", "port", "cause", "instead"),
    [
        (FUNCTIONS["SiLU"](MAPS).mean((2, 3)), FUNCTIONS["SiLU"](MAPS).max((2, 3)), "reduction-other", "max(SiLU"),
        (np.maximum(MAPS, 0).mean((2, 3)), MAPS.max((2, 3)), "expression-differs", "max([net.conv output.0]"),
        (blocks(np.mean, MAPS), blocks(np.max, MAPS), "reduction-other", "adaptive_max_pool"),
        (MAPS.mean((2, 3), keepdims=True), MAPS.max((2, 3), keepdims=True), "reduction-other", "max("),
    ],
)
def test_another_way_to_sum_up_a_function_is_told(reference, port, cause, instead):
    first = found(reference, port, (value(MAPS, layer="net.conv"),))[0]
    assert first.cause == cause
    assert str(first.facts["port_code"]).startswith(instead)


def test_a_function_that_is_missing_before_places_are_pooled_is_told():
    first = found(blocks(np.mean, np.maximum(MAPS, 0)), blocks(np.mean, MAPS), (value(MAPS, layer="net.conv"),))[0]
    assert (first.cause, first.facts["function"]) == ("activation-missing", "ReLU")
