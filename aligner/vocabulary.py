"""One word for one thing: the kinds of layers and the names of their settings, the same for all frameworks.

The words are torch's, since the reference is torch. Adapters translate into them; a layer whose class is not here
keeps its class name as kind. Values are plain: numbers, words, None, or tuples of them.

- Per-axis settings are tuples with one entry per spatial axis: kernel_size (3, 3), stride (2, 2).
- padding is a tuple of (before, after) pairs per spatial axis, ((1, 1), (1, 1)), or "same" where the framework works
  it out from the input and it cannot be said as numbers (stride other than 1).
- bias and affine say whether the parameters exist. eps, momentum and negative_slope are in torch's meaning:
  MindSpore's BatchNorm2d(momentum=0.9) is momentum=0.1 here.
- Axes are as given (negative stays negative).
- Dropout is also the kind of Dropout1d to Dropout3d, BatchNorm and InstanceNorm of all their dimensions; Softmax2d is
  Softmax(dim=-3).
- Pooling's stride is a number for each axis always: not given means kernel_size in torch, 1 in MindSpore.
- RMSNorm's eps is the number used: torch's None is the spacing of the dtype at 1.
- Pad has padding as (before, after) pairs from the last axis backwards, without pairs of zeros at the end; mode is
  "constant", "reflect", "replicate", "symmetric" or "circular"; value is a number for "constant", else None.
- Upsample has size and scale_factor as one number where all axes are equal, else a tuple; align_corners is False for
  None where the mode interpolates ("linear", "bilinear", "bicubic", "trilinear"), and None where it has no meaning.
- A transposed convolution that cuts less at the end has torch's output_padding: cutting (1, 0) is padding (1, 1) and
  output_padding 1.
- Weights of a loss's classes are no settings; BCEWithLogitsLoss's pos_weight neither.
- Transformer layers have activation as a word ("relu", "gelu"), eps of their first norm.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

INTERPOLATING = ("linear", "bilinear", "bicubic", "trilinear")
"""Modes of Upsample for which align_corners has a meaning."""

_CONV = (
    "in_channels",
    "out_channels",
    "kernel_size",
    "stride",
    "padding",
    "dilation",
    "groups",
    "bias",
    "padding_mode",
)
_POOL = ("kernel_size", "stride", "padding", "ceil_mode")
_RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
_CELL = ("input_size", "hidden_size", "bias")

KINDS: dict[str, tuple[str, ...]] = {
    **{f"Conv{n}d": _CONV for n in (1, 2, 3)},
    **{f"ConvTranspose{n}d": (*_CONV, "output_padding") for n in (1, 2, 3)},
    "Linear": ("in_features", "out_features", "bias"),
    "Bilinear": ("in1_features", "in2_features", "out_features", "bias"),
    "Embedding": ("num_embeddings", "embedding_dim", "padding_idx"),
    "BatchNorm": ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    "LayerNorm": ("normalized_shape", "eps", "affine"),
    "RMSNorm": ("normalized_shape", "eps", "affine"),
    "GroupNorm": ("num_groups", "num_channels", "eps", "affine"),
    "InstanceNorm": ("num_features", "eps", "momentum", "affine", "track_running_stats"),
    "LocalResponseNorm": ("size", "alpha", "beta", "k"),
    **{f"MaxPool{n}d": (*_POOL, "dilation") for n in (1, 2, 3)},
    **{f"AvgPool{n}d": (*_POOL, "count_include_pad") for n in (1, 2, 3)},
    **{f"Adaptive{which}Pool{n}d": ("output_size",) for which in ("Avg", "Max") for n in (1, 2, 3)},
    "Dropout": ("p",),
    "ReLU": (),
    "ReLU6": (),
    "LeakyReLU": ("negative_slope",),
    "PReLU": ("num_parameters",),
    "RReLU": ("lower", "upper"),
    "ELU": ("alpha",),
    "CELU": ("alpha",),
    "SELU": (),
    "GELU": ("approximate",),
    "SiLU": (),
    "Mish": (),
    "Hardswish": (),
    "Hardsigmoid": (),
    "Hardtanh": ("min_val", "max_val"),
    "Hardshrink": ("lambd",),
    "Softshrink": ("lambd",),
    "Softplus": ("beta", "threshold"),
    "Softsign": (),
    "Threshold": ("threshold", "value"),
    "Sigmoid": (),
    "LogSigmoid": (),
    "Tanh": (),
    "Tanhshrink": (),
    "GLU": ("dim",),
    "Softmax": ("dim",),
    "LogSoftmax": ("dim",),
    "Softmin": ("dim",),
    "Flatten": ("start_dim", "end_dim"),
    "Unflatten": ("dim", "unflattened_size"),
    "Identity": (),
    "Upsample": ("size", "scale_factor", "mode", "align_corners"),
    "PixelShuffle": ("upscale_factor",),
    "PixelUnshuffle": ("downscale_factor",),
    "Pad": ("padding", "mode", "value"),
    "Unfold": ("kernel_size", "stride", "padding", "dilation"),
    "LSTM": _RECURRENT,
    "GRU": _RECURRENT,
    "RNN": (*_RECURRENT, "nonlinearity"),
    "LSTMCell": _CELL,
    "GRUCell": _CELL,
    "RNNCell": (*_CELL, "nonlinearity"),
    "MultiheadAttention": ("embed_dim", "num_heads", "dropout", "bias", "batch_first", "kdim", "vdim"),
    "TransformerEncoderLayer": (
        "d_model",
        "nhead",
        "dim_feedforward",
        "dropout",
        "activation",
        "eps",
        "batch_first",
        "norm_first",
    ),
    "TransformerDecoderLayer": (
        "d_model",
        "nhead",
        "dim_feedforward",
        "dropout",
        "activation",
        "eps",
        "batch_first",
        "norm_first",
    ),
    "TransformerEncoder": ("num_layers",),
    "TransformerDecoder": ("num_layers",),
    "Transformer": (),
    **dict.fromkeys(("L1Loss", "MSELoss", "BCELoss", "BCEWithLogitsLoss", "SoftMarginLoss"), ("reduction",)),
    **dict.fromkeys(("MultiLabelMarginLoss", "MultiLabelSoftMarginLoss"), ("reduction",)),
    "SmoothL1Loss": ("beta", "reduction"),
    "HuberLoss": ("delta", "reduction"),
    "CrossEntropyLoss": ("ignore_index", "label_smoothing", "reduction"),
    "NLLLoss": ("ignore_index", "reduction"),
    "KLDivLoss": ("log_target", "reduction"),
    "CTCLoss": ("blank", "zero_infinity", "reduction"),
    **dict.fromkeys(("CosineEmbeddingLoss", "MarginRankingLoss", "HingeEmbeddingLoss"), ("margin", "reduction")),
    "TripletMarginLoss": ("margin", "p", "eps", "swap", "reduction"),
    "MultiMarginLoss": ("p", "margin", "reduction"),
    "GaussianNLLLoss": ("full", "eps", "reduction"),
    "PoissonNLLLoss": ("log_input", "full", "eps", "reduction"),
    "Sequential": (),
    "ModuleList": (),
    "ModuleDict": (),
}


def settled(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with those that depend on another one in the form they take beside it.

    Changing only an Upsample's mode to "bilinear" makes its align_corners False; changing only a Pad's mode to
    "reflect" leaves it no value.
    """
    found = dict(settings)
    if kind == "Upsample":
        found["align_corners"] = bool(found["align_corners"]) if found["mode"] in INTERPOLATING else None
    elif kind == "Pad" and found["mode"] != "constant":
        found["value"] = None
    elif kind == "Pad" and found["value"] is None:
        found["value"] = 0.0
    return found


def told_as(kind: str, settings: Mapping[str, Any], other: str) -> Optional[dict[str, Any]]:
    """The settings of a layer of another kind that is the same, if there is such a one: an InstanceNorm is a GroupNorm
    of as many groups as channels, and ports say it so, as MindSpore has a kernel for it on a GPU alone; what draws its
    slope while a net learns has a fixed one afterwards.
    """
    if (kind, other) == ("RReLU", "LeakyReLU"):
        return {"negative_slope": (settings["lower"] + settings["upper"]) / 2}
    if (kind, other) != ("InstanceNorm", "GroupNorm") or settings.get("track_running_stats"):
        return None
    channels = settings["num_features"]
    told = {"num_groups": channels, "num_channels": channels}
    return {**told, "eps": settings["eps"], "affine": settings["affine"]}
