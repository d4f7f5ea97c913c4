"""The order of causes, and what becomes of one that two rules found."""

from __future__ import annotations

import numpy as np

from aligner.explain.catalogue import sentences
from aligner.explain.suspects import suspects
from tests.unit.explain.cases import case

RNG = np.random.default_rng(2)
ROWS = RNG.standard_normal((64, 8))


def layer_norm(x, eps):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps)


def layer_norm_case(reference, port):
    given = (ROWS * 1e-2).astype(np.float32)
    right, wrong = (layer_norm(given.astype(np.float64), eps).astype(np.float32) for eps in (1e-5, 1e-7))
    return case("LayerNorm", reference, port, inputs=[given], expected=right, actual=wrong)


def test_what_settings_say_and_numbers_prove_is_one_suspect():
    settings = {"normalized_shape": (8,), "eps": 1e-5, "affine": False}
    first, *rest = suspects(layer_norm_case(settings, {**settings, "eps": 1e-7}))
    assert first.cause == "layernorm-eps-default"
    assert first.facts["port_value"] == "1e-07"
    assert first.change == {"eps": 1e-5}
    assert first.cause not in [suspect.cause for suspect in rest]
    assert not any("<" in text for text in sentences(first.cause, first.facts, "en"))


def test_what_numbers_have_proved_comes_before_what_is_only_believed():
    weights = {"weight": RNG.standard_normal((8, 8)), "bias": RNG.standard_normal(8)}
    port = {"weight": weights["weight"].T, "bias": weights["bias"]}
    found = suspects(
        case("Linear", {"own": 0.5}, {"own": 1.0}, parameters=weights, port_parameters=port, port_kind="Other")
    )
    assert found[0].cause == "dense-weight-transposed-square"
    assert found[0].error == 0.0


def test_another_function_is_tried_with_the_reference_kind_of_layer():
    x = RNG.standard_normal((16, 32)).astype(np.float32)
    found = suspects(case("ReLU", port_kind="Tanh", inputs=[x], expected=np.maximum(x, 0), actual=np.tanh(x)))
    built = {suspect.cause: suspect.built for suspect in found}
    assert built["kind-differs"] == built["activation-other"] == "nn.ReLU()"


def test_no_cause_is_told_of_a_case_without_any():
    x = ROWS.astype(np.float32)
    assert suspects(case("Linear", inputs=[x], expected=x, actual=x)) == []
