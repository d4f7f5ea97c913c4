"""What numbers alone would say wrongly of code between layers: chance likenesses, and factors in disguise."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain import glue
from aligner.explain.catalogue import sentences
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(11)


def drawn(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


X, POSITIVE = drawn(3, 4, 10, 14), RANDOM.uniform(0.2, 0.8, (6, 9)).astype(np.float32)
ROWS, STATES = drawn(5, 6, 8), drawn(4, 9)
KEEP = np.array([1, 1, 0, 1, 0, 1], np.float32)[None, :, None]
STD = RANDOM.uniform(0.2, 0.3, (1, 4, 1, 1)).astype(np.float32)
SMALL = np.array([[0.1091, 0.3], [0.1091, 0.2]], np.float32)


def found(reference, port, known=(), operations=None):
    sides = [value(np.asarray(side, np.float32), "input.0", "net.next") for side in (reference, port)]
    wrong = case(
        where="glue",
        layer="net",
        between=("net.conv", "net.next"),
        expected=sides[0],
        actual=sides[1],
        known=known,
        rounding=1e-7,
        operations=operations,
    )
    return next(iter(glue.suspects(wrong)), None)


NOTES = drawn(12, 16)
GIVEN, HANDED = (value(X, "input.0", "net"),), (value(NOTES, "input.0", "net"),)
SPREAD = X.std(axis=(2, 3), keepdims=True)

CASES = {
    "a root that the port lacks": (np.sqrt(POSITIVE), POSITIVE, (), (("mul", "sqrt"), ("mul",)), "function-missing"),
    "a square that only the port has": (POSITIVE, POSITIVE**2, (), (("mul",), ("mul", "pow")), "activation-twice"),
    "an activation that ran": (X, X / (1 + np.abs(X)), (), (("add",), ("add", "softsign")), "activation-twice"),
    "other bounds of what is cut off": (X.clip(-1.5, 1.5), X.clip(-1, 1), (), None, "values-clipped"),
    "one number less everywhere": (
        (X + 0.0627)[:2],
        X[:2],
        (value(SMALL.reshape(2, 2, 1, 1)[:, :1], layer="net.scale"),),
        None,
        "constant-shift",
    ),
    "another factor beside a number": (NOTES / 255 - 0.5, NOTES / 256 - 0.5, HANDED, None, "scale-other"),
    "the same of a picture": (X / 255 - 0.5, X / 256 - 0.5, GIVEN, None, "normalize-0-255-vs-0-1"),
    "multiplied by what it is divided by": (
        (X / 2 - STD) / STD,
        (X / 2 - STD) * STD,
        (value(STD, "std", "net"),),
        None,
        "operation-other",
    ),
    "a deviation with another divisor": (
        X.mean(axis=(2, 3), keepdims=True) + SPREAD,
        X.mean(axis=(2, 3), keepdims=True) + SPREAD * np.sqrt(140 / 139),
        GIVEN,
        None,
        "std-ddof",
    ),
    "rows that are not set to zero": (ROWS * KEEP, ROWS, (value(ROWS, layer="net.conv"),), None, "mask-missing"),
    "the other rows set to zero": (
        STATES * [[1], [0], [1], [0]],
        STATES * [[0], [1], [0], [1]],
        (),
        None,
        "mask-inverted",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_what_happened_is_said_and_proved(name):
    reference, port, known, operations, cause = CASES[name]
    suspect = found(reference, port, known, operations)
    assert suspect is not None
    assert suspect.cause == cause
    assert suspect.error is not None
    for language in ("en", "zh"):
        assert not any("<" in text for text in sentences(cause, suspect.facts, language))


@pytest.mark.parametrize(
    ("reference", "port", "ran"),
    [
        (POSITIVE, POSITIVE / (1 + POSITIVE), (("sub", "div"), ("add", "div"))),
        (np.log(POSITIVE + 1), np.log(POSITIVE), (("add", "log"), ("add", "log"))),
    ],
    ids=["x / (1 + x) is no Softsign", "log(x + 1) is no Softplus of log(x)"],
)
def test_a_function_that_nobody_called_is_not_blamed(reference, port, ran):
    suspect = found(reference, port, (), ran)
    assert suspect is None or suspect.facts.get("function") not in ("Softsign", "Softplus")


def test_factors_are_told_as_people_write_them():
    suspect = found(NOTES / 255 - 0.5, NOTES / 256 - 0.5, HANDED)
    assert (suspect.facts["reference_value"], suspect.facts["port_value"]) == ("1/255", "1/256")
