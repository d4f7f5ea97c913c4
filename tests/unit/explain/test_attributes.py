"""Causes told from settings: what a difference is called, what change undoes it, and what is no difference."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain.attributes import HARMLESS, suspects
from aligner.explain.catalogue import LANGUAGES, catalogue, sentences
from aligner.explain.setting_rules import KIND_PAIRS, RULES
from aligner.vocabulary import KINDS
from tests.unit.explain.cases import case

ONES, HALVES = ((1, 1), (1, 1)), ((0, 1), (0, 1))
NONE = ((0, 0), (0, 0))
CONV = {"kernel_size": (3, 3), "stride": (1, 1), "padding": NONE, "dilation": (1, 1), "groups": 1, "bias": True}
POOL = {"kernel_size": (3, 3), "stride": (2, 2), "padding": ONES, "ceil_mode": False}
NORM = {"eps": 1e-5, "momentum": 0.1, "affine": True, "track_running_stats": True}
TRIPLET = {"margin": 1.0, "p": 2.0}

# Kind, the reference's settings, those of the port that differ, and what that is called.
NAMED = [
    ("LayerNorm", {"eps": 1e-5}, {"eps": 1e-7}, "layernorm-eps-default"),
    ("LayerNorm", {"eps": 1e-12}, {"eps": 1e-5}, "setting-differs"),
    ("LayerNorm", {"normalized_shape": (4, 3)}, {"normalized_shape": (3,)}, "layernorm-multi-axis"),
    ("BatchNorm", NORM, {"eps": 1e-3}, "bn-eps-dropped"),
    ("BatchNorm", NORM, {"momentum": 0.9}, "bn-momentum-convention"),
    ("BatchNorm", {**NORM, "momentum": None}, {"momentum": 0.1}, "bn-momentum-none"),
    ("BatchNorm", NORM, {"momentum": 0.3}, "setting-differs"),
    ("BatchNorm", NORM, {"track_running_stats": False}, "bn-use-batch-statistics"),
    ("BatchNorm", NORM, {"track_running_stats": "always"}, "bn-frozen-unfrozen-by-set-train"),
    ("GroupNorm", {"num_groups": 2}, {"num_groups": 4}, "groupnorm-args-swapped"),
    ("InstanceNorm", {"affine": False}, {"affine": True}, "instancenorm-affine-default"),
    ("RMSNorm", {"eps": 1e-5}, {"eps": 1e-6}, "rmsnorm-eps-default"),
    ("LlamaRMSNorm", {"variance_epsilon": 1e-5}, {"variance_epsilon": 1e-6}, "rmsnorm-eps-default"),
    ("LocalResponseNorm", {"size": 5, "alpha": 1e-4}, {"alpha": 5e-4}, "lrn-size-alpha"),
    ("Conv2d", CONV, {"padding": ONES}, "conv2d-pad-mode-same-default"),
    ("Conv2d", {**CONV, "stride": (2, 2)}, {"padding": "same"}, "conv2d-pad-mode-same-default"),
    ("Conv2d", {**CONV, "padding": ONES}, {"padding": "same"}, "conv2d-same-vs-pad-stride2"),
    ("Conv2d", {**CONV, "padding": ONES}, {"padding": NONE}, "setting-differs"),
    ("Conv2d", {**CONV, "padding": ((2, 2), (0, 0))}, {"padding": ((0, 0), (2, 2))}, "conv2d-padding-4tuple-order"),
    ("Conv1d", {**CONV, "kernel_size": (3,), "dilation": (2,)}, {"dilation": (1,)}, "conv2d-dilation-dropped"),
    ("Conv2d", CONV, {"bias": False}, "conv2d-has-bias-default"),
    ("Conv2d", {**CONV, "bias": False}, {"bias": True}, "setting-differs"),
    ("ConvTranspose2d", CONV, {"bias": False}, "convtranspose-bias-default"),
    (
        "ConvTranspose2d",
        {**CONV, "stride": (2, 2), "padding": ONES, "output_padding": (1, 1)},
        {"padding": HALVES, "output_padding": (0, 0)},
        "convtranspose-pad-mode-same-k3s2",
    ),
    ("Linear", {"bias": True}, {"bias": False}, "parameter-missing"),
    ("LayerNorm", {"affine": True}, {"affine": False}, "parameter-missing"),
    ("MaxPool2d", POOL, {"padding": "same"}, "maxpool-pad-mode-same-stem"),
    ("AvgPool2d", POOL, {"padding": "same"}, "avgpool-pad-mode-same"),
    ("AvgPool2d", {**POOL, "stride": (3, 3)}, {"stride": (1, 1)}, "pool-stride-default"),
    ("MaxPool2d", POOL, {"stride": (1, 1)}, "setting-differs"),
    ("MaxPool2d", {**POOL, "ceil_mode": True}, {"ceil_mode": False}, "pool-ceil-mode-dropped"),
    ("AvgPool2d", {**POOL, "count_include_pad": False}, {"count_include_pad": True}, "avgpool-count-include-pad"),
    ("Upsample", {"mode": "bilinear", "align_corners": True}, {"align_corners": False}, "interpolate-align-corners"),
    (
        "Upsample",
        {"mode": "bilinear", "align_corners": False},
        {"mode": "nearest", "align_corners": None},
        "upsample-mode-default-nearest",
    ),
    ("Pad", {"mode": "reflect", "value": None}, {"mode": "symmetric"}, "pad-symmetric-vs-reflect"),
    ("Pad", {"padding": ((1, 2), (3, 4))}, {"padding": ((3, 4), (1, 2))}, "pad-axis-order"),
    ("GELU", {"approximate": "none"}, {"approximate": "tanh"}, "gelu-approximate-default"),
    ("GELU", {"approximate": "tanh"}, {"approximate": "none"}, "gelu-new-vs-erf"),
    ("LeakyReLU", {"negative_slope": 0.01}, {"negative_slope": 0.2}, "leakyrelu-slope-default"),
    ("LeakyReLU", {"negative_slope": 0.1}, {"negative_slope": 0.2}, "leakyrelu-yolo-0.1"),
    ("Softplus", {"beta": 2.0, "threshold": 20.0}, {"beta": 1.0}, "softplus-beta"),
    ("PReLU", {"num_parameters": 4}, {"num_parameters": 1}, "prelu-channel-default"),
    ("Softmax", {"dim": 1}, {"dim": -1}, "softmax-axis-default"),
    ("LogSoftmax", {"dim": 1}, {"dim": -1}, "logsoftmax-axis"),
    ("Dropout", {"p": 0.1}, {"p": 0.9}, "dropout-keep-prob-positional"),
    ("LSTM", {"batch_first": True}, {"batch_first": False}, "rnn-batch-first"),
    ("TransformerEncoderLayer", {"norm_first": True}, {"norm_first": False}, "encoder-layer-norm-first"),
    ("CrossEntropyLoss", {"ignore_index": 255}, {"ignore_index": -100}, "ce-ignore-index-lost"),
    ("SmoothL1Loss", {"reduction": "mean", "beta": 1.0}, {"reduction": "none"}, "smoothl1-reduction-default"),
    ("SmoothL1Loss", {"reduction": "mean", "beta": 0.1}, {"beta": 1.0}, "smoothl1-beta"),
    ("KLDivLoss", {"reduction": "batchmean"}, {"reduction": "mean"}, "kldiv-reduction-batchmean"),
    ("TripletMarginLoss", TRIPLET, {"p": 0.3}, "triplet-positional-args"),
    ("ELU", {"alpha": 1.0}, {"alpha": 0.5}, "setting-differs"),
    ("Attention", {"scale": 0.125}, {"scale": 0.25}, "setting-differs"),
]


def found(*args, **kwargs):
    return list(suspects(case(*args, **kwargs)))


@pytest.mark.parametrize(("kind", "reference", "other", "cause"), NAMED)
def test_a_difference_has_a_name_and_the_change_that_undoes_it(kind, reference, other, cause):
    suspect, *_ = found(kind, reference, {**reference, **other}, inputs=[np.zeros((2, 3, 4, 5))])
    assert suspect.cause == cause
    changed = {name: reference[name] for name in other}
    assert {name: suspect.change[name] for name in changed} == changed


@pytest.mark.parametrize(("kind", "reference", "other", "cause"), NAMED)
def test_its_sentences_are_whole_and_quote_both_values(kind, reference, other, cause):
    suspect, *_ = found(kind, reference, {**reference, **other}, inputs=[np.zeros((2, 3, 4, 5))])
    for language in LANGUAGES:
        texts = sentences(suspect.cause, suspect.facts, language)
        assert not any("<" in text for text in texts), texts
    assert suspect.facts["port_value"]
    assert suspect.facts["reference_value"]
    assert suspect.facts["written"].endswith(")")


def test_a_layer_before_may_pad_for_a_convolution():
    plain = {"kernel_size": (3, 5), "stride": (2, 2), "dilation": (1, 1), "padding": ((0, 0), (0, 0))}
    told = found("Conv2d", plain, {**plain, "padding": "same"}, inputs=[np.zeros((2, 3, 4, 5))])
    assert [one.change["padding"] for one in told] == [((0, 0), (0, 0)), ((1, 1), (2, 2))]
    even = {**plain, "kernel_size": (2, 2)}
    assert len(found("Conv2d", even, {**even, "padding": "same"}, inputs=[np.zeros((2, 3, 4, 5))])) == 1


def test_every_cause_of_the_tables_is_in_the_catalogue():
    assert {rule.cause for rule in RULES} | {row[0] for row in KIND_PAIRS} <= set(catalogue())


def test_every_setting_of_the_tables_is_one_of_the_vocabulary():
    for rule in RULES:
        for kind in rule.kinds:
            words = KINDS.get(kind)
            assert words is None or set(rule.settings) & set(words), (rule.cause, kind)
            assert words is not None or kind.endswith("Loss"), kind


def test_nothing_is_told_of_equal_settings():
    settings = {"eps": 1e-5, "normalized_shape": (8,), "affine": True}
    # A float32 that came through a file, and a tuple that JSON made a list.
    other = {"eps": float(np.float32(1e-5)), "normalized_shape": [8], "affine": True}
    assert found("LayerNorm", settings, other) == []


@pytest.mark.parametrize(
    ("reference", "port", "axes"), [(1, -1, 2), (-1, 3, 4), (None, 1, 2), (None, 1, 4), (None, 0, 3), (-2, 1, 3)]
)
def test_an_axis_counted_from_the_other_end_is_the_same(reference, port, axes):
    assert found("Softmax", {"dim": reference}, {"dim": port}, inputs=[np.zeros((2,) * axes)]) == []


def test_an_axis_left_out_is_given_as_torch_takes_it():
    (suspect,) = found("Softmax", {"dim": None}, {"dim": -1}, inputs=[np.zeros((2, 3, 4))])
    assert suspect.change == {"dim": 0}


def test_several_differences_are_tried_one_by_one_and_together():
    port = {**CONV, "padding": ONES, "bias": False}
    one, other, both = found("Conv2d", CONV, port, parameters={"bias": np.ones(3)}, port_parameters={})
    assert {one.cause, other.cause} == {"conv2d-pad-mode-same-default", "conv2d-has-bias-default"}
    assert both.cause == "settings-differ"
    assert both.change == {"padding": NONE, "bias": True}
    assert both.parameters == ("bias",)
    assert both.facts["written"] == "nn.Conv2d(..., pad_mode='valid', has_bias=True)"


def test_sizes_are_not_changed_along_with_the_rest():
    reference = {"in_features": 8, "out_features": 4, "bias": True}
    *_, last = found("Linear", reference, {"in_features": 8, "out_features": 5, "bias": False})
    assert last.change == {"bias": True}


def test_a_missing_bias_brings_its_values_along():
    weights = {"weight": np.ones((4, 8)), "bias": np.ones(4)}
    (suspect,) = found("Linear", {"bias": True}, {"bias": False}, parameters=weights, port_parameters={"weight": 0})
    assert suspect.change == {"bias": True}
    assert suspect.parameters == ("bias",)
    assert suspect.facts["shape"] == "(4,)"


def test_biases_of_a_recurrent_layer_come_along_all():
    roles = ("bias_ih_l0", "bias_hh_l0", "weight_ih_l0")
    weights = {role: np.ones(4) for role in roles}
    port = {"weight_ih_l0": np.ones(4)}
    (suspect,) = found("GRU", {"bias": True}, {"bias": False}, parameters=weights, port_parameters=port)
    assert set(suspect.parameters) == {"bias_ih_l0", "bias_hh_l0"}


@pytest.mark.parametrize(
    ("kind", "reference", "other", "training", "harmless"),
    [
        ("BatchNorm", NORM, {"momentum": 0.9}, False, True),
        ("Dropout", {"p": 0.1}, {"p": 0.9}, False, True),
        ("Dropout", {"p": 0.1}, {"p": 0.9}, True, False),
        ("LSTM", {"dropout": 0.1}, {"dropout": 0.0}, False, True),
        ("Embedding", {"padding_idx": 0}, {"padding_idx": None}, True, True),
        ("AvgPool2d", {**POOL, "padding": NONE, "count_include_pad": False}, {"count_include_pad": True}, False, True),
        ("AvgPool2d", {**POOL, "count_include_pad": False}, {"count_include_pad": True}, False, False),
        ("InstanceNorm", {"affine": False}, {"affine": True}, False, True),
        ("LayerNorm", {"eps": 1e-5}, {"eps": 1e-7}, False, False),
    ],
)
def test_what_cannot_matter_in_this_mode_is_believed_last(kind, reference, other, training, harmless):
    (suspect,) = found(kind, reference, {**reference, **other}, training=training)
    assert (suspect.weight == HARMLESS) == harmless


def test_a_gamma_of_the_ports_own_matters_once_it_is_not_one():
    gamma = {"weight": np.full(4, 1.5), "bias": np.zeros(4)}
    (suspect,) = found("InstanceNorm", {"affine": False}, {"affine": True}, parameters={}, port_parameters=gamma)
    assert suspect.weight > HARMLESS


def test_the_settings_of_a_parent_are_looked_at_and_its_class_is_not():
    (suspect,) = found("Attention", {"scale": 0.125}, {"scale": 1.0}, port_kind="SelfAttention", where="glue")
    assert suspect.cause == "setting-differs"
    assert suspect.change == {"scale": 1.0 / 8}


def test_words_of_two_peoples_own_classes_for_one_setting_meet():
    (suspect,) = found("LlamaRMSNorm", {"variance_epsilon": 1e-5}, {"epsilon": 1e-6}, port_kind="MyRMSNorm")
    assert suspect.cause == "rmsnorm-eps-default"
    assert suspect.change == {"epsilon": 1e-5}
    assert suspect.facts["written"] == "MyRMSNorm(..., epsilon=1e-05)"


def test_wrong_parameters_are_left_to_others():
    assert found("LayerNorm", {"eps": 1e-5}, {"eps": 1e-7}, where="parameters", slot="weight") == []


def test_a_norm_that_computed_in_float16_is_told():
    wide, short = np.ones((2, 8), np.float32), np.ones((2, 8), np.float16)
    settings = {"eps": 1e-12}
    causes = [s.cause for s in found("LayerNorm", settings, expected=wide, actual=short)]
    assert causes == ["amp-levels-norm-dtype", "layernorm-fp16-eps-underflow"]
    assert found("LayerNorm", settings, expected=wide, actual=short, rounding=5e-4) == []  # it is meant to
    assert found("Linear", {}, expected=wide, actual=short) == []


def test_a_norm_is_told_by_what_it_computes_in_whatever_it_hands_on():
    wide = np.ones((2, 8), np.float32)
    known = {"expected": wide, "actual": wide, "rounding": 5e-4}
    (suspect,) = found("BatchNorm", {}, computed=("float32", "float16"), **known)
    assert suspect.cause == "amp-levels-norm-dtype"
    assert (suspect.facts["reference_dtype"], suspect.facts["port_dtype"]) == ("float32", "float16")
    assert found("BatchNorm", {}, computed=("float16", "float16"), **known) == []
    assert found("BatchNorm", {}, computed=("float32", "float32"), **{**known, "actual": wide.astype("f2")}) == []


def test_a_norm_whose_squares_overflow_float16_is_told():
    given = np.ones((4, 8), np.float32) * np.arange(1, 9)
    given[1] *= 100
    right = np.tile(np.linspace(-1, 1, 8, dtype=np.float32), (4, 1))
    wrong = right.copy()
    wrong[1] = 0.25
    shifted = {"bias": np.full(8, 0.25, np.float32)}
    overflow = {"inputs": [given], "expected": right, "actual": wrong}
    assert [s.cause for s in found("LayerNorm", {}, port_parameters=shifted, **overflow)] == [
        "layernorm-fp16-variance-overflow"
    ]
    assert found("LayerNorm", {}, **overflow) == []  # without a bias, that row is no zero
    assert found("Linear", {}, port_parameters=shifted, **overflow) == []


@pytest.mark.parametrize(
    ("kind", "made", "cause"),
    [("CrossEntropyLoss", np.float16, "loss-in-fp16"), ("Linear", np.float64, "tensor-default-float64")],
)
def test_another_type_than_the_references_is_told(kind, made, cause):
    (suspect,) = found(kind, {}, expected=np.ones(3, np.float32), actual=np.ones(3, made))
    assert suspect.cause == cause


def test_what_only_the_references_loss_has_is_told():
    (suspect,) = found("KLDivLoss", {"log_target": True}, {})
    assert suspect.cause == "kldiv-log-target"
    assert found("KLDivLoss", {"log_target": False}, {}) == []
    weighed = {"pos_weight": np.ones(3)}
    (suspect,) = found("BCEWithLogitsLoss", {}, {}, parameters=weighed, port_parameters={})
    assert suspect.cause == "bce-logits-pos-weight"
