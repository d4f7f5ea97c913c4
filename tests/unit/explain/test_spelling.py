"""The words a port is written in: each call is what MindSpore's documentation asks for."""

from __future__ import annotations

import pytest

from aligner.explain.spelling import constructor, literal, parameter, written
from aligner.record import LayerSpec

PADDED = {"padding": ((1, 1), (1, 1)), "ceil_mode": True}


@pytest.mark.parametrize(
    ("kind", "settings", "names", "axes", "call"),
    [
        ("LayerNorm", {"eps": 1e-5}, ["eps"], None, "nn.LayerNorm(..., epsilon=1e-05)"),
        ("BatchNorm", {"eps": 1e-3}, ["eps"], 4, "nn.BatchNorm2d(..., eps=0.001)"),
        ("BatchNorm", {"momentum": 0.1}, ["momentum"], 2, "nn.BatchNorm1d(..., momentum=0.9)"),
        ("BatchNorm", {"momentum": 0.01}, ["momentum"], 5, "nn.BatchNorm3d(..., momentum=0.99)"),
        (
            "BatchNorm",
            {"track_running_stats": True},
            ["track_running_stats"],
            4,
            "nn.BatchNorm2d(..., use_batch_statistics=None)",
        ),
        (
            "BatchNorm",
            {"track_running_stats": False},
            ["track_running_stats"],
            4,
            "nn.BatchNorm2d(..., use_batch_statistics=True)",
        ),
        (
            "LayerNorm",
            {"normalized_shape": (3, 4)},
            ["normalized_shape"],
            4,
            "nn.LayerNorm(..., normalized_shape=(3, 4), begin_norm_axis=2, begin_params_axis=2)",
        ),
        ("LeakyReLU", {"negative_slope": 0.01}, ["negative_slope"], None, "nn.LeakyReLU(alpha=0.01)"),
        ("GELU", {"approximate": "none"}, ["approximate"], None, "nn.GELU(approximate=False)"),
        ("GELU", {"approximate": "tanh"}, ["approximate"], None, "nn.GELU(approximate=True)"),
        ("Softmax", {"dim": 1}, ["dim"], None, "nn.Softmax(axis=1)"),
        ("Linear", {"bias": True}, ["bias"], None, "nn.Dense(..., has_bias=True)"),
        ("Conv2d", {"padding": ((0, 0), (0, 0))}, ["padding"], None, "nn.Conv2d(..., pad_mode='valid')"),
        ("Conv2d", {"padding": ((1, 1), (1, 1))}, ["padding"], None, "nn.Conv2d(..., pad_mode='pad', padding=1)"),
        ("Conv2d", {"groups": 4}, ["groups"], None, "nn.Conv2d(..., group=4)"),
        (
            "Conv2d",
            {"padding": ((1, 1), (2, 2))},
            ["padding"],
            None,
            "nn.Conv2d(..., pad_mode='pad', padding=(1, 1, 2, 2))",
        ),
        (
            "ConvTranspose2d",
            {"padding": ((1, 1), (1, 1)), "output_padding": (1, 1)},
            ["padding", "output_padding"],
            None,
            "nn.Conv2dTranspose(..., pad_mode='pad', padding=(1, 0, 1, 0))",
        ),
        (
            "MaxPool2d",
            {"padding": ((1, 1), (0, 0))},
            ["padding"],
            None,
            "nn.MaxPool2d(..., pad_mode='pad', padding=(1, 0))",
        ),
        ("MaxPool2d", PADDED, ["ceil_mode"], None, "nn.MaxPool2d(..., pad_mode='pad', padding=1, ceil_mode=True)"),
        (
            "AvgPool2d",
            {**PADDED, "count_include_pad": True},
            ["count_include_pad"],
            None,
            "nn.AvgPool2d(..., pad_mode='pad', padding=1, count_include_pad=True)",
        ),
        (
            "LocalResponseNorm",
            {"size": 5, "alpha": 1e-4, "beta": 0.75, "k": 1.0},
            ["alpha"],
            None,
            "nn.LRN(..., depth_radius=2, alpha=2e-05, beta=0.75, bias=1.0)",
        ),
        (
            "Pad",
            {"padding": ((1, 2), (3, 4)), "mode": "reflect"},
            ["padding", "mode"],
            4,
            "nn.Pad(..., paddings=((0, 0), (0, 0), (3, 4), (1, 2)), mode='REFLECT')",
        ),
        ("PReLU", {"num_parameters": 8}, ["num_parameters"], None, "nn.PReLU(channel=8)"),
        ("ReLU", {}, [], None, "nn.ReLU()"),
        (
            "TransformerEncoderLayer",
            {"eps": 1e-6},
            ["eps"],
            None,
            "nn.TransformerEncoderLayer(..., layer_norm_eps=1e-06)",
        ),
        (
            "Attention",
            {"scale": 0.125, "bias": True},
            ["scale", "bias"],
            None,
            "Attention(..., scale=0.125, bias=True)",
        ),
    ],
)
def test_a_call_is_in_mindspores_words(kind, settings, names, axes, call):
    assert written(LayerSpec(kind, settings), names, axes) == call


def test_classes_that_have_another_name_are_known():
    assert [constructor(kind) for kind in ("Linear", "Hardswish", "ConvTranspose1d", "ReLU", "Block")] == [
        "nn.Dense",
        "nn.HSwish",
        "nn.Conv1dTranspose",
        "nn.ReLU",
        "Block",
    ]


def test_parameters_have_their_own_words():
    assert parameter("BatchNorm", "running_var") == "moving_variance"
    assert parameter("LayerNorm", "weight") == "gamma"
    assert parameter("Conv2d", "weight") == "weight"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e-05, "1e-05"),
        (0.1, "0.1"),
        (1.0, "1.0"),
        (1.1920928955078125e-07, "1.1920929e-07"),
        ((1,), "(1,)"),
        (((0, 1), (2, 3)), "((0, 1), (2, 3))"),
        (None, "None"),
        ("same", "'same'"),
    ],
)
def test_values_are_written_as_python_reads_them(value, text):
    assert literal(value) == text
