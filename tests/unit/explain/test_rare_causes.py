"""Causes that no other test of a rule comes to: one case for each, so that what is told of them is seen."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain.suspects import suspects
from tests.unit.explain.cases import case, value

RANDOM = np.random.default_rng(3)
X, A, B = (RANDOM.standard_normal((3, 10, 16)).astype(np.float32) for _ in range(3))


def layer(kind, reference, port, expected, actual, **more):
    sides = {"expected": np.asarray(expected, np.float32), "actual": np.asarray(actual, np.float32)}
    return case(kind, reference, port, **sides, **more)


def grouped(eps):
    x = 0.01 * X.reshape(3, 10, 4, 4)
    groups = x.reshape(3, 2, -1).astype(np.float64)
    return ((groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + eps)).reshape(x.shape)


def norm():
    spec = {"num_groups": 2, "affine": False}
    return layer("GroupNorm", spec, spec, grouped(1e-5), grouped(1e-3), inputs=[0.01 * X.reshape(3, 10, 4, 4)])


def across():
    weight, x = RANDOM.standard_normal((6, 16)).astype(np.float32), X.reshape(-1, 16)
    return layer("Linear", {}, {}, x @ weight.T, x @ weight.reshape(16, 6), inputs=[x], parameters={"weight": weight})


LAYERS = {
    "norm-eps": norm,
    "weight-across": across,
}

# Code between layers.


def argument():
    given = value(X, "input.1", "net.attend")
    return case(where="glue", layer="net", expected=given, actual=None, known=(value(A, layer="net.a"),))


CODE = {
    "argument-missing": argument,
    "mask-not-passed": lambda: case(where="glue", layer="net", expected=value(X > 0, "input.mask", "net.attend")),
}

LOSSES = {
    "ctc-blank-index": ("CTCLoss", {"blank": 0}, {"blank": 4}),
    "ce-label-smoothing": ("CrossEntropyLoss", {"label_smoothing": 0.1}, {"label_smoothing": 0.0}),
    "loss-reduction": ("MSELoss", {"reduction": "sum"}, {"reduction": "mean"}),
    "loss-margin": ("CosineEmbeddingLoss", {"margin": 0.4}, {"margin": 0.0}),
    "huber-delta": ("HuberLoss", {"delta": 0.5}, {"delta": 1.0}),
    "gaussian-nll-full": ("GaussianNLLLoss", {"full": True}, {"full": False}),
    "poisson-full": ("PoissonNLLLoss", {"full": True}, {"full": False}),
    "poisson-log-input": ("PoissonNLLLoss", {"log_input": True}, {"log_input": False}),
}

CASES = {
    **LAYERS,
    **CODE,
    **{cause: (lambda told=told: case(*told)) for cause, told in LOSSES.items()},
    "huber-vs-smoothl1": lambda: case("SmoothL1Loss", {}, {}, port_kind="HuberLoss"),
}


@pytest.mark.parametrize("cause", CASES)
def test_the_rule_comes_to_its_cause(cause):
    assert cause in [suspect.cause for suspect in suspects(CASES[cause]())]
