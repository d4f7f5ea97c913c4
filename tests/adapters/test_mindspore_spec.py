"""Equivalent layers of torch and MindSpore have one spec, and compute the same; unlike settings show as such."""

from __future__ import annotations

import re

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")
torch = pytest.importorskip("torch")

from aligner_hooks.mindspore_ import MindSporeAdapter  # noqa: E402 - only where both frameworks are installed
from aligner_hooks.torch_ import TorchAdapter  # noqa: E402 - likewise
from mindspore import mint  # noqa: E402 - likewise
from mindspore import nn as ms  # noqa: E402 - likewise
from torch import nn as pt  # noqa: E402 - likewise

IMAGE = (2, 4, 9, 9)
LINE = (2, 4, 9)
ROWS = (3, 4)

# Both layers built as an engineer would build them, and the shape of an input for both (None: not to be run here).
EQUIVALENT = {
    "conv1d": (lambda: (pt.Conv1d(4, 6, 3), ms.Conv1d(4, 6, 3, pad_mode="valid", has_bias=True)), LINE),
    "conv1d-padded": (
        lambda: (pt.Conv1d(4, 6, 3, 2, 1, bias=False), ms.Conv1d(4, 6, 3, 2, pad_mode="pad", padding=1)),
        LINE,
    ),
    "conv1d-same-even-kernel": (lambda: (pt.Conv1d(4, 6, 4, padding="same"), ms.Conv1d(4, 6, 4, has_bias=True)), LINE),
    "conv1d-dilated": (
        lambda: (
            pt.Conv1d(4, 6, 3, dilation=2, groups=2),
            ms.Conv1d(4, 6, 3, pad_mode="valid", dilation=2, group=2, has_bias=True),
        ),
        LINE,
    ),
    "conv2d": (lambda: (pt.Conv2d(4, 6, 3), ms.Conv2d(4, 6, 3, pad_mode="valid", has_bias=True)), IMAGE),
    "conv2d-same": (lambda: (pt.Conv2d(4, 6, 3, padding="same"), ms.Conv2d(4, 6, 3, has_bias=True)), IMAGE),
    "conv2d-same-is-padding-1": (lambda: (pt.Conv2d(4, 6, 3, padding=1), ms.Conv2d(4, 6, 3, has_bias=True)), IMAGE),
    "conv2d-same-even-kernel": (
        lambda: (
            pt.Conv2d(4, 6, (2, 4), padding="same", dilation=(3, 1)),
            ms.Conv2d(4, 6, (2, 4), dilation=(3, 1), has_bias=True),
        ),
        IMAGE,
    ),
    "conv2d-padded": (
        lambda: (
            pt.Conv2d(4, 6, (3, 5), (2, 1), (1, 2)),
            ms.Conv2d(4, 6, (3, 5), (2, 1), "pad", (1, 1, 2, 2), has_bias=True),
        ),
        IMAGE,
    ),
    "conv2d-depthwise": (
        lambda: (
            pt.Conv2d(4, 4, 3, 1, 1, groups=4, bias=False),
            ms.Conv2d(4, 4, 3, pad_mode="pad", padding=1, group=4),
        ),
        IMAGE,
    ),
    "conv3d": (
        lambda: (pt.Conv3d(2, 3, 3, padding=1), ms.Conv3d(2, 3, 3, pad_mode="pad", padding=1, has_bias=True)),
        (1, 2, 5, 5, 5),
    ),
    "conv3d-valid": (
        lambda: (pt.Conv3d(2, 3, (1, 2, 3)), ms.Conv3d(2, 3, (1, 2, 3), pad_mode="valid", has_bias=True)),
        (1, 2, 5, 5, 5),
    ),
    "conv3d-uneven": (
        lambda: (
            pt.Conv3d(2, 3, 3, padding=(0, 1, 2)),
            ms.Conv3d(2, 3, 3, pad_mode="pad", padding=(0, 0, 1, 1, 2, 2), has_bias=True),
        ),
        (1, 2, 5, 5, 5),
    ),
    "convtranspose1d": (
        lambda: (pt.ConvTranspose1d(4, 6, 4, 2, 1), ms.Conv1dTranspose(4, 6, 4, 2, "pad", 1, has_bias=True)),
        LINE,
    ),
    "convtranspose2d-same": (
        lambda: (pt.ConvTranspose2d(4, 6, 4, 2, 1), ms.Conv2dTranspose(4, 6, 4, 2, has_bias=True)),
        IMAGE,
    ),
    "convtranspose2d-valid": (
        lambda: (pt.ConvTranspose2d(4, 6, 3, 2), ms.Conv2dTranspose(4, 6, 3, 2, "valid", has_bias=True)),
        IMAGE,
    ),
    "convtranspose2d-kernel-2": (
        lambda: (pt.ConvTranspose2d(4, 2, 2, 2), ms.Conv2dTranspose(4, 2, 2, 2, has_bias=True)),
        IMAGE,
    ),
    "convtranspose2d-padded": (
        lambda: (pt.ConvTranspose2d(4, 6, 3, 1, 1, bias=False), ms.Conv2dTranspose(4, 6, 3, 1, "pad", 1)),
        IMAGE,
    ),
    "convtranspose2d-output-padding": (
        lambda: (
            pt.ConvTranspose2d(4, 6, 3, 2, 1, 1),
            ms.Conv2dTranspose(4, 6, 3, 2, "pad", (1, 0, 1, 0), has_bias=True),
        ),
        IMAGE,
    ),
    "convtranspose3d": (
        lambda: (
            pt.ConvTranspose3d(2, 3, 3, 2, 1, 1),
            ms.Conv3dTranspose(2, 3, 3, 2, "pad", 1, output_padding=1, has_bias=True),
        ),
        (1, 2, 4, 4, 4),
    ),
    "linear": (lambda: (pt.Linear(4, 3), ms.Dense(4, 3)), ROWS),
    "linear-no-bias": (lambda: (pt.Linear(4, 3, bias=False), ms.Dense(4, 3, has_bias=False)), ROWS),
    "bilinear": (lambda: (pt.Bilinear(4, 5, 3), ms.BiDense(4, 5, 3)), None),
    "embedding": (lambda: (pt.Embedding(7, 3), ms.Embedding(7, 3)), None),
    "embedding-padding": (lambda: (pt.Embedding(7, 3, padding_idx=2), ms.Embedding(7, 3, padding_idx=2)), None),
    "embedding-lookup": (lambda: (pt.Embedding(7, 3), ms.EmbeddingLookup(7, 3)), None),
    "batchnorm1d": (lambda: (pt.BatchNorm1d(4), ms.BatchNorm1d(4)), ROWS),
    "batchnorm2d": (lambda: (pt.BatchNorm2d(4), ms.BatchNorm2d(4)), IMAGE),
    "batchnorm2d-settings": (
        lambda: (pt.BatchNorm2d(4, eps=1e-3, momentum=0.01), ms.BatchNorm2d(4, eps=1e-3, momentum=0.99)),
        IMAGE,
    ),
    "batchnorm2d-no-affine": (lambda: (pt.BatchNorm2d(4, affine=False), ms.BatchNorm2d(4, affine=False)), IMAGE),
    "batchnorm2d-batch-statistics": (
        lambda: (pt.BatchNorm2d(4, track_running_stats=False), ms.BatchNorm2d(4, use_batch_statistics=True)),
        IMAGE,
    ),
    "batchnorm3d-no-affine": (
        lambda: (pt.BatchNorm3d(2, affine=False), ms.BatchNorm3d(2, affine=False)),
        (2, 2, 3, 3, 3),
    ),
    "batchnorm3d": (lambda: (pt.BatchNorm3d(2), ms.BatchNorm3d(2)), (2, 2, 3, 3, 3)),
    "instancenorm1d": (lambda: (pt.InstanceNorm1d(4, affine=True), ms.InstanceNorm1d(4)), None),
    "instancenorm2d": (lambda: (pt.InstanceNorm2d(4, affine=True), ms.InstanceNorm2d(4)), None),
    "instancenorm2d-no-affine": (lambda: (pt.InstanceNorm2d(4), ms.InstanceNorm2d(4, affine=False)), None),
    "layernorm": (lambda: (pt.LayerNorm(4), ms.LayerNorm((4,), epsilon=1e-5)), ROWS),
    "layernorm-axes": (
        lambda: (pt.LayerNorm([9, 9]), ms.LayerNorm((9, 9), begin_norm_axis=2, begin_params_axis=2, epsilon=1e-5)),
        IMAGE,
    ),
    "layernorm-negative-axes": (
        lambda: (
            pt.LayerNorm([9, 9], eps=1e-6),
            ms.LayerNorm((9, 9), begin_norm_axis=-2, begin_params_axis=-2, epsilon=1e-6),
        ),
        None,  # its operator takes no negative axis but -1
    ),
    "groupnorm": (lambda: (pt.GroupNorm(2, 4), ms.GroupNorm(2, 4)), IMAGE),
    "groupnorm-no-affine": (lambda: (pt.GroupNorm(2, 4, affine=False), ms.GroupNorm(2, 4, affine=False)), IMAGE),
    "lrn": (
        lambda: (
            pt.LocalResponseNorm(5, alpha=1e-4, beta=0.75, k=2.0),
            ms.LRN(depth_radius=2, bias=2.0, alpha=1e-4 / 5, beta=0.75),
        ),
        None,
    ),
    "maxpool1d": (lambda: (pt.MaxPool1d(2), ms.MaxPool1d(2, 2)), LINE),
    "maxpool1d-padded": (lambda: (pt.MaxPool1d(3, 2, 1), ms.MaxPool1d(3, 2, "pad", 1)), LINE),
    "maxpool2d": (lambda: (pt.MaxPool2d(2), ms.MaxPool2d(2, 2)), IMAGE),
    "maxpool2d-padded": (
        lambda: (pt.MaxPool2d(3, 2, 1, ceil_mode=True), ms.MaxPool2d(3, 2, "pad", 1, ceil_mode=True)),
        IMAGE,
    ),
    "maxpool2d-dilated": (
        lambda: (pt.MaxPool2d((3, 2), (2, 1), (1, 0), (1, 2)), ms.MaxPool2d((3, 2), (2, 1), "pad", (1, 0), (1, 2))),
        IMAGE,
    ),
    "maxpool2d-same": (lambda: (pt.MaxPool2d(3, 1, 1), ms.MaxPool2d(3, 1, "same")), IMAGE),
    "maxpool3d": (lambda: (pt.MaxPool3d(2), ms.MaxPool3d(2, 2)), (1, 2, 4, 4, 4)),
    "maxpool3d-padded": (lambda: (pt.MaxPool3d(3, 2, 1), ms.MaxPool3d(3, 2, "pad", 1)), (1, 2, 4, 4, 4)),
    "avgpool1d": (lambda: (pt.AvgPool1d(2), ms.AvgPool1d(2, 2)), LINE),
    "avgpool1d-padded": (lambda: (pt.AvgPool1d(3, 2, 1), ms.AvgPool1d(3, 2, "pad", 1)), LINE),
    "avgpool2d": (lambda: (pt.AvgPool2d(2), ms.AvgPool2d(2, 2)), IMAGE),
    "avgpool2d-padded": (
        lambda: (pt.AvgPool2d(3, 2, 1, count_include_pad=False), ms.AvgPool2d(3, 2, "pad", 1, count_include_pad=False)),
        IMAGE,
    ),
    "avgpool2d-same": (lambda: (pt.AvgPool2d(3, 1, 1, count_include_pad=False), ms.AvgPool2d(3, 1, "same")), IMAGE),
    "avgpool2d-ceil": (lambda: (pt.AvgPool2d(2, 2, ceil_mode=True), ms.AvgPool2d(2, 2, ceil_mode=True)), IMAGE),
    "avgpool3d": (lambda: (pt.AvgPool3d(2), ms.AvgPool3d(2, 2)), (1, 2, 4, 4, 4)),
    "adaptiveavgpool1d": (lambda: (pt.AdaptiveAvgPool1d(3), ms.AdaptiveAvgPool1d(3)), LINE),
    "adaptiveavgpool2d": (lambda: (pt.AdaptiveAvgPool2d(1), ms.AdaptiveAvgPool2d(1)), IMAGE),
    "adaptiveavgpool2d-none": (lambda: (pt.AdaptiveAvgPool2d((2, None)), ms.AdaptiveAvgPool2d((2, None))), IMAGE),
    "adaptivemaxpool2d": (lambda: (pt.AdaptiveMaxPool2d((2, 3)), ms.AdaptiveMaxPool2d((2, 3))), IMAGE),
    "dropout": (lambda: (pt.Dropout(0.1), ms.Dropout(p=0.1)), ROWS),
    "dropout-keep-prob": (lambda: (pt.Dropout(0.1), ms.Dropout(0.9)), ROWS),
    "dropout2d": (lambda: (pt.Dropout2d(0.3), ms.Dropout2d(0.3)), IMAGE),
    "relu": (lambda: (pt.ReLU(), ms.ReLU()), ROWS),
    "relu6": (lambda: (pt.ReLU6(), ms.ReLU6()), ROWS),
    "leakyrelu": (lambda: (pt.LeakyReLU(), ms.LeakyReLU(0.01)), ROWS),
    "prelu": (lambda: (pt.PReLU(4), ms.PReLU(4)), ROWS),
    "rrelu": (lambda: (pt.RReLU(), ms.RReLU()), None),
    "elu": (lambda: (pt.ELU(0.5), ms.ELU(0.5)), None),  # its CPU kernel takes an alpha of 1 only
    "elu-default": (lambda: (pt.ELU(), ms.ELU()), ROWS),
    "celu": (lambda: (pt.CELU(0.5), ms.CELU(0.5)), ROWS),
    "selu": (lambda: (pt.SELU(), ms.SeLU()), ROWS),
    "gelu": (lambda: (pt.GELU(), ms.GELU(approximate=False)), ROWS),
    "gelu-tanh": (lambda: (pt.GELU(approximate="tanh"), ms.GELU()), ROWS),
    "silu": (lambda: (pt.SiLU(), ms.SiLU()), ROWS),
    "mish": (lambda: (pt.Mish(), ms.Mish()), ROWS),
    "hardswish": (lambda: (pt.Hardswish(), ms.HSwish()), ROWS),
    "hardsigmoid": (lambda: (pt.Hardsigmoid(), ms.HSigmoid()), ROWS),
    "hardtanh": (lambda: (pt.Hardtanh(-0.5, 0.5), ms.Hardtanh(-0.5, 0.5)), ROWS),
    "hardshrink": (lambda: (pt.Hardshrink(0.3), ms.HShrink(0.3)), ROWS),
    "softshrink": (lambda: (pt.Softshrink(0.3), ms.SoftShrink(0.3)), ROWS),
    "softsign": (lambda: (pt.Softsign(), ms.Softsign()), ROWS),
    "threshold": (lambda: (pt.Threshold(0.1, 2.0), ms.Threshold(0.1, 2.0)), ROWS),
    "sigmoid": (lambda: (pt.Sigmoid(), ms.Sigmoid()), ROWS),
    "logsigmoid": (lambda: (pt.LogSigmoid(), ms.LogSigmoid()), ROWS),
    "tanh": (lambda: (pt.Tanh(), ms.Tanh()), ROWS),
    "tanhshrink": (lambda: (pt.Tanhshrink(), ms.Tanhshrink()), ROWS),
    "glu": (lambda: (pt.GLU(1), ms.GLU(1)), ROWS),
    "softmax": (lambda: (pt.Softmax(1), ms.Softmax(1)), ROWS),
    "softmax2d": (lambda: (pt.Softmax2d(), ms.Softmax2d()), IMAGE),
    "logsoftmax": (lambda: (pt.LogSoftmax(-1), ms.LogSoftmax()), ROWS),
    "softmin": (lambda: (pt.Softmin(-1), ms.Softmin()), ROWS),
    "flatten": (lambda: (pt.Flatten(), ms.Flatten()), IMAGE),
    "flatten-axes": (lambda: (pt.Flatten(2, 3), ms.Flatten(2, 3)), IMAGE),
    "unflatten": (lambda: (pt.Unflatten(1, (2, 2)), ms.Unflatten(1, (2, 2))), ROWS),
    "identity": (lambda: (pt.Identity(), ms.Identity()), ROWS),
    "upsample-nearest": (
        lambda: (pt.Upsample(scale_factor=2), ms.Upsample(scale_factor=2.0, recompute_scale_factor=True)),
        IMAGE,
    ),
    "upsample-bilinear": (
        lambda: (pt.Upsample(size=(5, 7), mode="bilinear"), ms.Upsample(size=(5, 7), mode="bilinear")),
        IMAGE,
    ),
    "upsample-corners": (
        lambda: (
            pt.Upsample(size=12, mode="bilinear", align_corners=True),
            ms.Upsample(size=(12, 12), mode="bilinear", align_corners=True),
        ),
        IMAGE,
    ),
    "pixelshuffle": (lambda: (pt.PixelShuffle(2), ms.PixelShuffle(2)), IMAGE),
    "pixelunshuffle": (lambda: (pt.PixelUnshuffle(3), ms.PixelUnshuffle(3)), IMAGE),
    "zeropad2d": (lambda: (pt.ZeroPad2d((1, 2, 3, 4)), ms.ZeroPad2d((1, 2, 3, 4))), IMAGE),
    "zeropad2d-pad": (lambda: (pt.ZeroPad2d((1, 2, 3, 4)), ms.Pad(((0, 0), (0, 0), (3, 4), (1, 2)))), IMAGE),
    "constantpad1d": (lambda: (pt.ConstantPad1d(2, 0.5), ms.ConstantPad1d(2, 0.5)), LINE),
    "reflectionpad1d": (lambda: (pt.ReflectionPad1d((1, 2)), ms.ReflectionPad1d((1, 2))), LINE),
    "reflectionpad2d": (lambda: (pt.ReflectionPad2d((1, 2, 3, 0)), ms.ReflectionPad2d((1, 2, 3, 0))), IMAGE),
    "reflectionpad2d-pad": (
        lambda: (pt.ReflectionPad2d((1, 2, 3, 0)), ms.Pad(((0, 0), (0, 0), (3, 0), (1, 2)), mode="REFLECT")),
        IMAGE,
    ),
    "replicationpad2d": (lambda: (pt.ReplicationPad2d(2), ms.ReplicationPad2d(2)), IMAGE),
    "lstm": (lambda: (pt.LSTM(4, 5), ms.LSTM(4, 5)), (6, 2, 4)),
    "lstm-settings": (
        lambda: (
            pt.LSTM(4, 5, 2, batch_first=True, bidirectional=True, dropout=0.2),
            ms.LSTM(4, 5, 2, batch_first=True, bidirectional=True, dropout=0.2),
        ),
        (6, 2, 4),
    ),
    "lstm-no-bias": (lambda: (pt.LSTM(4, 5, bias=False), ms.LSTM(4, 5, has_bias=False)), (6, 2, 4)),
    "gru": (lambda: (pt.GRU(4, 5, 2), ms.GRU(4, 5, 2)), (6, 2, 4)),
    "rnn": (lambda: (pt.RNN(4, 5), ms.RNN(4, 5)), (6, 2, 4)),
    "rnn-relu": (lambda: (pt.RNN(4, 5, nonlinearity="relu"), ms.RNN(4, 5, nonlinearity="relu")), (6, 2, 4)),
    "lstmcell": (lambda: (pt.LSTMCell(4, 5), ms.LSTMCell(4, 5)), None),
    "grucell": (lambda: (pt.GRUCell(4, 5, bias=False), ms.GRUCell(4, 5, has_bias=False)), None),
    "rnncell": (lambda: (pt.RNNCell(4, 5, nonlinearity="relu"), ms.RNNCell(4, 5, nonlinearity="relu")), None),
    "attention": (
        lambda: (
            pt.MultiheadAttention(8, 2, dropout=0.1, batch_first=True),
            ms.MultiheadAttention(8, 2, dropout=0.1, batch_first=True),
        ),
        None,
    ),
    "attention-dims": (
        lambda: (
            pt.MultiheadAttention(8, 2, bias=False, kdim=6, vdim=4),
            ms.MultiheadAttention(8, 2, has_bias=False, kdim=6, vdim=4),
        ),
        None,
    ),
    "encoderlayer": (
        lambda: (
            pt.TransformerEncoderLayer(8, 2, 16, 0.2, "gelu", 1e-6, True, True),
            ms.TransformerEncoderLayer(8, 2, 16, 0.2, "gelu", 1e-6, True, True),
        ),
        (2, 3, 8),
    ),
    "encoderlayer-function": (
        lambda: (
            pt.TransformerEncoderLayer(8, 2, 16, activation=torch.nn.functional.relu),
            ms.TransformerEncoderLayer(8, 2, 16, activation=mindspore.ops.relu),
        ),
        (2, 3, 8),
    ),
    "decoderlayer": (lambda: (pt.TransformerDecoderLayer(8, 2, 16), ms.TransformerDecoderLayer(8, 2, 16)), None),
    "encoder": (
        lambda: (
            pt.TransformerEncoder(pt.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3),
            ms.TransformerEncoder(ms.TransformerEncoderLayer(8, 2, 16, batch_first=True), 3),
        ),
        (2, 3, 8),
    ),
    "transformer": (
        lambda: (pt.Transformer(8, 2, 1, 1, 16, batch_first=True), ms.Transformer(8, 2, 1, 1, 16, batch_first=True)),
        None,
    ),
    "sequential": (lambda: (pt.Sequential(pt.ReLU()), ms.SequentialCell(ms.ReLU())), ROWS),
    "modulelist": (lambda: (pt.ModuleList([pt.ReLU()]), ms.CellList([ms.ReLU()])), None),
    "moduledict": (lambda: (pt.ModuleDict({"a": pt.ReLU()}), ms.CellDict({"a": ms.ReLU()})), None),
    "mint-conv2d": (lambda: (pt.Conv2d(4, 6, 3, 2, 1), mint.nn.Conv2d(4, 6, 3, 2, 1)), None),
    "mint-conv2d-same": (lambda: (pt.Conv2d(4, 6, 4, padding="same"), mint.nn.Conv2d(4, 6, 4, padding="same")), None),
    "mint-conv3d": (lambda: (pt.Conv3d(4, 6, 3, groups=2), mint.nn.Conv3d(4, 6, 3, groups=2)), None),
    "mint-convtranspose2d": (
        lambda: (pt.ConvTranspose2d(4, 6, 3, 2, 1, 1), mint.nn.ConvTranspose2d(4, 6, 3, 2, 1, 1)),
        None,
    ),
    "mint-batchnorm2d": (lambda: (pt.BatchNorm2d(4, momentum=0.2), mint.nn.BatchNorm2d(4, momentum=0.2)), None),
    "mint-layernorm": (lambda: (pt.LayerNorm(4), mint.nn.LayerNorm(4)), None),
    "mint-groupnorm": (lambda: (pt.GroupNorm(2, 4), mint.nn.GroupNorm(2, 4)), None),
    "mint-linear": (lambda: (pt.Linear(4, 3, bias=False), mint.nn.Linear(4, 3, bias=False)), ROWS),
    "mint-embedding": (lambda: (pt.Embedding(7, 3, padding_idx=1), mint.nn.Embedding(7, 3, padding_idx=1)), None),
    "mint-maxpool2d": (lambda: (pt.MaxPool2d(3, padding=1), mint.nn.MaxPool2d(3, padding=1)), None),
    "mint-avgpool2d": (lambda: (pt.AvgPool2d(2), mint.nn.AvgPool2d(2)), None),
    "mint-gelu": (lambda: (pt.GELU(), mint.nn.GELU()), None),
    "mint-softmax": (lambda: (pt.Softmax(1), mint.nn.Softmax(1)), None),
    "mint-dropout": (lambda: (pt.Dropout(0.3), mint.nn.Dropout(0.3)), None),
    "mint-prelu": (lambda: (pt.PReLU(3), mint.nn.PReLU(3)), None),
    "mint-hardtanh": (lambda: (pt.Hardtanh(), mint.nn.Hardtanh()), None),
    "mint-pad": (lambda: (pt.ConstantPad2d((1, 0, 2, 0), 3.0), mint.nn.ConstantPad2d((1, 0, 2, 0), 3.0)), None),
    "mint-reflectionpad2d": (lambda: (pt.ReflectionPad2d(1), mint.nn.ReflectionPad2d(1)), None),
    "mint-unfold": (lambda: (pt.Unfold(3, 1, 1, 2), mint.nn.Unfold(3, 1, 1, 2)), None),
    "mint-upsample": (lambda: (pt.UpsamplingNearest2d(scale_factor=2), mint.nn.Upsample(scale_factor=2.0)), None),
    "mint-adaptiveavgpool2d": (lambda: (pt.AdaptiveAvgPool2d((2, 3)), mint.nn.AdaptiveAvgPool2d((2, 3))), None),
}

