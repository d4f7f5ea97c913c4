"""Causes told from parameters: each mistake of loading is done to drawn weights and must be named and undone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from aligner.explain.catalogue import LANGUAGES, sentences
from aligner.explain.parameters import suspects
from tests.unit.explain.cases import case, value

RNG = np.random.default_rng(5)
EXACT = 1e-6


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


SQUARE, WIDE, KERNEL, ROWS = drawn(12, 12), drawn(6, 10), drawn(5, 4, 3, 3), drawn(24, 7)
VECTOR = drawn(16)
POSITIVE = np.abs(drawn(16)) + 0.1


def of_role(expected, actual, kind="Linear", role="weight", **others):
    return list(suspects(case(kind, where="parameters", slot=role, expected=expected, actual=actual, **others)))


def blocks(array, order):
    return np.concatenate([np.split(array, len(order))[i] for i in order])


def interleaved(array, parts, heads):
    return array.reshape(parts, heads, -1, *array.shape[1:]).swapaxes(0, 1).reshape(array.shape)


# Kind, role, right values, wrong ones, cause.
MISTAKES = [
    ("Linear", "weight", SQUARE, SQUARE.T.copy(), "dense-weight-transposed-square"),
    ("Linear", "weight", WIDE, WIDE.T.copy(), "parameter-transposed"),
    ("Projection", "weight", SQUARE, SQUARE.T.copy(), "parameter-transposed"),
    ("Linear", "weight", WIDE, WIDE.T.reshape(WIDE.shape).copy(), "parameter-reshaped"),
    ("Conv2d", "weight", KERNEL, KERNEL.swapaxes(2, 3).copy(), "conv-weight-hw-transposed"),
    ("Conv2d", "weight", KERNEL, KERNEL[..., ::-1, ::-1].copy(), "conv-weight-hw-transposed"),
    ("Conv1d", "weight", KERNEL[..., 0], KERNEL[..., ::-1, 0].copy(), "conv-weight-hw-transposed"),
    ("Conv2d", "weight", KERNEL, KERNEL.swapaxes(0, 1).copy(), "parameter-transposed"),
    ("Linear", "weight", WIDE, WIDE[::-1].copy(), "parameter-flipped"),
    ("LSTM", "weight_ih_l0", ROWS, blocks(ROWS, (0, 2, 1, 3)), "lstm-gate-order"),
    ("LSTM", "bias_ih_l0", VECTOR, blocks(VECTOR, (0, 1, 3, 2)), "lstm-gate-order"),
    ("GRU", "weight_hh_l0", ROWS, blocks(ROWS, (1, 0, 2)), "lstm-gate-order"),
    ("MultiheadAttention", "in_proj_weight", ROWS, blocks(ROWS, (1, 2, 0)), "parameter-blocks-swapped"),
    ("Linear", "weight", ROWS, blocks(ROWS, (1, 0)), "parameter-blocks-swapped"),
    ("Linear", "weight", ROWS, interleaved(ROWS, 3, 4), "qkv-interleaved-layout"),
    ("Linear", "weight", ROWS, interleaved(ROWS, 4, 3), "qkv-interleaved-layout"),
    ("Embedding", "weight", ROWS, ROWS[RNG.permutation(24)], "parameter-permuted"),
    ("LayerNorm", "weight", VECTOR, 2 * VECTOR, "parameter-scaled"),
    ("Linear", "bias", VECTOR, -VECTOR, "parameter-scaled"),
    ("RMSNorm", "weight", VECTOR, VECTOR + 1, "parameter-shifted"),
    ("BatchNorm", "running_var", POSITIVE, np.sqrt(POSITIVE), "parameter-transformed"),
    ("BatchNorm", "running_var", POSITIVE, 1 / POSITIVE, "parameter-transformed"),
    ("Linear", "weight", SQUARE, SQUARE.astype(np.float16).astype(np.float32), "checkpoint-fp16"),
    ("BatchNorm", "running_mean", VECTOR, np.zeros_like(VECTOR), "bn-buffers-not-loaded"),
    ("BatchNorm", "running_var", POSITIVE, np.ones_like(POSITIVE), "bn-buffers-not-loaded"),
    ("BatchNorm", "weight", VECTOR, np.ones_like(VECTOR), "bn-gamma-beta-not-mapped"),
    ("LayerNorm", "bias", VECTOR, np.zeros_like(VECTOR), "ln-gamma-beta-not-mapped"),
    ("Linear", "bias", VECTOR, np.zeros_like(VECTOR), "parameter-not-loaded"),
    ("LSTM", "bias_hh_l0", VECTOR, np.zeros_like(VECTOR), "lstm-second-bias-lost"),
    ("LSTM", "weight_hh_l0_reverse", ROWS, np.zeros_like(ROWS), "lstm-reverse-not-loaded"),
]


@pytest.mark.parametrize(("kind", "role", "right", "wrong", "cause"), MISTAKES)
def test_a_mistake_is_named_undone_and_told_in_whole_sentences(kind, role, right, wrong, cause):
    first, *_ = of_role(right, wrong, kind, role)
    assert first.cause == cause
    assert first.error <= EXACT
    assert first.parameters == (role,)
    for language in LANGUAGES:
        assert not any("<" in text for text in sentences(cause, first.facts, language)), first.facts


def test_the_order_of_gates_is_told_in_letters():
    (suspect,) = of_role(ROWS, blocks(ROWS, (0, 2, 1, 3)), "LSTM", "weight_ih_l0")
    assert suspect.facts["order"] == "i, g, f, o"
    assert suspect.facts["wanted"] == "i, f, g, o"


def test_values_of_another_parameter_are_found():
    weights = {"weight": VECTOR, "bias": drawn(16)}
    first, *_ = of_role(VECTOR, weights["bias"], "LayerNorm", parameters=weights)
    assert first.cause == "parameter-swapped"
    assert first.facts["other"] == "bias"
    assert first.facts["port_parameter"] == "block.layer.gamma"


def test_the_parameter_of_another_layer_is_found():
    others = [value(array, "weight", f"block.{name}") for name, array in (("q", drawn(12, 12)), ("k", SQUARE.T.copy()))]
    first, *_ = of_role(SQUARE, others[0].load(), known=others)
    assert first.cause == "parameter-swapped"
    assert first.facts["other"] == "block.q.weight"
    first, *_ = of_role(SQUARE, SQUARE + 1, known=others)
    assert first.cause != "parameter-swapped"


def test_zeros_are_not_taken_for_another_parameter():
    weights = {"weight": VECTOR, "bias": np.zeros(16, np.float32)}
    first, *_ = of_role(VECTOR, np.zeros(16, np.float32), "LayerNorm", parameters=weights)
    assert first.cause == "ln-gamma-beta-not-mapped"


@pytest.mark.parametrize("role", ["bias_ih_l0", "bias_hh_l0"])
def test_both_biases_of_a_gru_in_one_are_told_at_either(role):
    right = {"bias_ih_l0": drawn(12), "bias_hh_l0": drawn(12)}
    merged = {"bias_ih_l0": sum(right.values()), "bias_hh_l0": np.zeros(12, np.float32)}
    first, *_ = of_role(right[role], merged[role], "GRU", role, parameters=right, port_parameters=merged)
    assert first.cause == "gru-merged-bias"
    assert first.error <= EXACT


def test_values_that_were_never_loaded_have_nothing_in_common():
    first, *_ = of_role(drawn(64, 64), 0.01 * drawn(64, 64))
    assert first.cause == "load-param-silent-miss"
    assert first.error is None
    first, *_ = of_role(drawn(64, 64), 0.01 * drawn(64, 64), "LSTM", "weight_ih_l0_reverse")
    assert first.cause == "lstm-reverse-not-loaded"


def test_what_nothing_explains_is_told_in_figures():
    wrong = SQUARE.copy()
    wrong[2, 3] += 1
    (suspect,) = of_role(SQUARE, wrong)
    assert suspect.cause == "parameter-differs"
    assert (suspect.facts["differing"], suspect.facts["total"], suspect.facts["first"]) == (1, 144, "(2, 3)")
    assert suspect.error is None


def test_another_shape_is_told_with_both():
    sizes = {"in_features": 10, "out_features": 6, "bias": True}
    (suspect,) = of_role(WIDE, drawn(6, 9), reference=sizes)
    assert suspect.cause == "parameter-other-shape"
    assert suspect.facts["shape"] == "(6, 10)"
    assert suspect.facts["port_shape"] == "(6, 9)"
    assert suspect.facts["written"] == "nn.Dense(..., in_channels=10, out_channels=6)"


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("Conv2d", "conv2d-has-bias-default"),
        ("ConvTranspose2d", "convtranspose-bias-default"),
        ("Linear", "parameter-missing"),
    ],
)
def test_a_missing_bias_is_certain_and_can_be_tried(kind, cause):
    port = {"bias": False}
    (suspect,) = of_role(VECTOR, None, kind, "bias", reference={"bias": True}, port=port)
    assert suspect.cause == cause
    assert suspect.change == {"bias": True}
    assert suspect.parameters == ("bias",)
    assert suspect.error == 0.0
    assert "has_bias=True" in suspect.facts["written"]
    assert not any("<" in text for text in sentences(cause, suspect.facts, "en"))


def test_a_table_that_a_layer_makes_itself_is_no_cause():
    assert not [*suspects(case("Rotary", parameters={"inv_freq": VECTOR}, port_parameters={}))]


def test_all_biases_that_one_setting_leaves_out_come_together():
    right = {role: drawn(12) for role in ("weight_ih_l0", "bias_ih_l0", "bias_hh_l0")}
    port = {"weight_ih_l0": right["weight_ih_l0"]}
    weights = {"parameters": right, "port_parameters": port}
    (suspect,) = of_role(
        right["bias_ih_l0"], None, "LSTM", "bias_ih_l0", reference={"bias": True}, port={"bias": False}, **weights
    )
    assert suspect.cause == "parameter-missing"
    assert suspect.parameters == ("bias_ih_l0", "bias_hh_l0")


def test_running_statistics_that_the_port_does_not_use_are_a_matter_of_its_settings():
    right = {"running_mean": VECTOR, "running_var": POSITIVE}
    ours, theirs = {"track_running_stats": True}, {"track_running_stats": False}
    (suspect,) = of_role(
        VECTOR, None, "BatchNorm", "running_mean", reference=ours, port=theirs, parameters=right, port_parameters={}
    )
    assert suspect.cause == "bn-use-batch-statistics"
    assert suspect.change == ours
    assert suspect.parameters == ("running_mean", "running_var")
    assert not any("<" in text for text in sentences(suspect.cause, suspect.facts, "en"))


@pytest.mark.parametrize(
    ("expected", "actual"), [(VECTOR, VECTOR[:1]), (VECTOR, None), (None, VECTOR[:1]), (VECTOR, np.zeros(1))]
)
def test_one_slope_for_many_is_told_however_it_was_paired(expected, actual):
    settings = {"reference": {"num_parameters": 16}, "port": {"num_parameters": 1}}
    first, *_ = of_role(expected, actual, "PReLU", **settings)
    assert first.cause == "prelu-channel-default"
    assert first.facts["written"] == "nn.PReLU(channel=16)"
    assert not any("<" in text for text in sentences(first.cause, first.facts, "en"))


def test_a_weight_of_its_own_where_the_reference_shares_is_told():
    (suspect,) = of_role(None, WIDE)
    assert suspect.cause == "parameter-untied"
    shared = value(drawn(6, 10), slot="weight", layer="embedding")
    (suspect,) = of_role(None, WIDE, known=[shared])
    assert suspect.cause == "tied-weights-lost"
    assert suspect.facts["other"] == "embedding.weight"


def test_a_bias_that_only_the_port_has_is_one_too_many():
    (suspect,) = of_role(None, drawn(6))
    assert suspect.cause == "parameter-extra"
    (suspect,) = of_role(None, VECTOR, role="bias", reference={"bias": False}, port={"bias": True})
    assert suspect.change == {"bias": False}


@pytest.mark.parametrize(
    ("dtype", "array", "cause"),
    [
        ("float16", SQUARE.astype(np.float16), "fp16-weights-no-master"),
        ("bfloat16", (SQUARE.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32), "parameter-other-dtype"),
        ("float64", SQUARE.astype(np.float64), "dtype-float64-numpy-weights"),
    ],
)
def test_another_type_of_a_parameter_is_told(dtype, array, cause):
    right = array.astype(np.float32) if dtype == "bfloat16" else SQUARE
    right = right + np.float32(1e-4) * np.abs(right) if dtype == "bfloat16" else right
    first, *_ = of_role(right, value(array, dtype=dtype))
    assert first.cause == cause


def test_rounded_weights_of_a_layer_meant_to_be_short_are_no_cause():
    weights, short = {"weight": SQUARE}, {"weight": value(SQUARE.astype(np.float16))}
    assert list(suspects(case("Linear", parameters=weights, port_parameters=short, rounding=5e-4))) == []
    (suspect,) = suspects(case("Linear", parameters=weights, port_parameters=short))
    assert suspect.cause == "fp16-weights-no-master"


def test_all_wrong_parameters_of_a_layer_are_tried_together_too():
    right = {"weight": SQUARE, "bias": VECTOR[:12]}
    wrong = {"weight": SQUARE.T.copy(), "bias": 2 * VECTOR[:12]}
    found = list(suspects(case("Linear", parameters=right, port_parameters=wrong)))
    assert [s.cause for s in found] == ["dense-weight-transposed-square", "parameter-scaled", "parameters-differ"]
    assert found[-1].parameters == ("weight", "bias")


def test_right_parameters_and_counters_are_no_cause():
    right = {"weight": SQUARE, "num_batches_tracked": np.array(7)}
    wrong = {"weight": SQUARE, "num_batches_tracked": np.array(0)}
    assert list(suspects(case("BatchNorm", parameters=right, port_parameters=wrong))) == []


def test_a_bias_that_the_settings_miss_is_left_to_them():
    right = {"weight": SQUARE, "bias": VECTOR}
    layer = case("Linear", {"bias": True}, {"bias": False}, parameters=right, port_parameters={"weight": SQUARE})
    assert list(suspects(layer)) == []


def test_code_between_layers_is_left_to_others():
    assert list(suspects(case("Linear", where="glue", parameters={"weight": SQUARE}, port_parameters={}))) == []


shapes = arrays.array_shapes(min_dims=1, max_dims=4, min_side=2, max_side=9)


@settings(max_examples=60, deadline=None)
@given(shapes, st.integers(0, 2**32 - 1), st.sampled_from(["Linear", "Conv2d", "LSTM", "GRU", "BatchNorm"]))
def test_unrelated_values_prove_nothing(shape, seed, kind):
    """Enough values that no rule meets them by chance: nothing is proved, and something is told."""
    rng = np.random.default_rng(seed)
    shape = (*shape, 12)
    right, wrong = (rng.standard_normal(shape).astype(np.float32) for _ in range(2))
    found = of_role(right, wrong, kind)
    assert found
    assert all(suspect.error is None for suspect in found)


@settings(max_examples=40, deadline=None)
@given(shapes, st.integers(0, 2**32 - 1), st.floats(1e-5, 1e-2))
def test_noise_proves_nothing(shape, seed, size):
    rng = np.random.default_rng(seed)
    shape = (*shape, 12)
    right = rng.standard_normal(shape).astype(np.float32)
    wrong = right + np.float32(size) * rng.standard_normal(shape).astype(np.float32)
    assert all(suspect.error is None for suspect in of_role(right, wrong))
