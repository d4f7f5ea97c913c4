"""Settings of torch layers are read in the vocabulary's forms, exactly."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from aligner_hooks.torch_ import TorchAdapter  # noqa: E402 - as above
from torch import nn  # noqa: E402 - only after it is known to be there

from aligner.record import LayerSpec  # noqa: E402 - as above

if not hasattr(nn, "RMSNorm"):
    pytest.skip("the table holds layers of torch 2.4 and later", allow_module_level=True)


def conv(**settings):
    usual = {"stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1), "groups": 1, "bias": True}
    return {"in_channels": 2, "out_channels": 4, "kernel_size": (3, 3), **usual, "padding_mode": "zeros", **settings}


def pool(**settings):
    return {"kernel_size": (2, 2), "stride": (2, 2), "padding": ((0, 0), (0, 0)), "ceil_mode": False, **settings}


RECURRENT = {"input_size": 2, "hidden_size": 3, "num_layers": 1, "bias": True, "batch_first": False}
ENCODER = {"d_model": 4, "nhead": 2, "dim_feedforward": 8, "dropout": 0.1, "batch_first": False, "norm_first": False}


class Relu(nn.ReLU):
    """Another name for the same computation."""


class Steeper(nn.ReLU):
    def forward(self, x):
        return super().forward(2 * x)


class Standardised(nn.Conv2d):
    def _conv_forward(self, x, weight, bias):
        return super()._conv_forward(x, weight - weight.mean(), bias)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor, self.axes, self.mode, self.on = np.float32(0.5), [1, 2], "fast", True
        self.table, self.text, self.nothing, self._hidden = list(range(1000)), "x" * 1000, None, 3
        self.weight = nn.Parameter(torch.ones(1))


CASES = [
    (nn.Conv2d(2, 4, 3), "Conv2d", conv()),
    (nn.Conv2d(2, 4, 3, padding="valid", bias=False), "Conv2d", conv(bias=False)),
    (nn.Conv2d(2, 4, 3, 2, (1, 2)), "Conv2d", conv(stride=(2, 2), padding=((1, 1), (2, 2)))),
    (nn.Conv2d(2, 4, (2, 4), padding="same"), "Conv2d", conv(kernel_size=(2, 4), padding=((0, 1), (1, 2)))),
    (
        nn.Conv2d(2, 4, (3, 5), padding="same", dilation=(1, 2)),
        "Conv2d",
        conv(kernel_size=(3, 5), padding=((1, 1), (4, 4)), dilation=(1, 2)),
    ),
    (
        nn.Conv2d(2, 4, 3, groups=2, padding=1, padding_mode="reflect"),
        "Conv2d",
        conv(groups=2, padding=((1, 1), (1, 1)), padding_mode="reflect"),
    ),
    (
        nn.ConvTranspose2d(2, 4, 3, stride=2, padding=1, output_padding=1),
        "ConvTranspose2d",
        conv(stride=(2, 2), padding=((1, 1), (1, 1)), output_padding=(1, 1)),
    ),
    (nn.Linear(2, 3, bias=False), "Linear", {"in_features": 2, "out_features": 3, "bias": False}),
    (nn.Embedding(5, 3, padding_idx=-1), "Embedding", {"num_embeddings": 5, "embedding_dim": 3, "padding_idx": 4}),
    (
        nn.BatchNorm3d(4, eps=1e-3, momentum=None, affine=False),
        "BatchNorm",
        {"num_features": 4, "eps": 1e-3, "momentum": None, "affine": False, "track_running_stats": True},
    ),
    (nn.LayerNorm((2, 3), 1e-6), "LayerNorm", {"normalized_shape": (2, 3), "eps": 1e-6, "affine": True}),
    (nn.RMSNorm(4), "RMSNorm", {"normalized_shape": (4,), "eps": 2.0**-23, "affine": True}),
    (nn.RMSNorm(4, dtype=torch.float64), "RMSNorm", {"normalized_shape": (4,), "eps": 2.0**-52, "affine": True}),
    (nn.GroupNorm(2, 4), "GroupNorm", {"num_groups": 2, "num_channels": 4, "eps": 1e-5, "affine": True}),
    (nn.MaxPool2d(2), "MaxPool2d", pool(dilation=(1, 1))),
    (
        nn.MaxPool2d(2, 1, 1, ceil_mode=True),
        "MaxPool2d",
        pool(stride=(1, 1), padding=((1, 1), (1, 1)), ceil_mode=True, dilation=(1, 1)),
    ),
    (nn.AvgPool2d(2, count_include_pad=False), "AvgPool2d", pool(count_include_pad=False)),
    (nn.AdaptiveAvgPool2d((None, 3)), "AdaptiveAvgPool2d", {"output_size": (None, 3)}),
    (nn.AdaptiveMaxPool1d(2), "AdaptiveMaxPool1d", {"output_size": (2,)}),
    (nn.Dropout2d(0.3), "Dropout", {"p": 0.3}),
    (nn.GELU("tanh"), "GELU", {"approximate": "tanh"}),
    (nn.ReLU6(), "ReLU6", {}),
    (nn.Hardtanh(-2, 2), "Hardtanh", {"min_val": -2, "max_val": 2}),
    (nn.LeakyReLU(0.2), "LeakyReLU", {"negative_slope": 0.2}),
    (nn.Softmax(), "Softmax", {"dim": None}),
    (nn.Softmax2d(), "Softmax", {"dim": -3}),
    (nn.Unflatten(1, (2, 3)), "Unflatten", {"dim": 1, "unflattened_size": (2, 3)}),
    (
        nn.Upsample(scale_factor=(2, 2), mode="bilinear"),
        "Upsample",
        {"size": None, "scale_factor": 2.0, "mode": "bilinear", "align_corners": False},
    ),
    (
        nn.UpsamplingBilinear2d((4, 6)),
        "Upsample",
        {"size": (4, 6), "scale_factor": None, "mode": "bilinear", "align_corners": True},
    ),
    (
        nn.Upsample(size=4),
        "Upsample",
        {"size": 4, "scale_factor": None, "mode": "nearest", "align_corners": None},
    ),
    (nn.ZeroPad2d((1, 2, 0, 0)), "Pad", {"padding": ((1, 2),), "mode": "constant", "value": 0.0}),
    (nn.ConstantPad2d((0, 0, 1, 2), 3.5), "Pad", {"padding": ((0, 0), (1, 2)), "mode": "constant", "value": 3.5}),
    (nn.ReflectionPad1d(2), "Pad", {"padding": ((2, 2),), "mode": "reflect", "value": None}),
    (
        nn.Unfold((2, 3), padding=1),
        "Unfold",
        {"kernel_size": (2, 3), "stride": (1, 1), "padding": ((1, 1), (1, 1)), "dilation": (1, 1)},
    ),
    (nn.LSTM(2, 3, bidirectional=True), "LSTM", {**RECURRENT, "dropout": 0.0, "bidirectional": True}),
    (
        nn.RNN(2, 3, 1, nonlinearity="relu"),
        "RNN",
        {**RECURRENT, "dropout": 0.0, "bidirectional": False, "nonlinearity": "relu"},
    ),
    (nn.GRUCell(2, 3, bias=False), "GRUCell", {"input_size": 2, "hidden_size": 3, "bias": False}),
    (
        nn.MultiheadAttention(4, 2, 0.1, kdim=6),
        "MultiheadAttention",
        {"embed_dim": 4, "num_heads": 2, "dropout": 0.1, "bias": True, "batch_first": False, "kdim": 6, "vdim": 4},
    ),
    (
        nn.TransformerEncoderLayer(4, 2, 8, layer_norm_eps=1e-3),
        "TransformerEncoderLayer",
        {**ENCODER, "activation": "relu", "eps": 1e-3},
    ),
    (
        nn.TransformerDecoderLayer(4, 2, 8, activation=nn.GELU()),
        "TransformerDecoderLayer",
        {**ENCODER, "activation": "gelu", "eps": 1e-5},
    ),
    (Relu(), "ReLU", {}),
    (Steeper(), "Steeper", {"inplace": False}),
    (nn.MultiheadAttention(4, 2).out_proj, "Linear", {"in_features": 4, "out_features": 4, "bias": True}),
    (Scale(), "Scale", {"factor": 0.5, "axes": (1, 2), "mode": "fast", "on": True}),
    (nn.CrossEntropyLoss(), "CrossEntropyLoss", {"reduction": "mean", "ignore_index": -100, "label_smoothing": 0.0}),
]


@pytest.mark.parametrize(("layer", "kind", "attributes"), CASES, ids=lambda value: type(value).__name__)
def test_settings_are_read_exactly(layer, kind, attributes):
    spec = TorchAdapter().spec(layer)
    assert spec == LayerSpec(kind, attributes)
    assert {name: type(value) for name, value in spec.attributes.items()} == {
        name: type(value) for name, value in attributes.items()
    }


def test_a_class_that_computes_otherwise_is_not_taken_for_its_base():
    assert TorchAdapter().spec(Standardised(1, 1, 1)).kind == "Standardised"


def test_a_subclass_without_its_bases_settings_is_told_of_by_its_own():
    class Frozen(nn.BatchNorm2d):
        def __init__(self):
            nn.Module.__init__(self)
            self.scale = 2

    assert TorchAdapter().spec(Frozen()) == LayerSpec("Frozen", {"scale": 2})


def test_type_names_are_those_people_write():
    adapter = TorchAdapter()
    assert adapter.type_name(nn.Conv2d(1, 1, 1)) == "torch.nn.Conv2d"
    assert adapter.type_name(Scale()).endswith("test_torch_spec.Scale")