# The careless port of facts every porter meets: exactly one attribute differs.
DIFFERENT = {
    "layernorm-eps": (lambda: (pt.LayerNorm(4), ms.LayerNorm((4,))), "eps"),
    "layernorm-axes": (lambda: (pt.LayerNorm([3, 4]), ms.LayerNorm((3, 4), epsilon=1e-5)), "normalized_shape"),
    "batchnorm-eps": (lambda: (pt.BatchNorm2d(4, eps=1e-3), ms.BatchNorm2d(4)), "eps"),
    "batchnorm-momentum": (lambda: (pt.BatchNorm2d(4), ms.BatchNorm2d(4, momentum=0.1)), "momentum"),
    "batchnorm-affine": (lambda: (pt.BatchNorm2d(4, affine=False), ms.BatchNorm2d(4)), "affine"),
    "conv-same": (lambda: (pt.Conv2d(4, 6, 3), ms.Conv2d(4, 6, 3, has_bias=True)), "padding"),
    "conv-same-stride": (lambda: (pt.Conv2d(4, 6, 3, 2, 1), ms.Conv2d(4, 6, 3, 2, has_bias=True)), "padding"),
    "conv-bias": (lambda: (pt.Conv2d(4, 6, 3), ms.Conv2d(4, 6, 3, pad_mode="valid")), "bias"),
    "conv-dilation": (
        lambda: (pt.Conv2d(4, 6, 3, dilation=2), ms.Conv2d(4, 6, 3, pad_mode="valid", has_bias=True)),
        "dilation",
    ),
    "convtranspose-same": (
        lambda: (pt.ConvTranspose2d(4, 6, 3, 2), ms.Conv2dTranspose(4, 6, 3, 2, has_bias=True)),
        "padding",
    ),
    "pool-stride": (lambda: (pt.MaxPool2d(2), ms.MaxPool2d(2)), "stride"),
    "pool-ceil": (lambda: (pt.MaxPool2d(3, 2, ceil_mode=True), ms.MaxPool2d(3, 2)), "ceil_mode"),
    "avgpool-counted": (
        lambda: (pt.AvgPool2d(3, 1, 1, count_include_pad=False), ms.AvgPool2d(3, 1, "pad", 1)),
        "count_include_pad",
    ),
    "gelu": (lambda: (pt.GELU(), ms.GELU()), "approximate"),
    "leakyrelu": (lambda: (pt.LeakyReLU(), ms.LeakyReLU()), "negative_slope"),
    "dropout-kept": (lambda: (pt.Dropout(0.1), ms.Dropout(0.1)), "p"),
    "softmax": (lambda: (pt.Softmax(1), ms.Softmax()), "dim"),
    "prelu": (lambda: (pt.PReLU(4), ms.PReLU()), "num_parameters"),
    "upsample": (lambda: (pt.Upsample(scale_factor=2, mode="nearest"), ms.Upsample(scale_factor=3.0)), "scale_factor"),
    "upsample-corners": (
        lambda: (pt.Upsample(size=4, mode="bilinear", align_corners=True), ms.Upsample(size=4, mode="bilinear")),
        "align_corners",
    ),
    "lstm-bidirectional": (lambda: (pt.LSTM(4, 5, bidirectional=True), ms.LSTM(4, 5)), "bidirectional"),
    "encoder-norm-first": (
        lambda: (pt.TransformerEncoderLayer(8, 2, 16, norm_first=True), ms.TransformerEncoderLayer(8, 2, 16)),
        "norm_first",
    ),
    "attention-heads": (lambda: (pt.MultiheadAttention(8, 4), ms.MultiheadAttention(8, 2)), "num_heads"),
    "lrn-alpha": (lambda: (pt.LocalResponseNorm(5), ms.LRN(depth_radius=2, alpha=1e-4, beta=0.75)), "alpha"),
    "embedding-padding": (lambda: (pt.Embedding(7, 3, padding_idx=0), ms.Embedding(7, 3)), "padding_idx"),
    "instancenorm-affine": (lambda: (pt.InstanceNorm2d(4), ms.InstanceNorm2d(4)), "affine"),
}


@pytest.mark.parametrize("name", sorted(EQUIVALENT))
def test_equivalent_layers_have_one_spec(name):
    reference, port = EQUIVALENT[name][0]()
    assert MindSporeAdapter().spec(port) == TorchAdapter().spec(reference)


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_one_other_setting_shows_as_that_attribute(name):
    build, attribute = DIFFERENT[name]
    reference, port = build()
    wanted, found = TorchAdapter().spec(reference), MindSporeAdapter().spec(port)
    assert found.kind == wanted.kind
    assert [word for word, value in wanted.attributes.items() if found.attributes[word] != value] == [attribute]


EVEN_KERNEL = "ignore:Using padding='same' with even kernel:UserWarning"  # torch's, on its own speed


@pytest.mark.filterwarnings(EVEN_KERNEL)
@pytest.mark.parametrize("name", sorted(name for name, (_, shape) in EQUIVALENT.items() if shape))
def test_equivalent_layers_compute_the_same_from_the_same_weights(name):
    """The tables above are right: what they call equivalent is, with weights moved in canonical words."""
    build, shape = EQUIVALENT[name]
    reference, port = build()
    left, right = outputs(reference, port, shape)
    np.testing.assert_allclose(right, left, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("table", ["equivalent", "different"])
def test_what_is_spelled_builds_a_layer_with_these_settings(table):
    adapter = MindSporeAdapter()
    names = {}
    exec(adapter.preamble(), names)
    for build, _ in (EQUIVALENT if table == "equivalent" else DIFFERENT).values():
        _, port = build()
        text = adapter.expression(port)
        assert adapter.spec(eval(text, names)) == adapter.spec(port), text
        assert adapter.type_name(eval(text, names)) == adapter.type_name(port), text


@pytest.mark.parametrize("name", sorted(DIFFERENT))
def test_a_copy_of_the_careless_port_gets_the_setting_of_the_reference(name):
    build, attribute = DIFFERENT[name]
    reference, port = build()
    value = TorchAdapter().spec(reference).attributes[attribute]
    if name == "prelu":  # the weight of the port is too small
        with pytest.raises(ValueError, match="shape"):
            MindSporeAdapter().respecified(port, {attribute: value})
    else:
        copy = MindSporeAdapter().respecified(port, {attribute: value})
        assert MindSporeAdapter().spec(copy) == TorchAdapter().spec(reference)


def of_one_kind():
    """Kind -> the pairs of the tables, those of nn and those of mint by themselves."""
    kinds = {}
    runnable = {name: entry for name, entry in EQUIVALENT.items() if entry[1]}
    for name, (build, _) in {**DIFFERENT, **EQUIVALENT}.items():
        if name not in EQUIVALENT or name in runnable:
            kinds.setdefault((MindSporeAdapter().spec(build()[1]).kind, name.startswith("mint")), []).append(name)
    return runnable, [names for names in kinds.values() if len(names) > 1]


@pytest.mark.filterwarnings(EVEN_KERNEL)
def test_any_layer_can_be_given_the_settings_of_another_and_computes_by_them():
    """All pairs of layers of a kind whose weights have one shape: the one as a copy of the other."""
    runnable, kinds = of_one_kind()
    ours, theirs, count = MindSporeAdapter(), TorchAdapter(), 0
    for names in kinds:
        for one in names:
            for other in (name for name in names if name in runnable and name != one):
                port, (reference, like) = {**DIFFERENT, **EQUIVALENT}[one][0]()[1], EQUIVALENT[other][0]()
                wanted = theirs.spec(reference).attributes
                changes = {word: value for word, value in wanted.items() if ours.spec(port).attributes[word] != value}
                if type(port) is not type(like):
                    continue
                try:
                    copy = ours.respecified(port, changes)
                except ValueError as error:
                    assert "would have the shape" in str(error), (one, other)  # noqa: PT017 - one of two right ends
                    continue
                left, right = outputs(reference, copy, EQUIVALENT[other][1])
                np.testing.assert_allclose(right, left, rtol=2e-4, atol=2e-5, err_msg=f"{one} as {other}")
                count += 1
    assert count > 120


def outputs(reference, port, shape):
    """What both make of one input with one set of weights."""
    theirs, ours = TorchAdapter(), MindSporeAdapter()
    theirs.set_training(reference, False)
    ours.set_training(port, False)
    wanted = {(_port_path(p.layer), p.role): p for p in theirs.parameters(reference)}
    rng = np.random.default_rng(0)
    for parameter in ours.parameters(port):
        twin = wanted.pop((parameter.layer, parameter.role))
        assert twin.shape == parameter.shape
        values = rng.uniform(0.1, 1, twin.shape).astype(np.float32)
        theirs.load(twin, values, "float32")
        ours.load(parameter, values, "float32")
    assert all(role == "num_batches_tracked" for _, role in wanted)
    x = rng.standard_normal(shape).astype(np.float32)
    with theirs.running(reference), ours.running(port):
        left = reference(theirs.from_numpy(x, "float32"))
        right = port(ours.from_numpy(x, "float32"))
    left, right = (value[0] if isinstance(value, tuple) else value for value in (left, right))
    return theirs.to_numpy(left), ours.to_numpy(right)


def _port_path(path):
    """MindSpore calls the linear layers of its transformer dense."""
    return re.sub(r"\blinear(\d)", r"dense\1", path)


def test_output_padding_is_what_the_cell_was_told_though_its_cpu_kernel_only_appends_zeros():
    port = ms.Conv2dTranspose(4, 6, 3, 2, "pad", 1, output_padding=1, has_bias=True)
    assert MindSporeAdapter().spec(port) == TorchAdapter().spec(pt.ConvTranspose2d(4, 6, 3, 2, 1, 1))
