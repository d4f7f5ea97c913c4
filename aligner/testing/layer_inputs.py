"""Inputs for single layers of the vocabulary's kinds, made from their settings alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from aligner.record import LayerSpec

Shape = tuple[int, ...]

_ELEMENTWISE = (
    "ReLU",
    "ReLU6",
    "LeakyReLU",
    "PReLU",
    "RReLU",
    "ELU",
    "CELU",
    "SELU",
    "GELU",
    "SiLU",
    "Mish",
    "Hardswish",
    "Hardsigmoid",
    "Hardtanh",
    "Hardshrink",
    "Softshrink",
    "Softplus",
    "Softsign",
    "Threshold",
    "Sigmoid",
    "LogSigmoid",
    "Tanh",
    "Tanhshrink",
    "GLU",
    "Softmax",
    "LogSoftmax",
    "Softmin",
    "Flatten",
    "Identity",
    "LocalResponseNorm",
    "Sequential",
)
_PLAIN: Shape = (2, 4, 4, 4)


def inputs(spec: LayerSpec, type_name: str) -> Optional[tuple[Any, ...]]:
    """Arrays to call such a layer with, or None for a kind whose settings do not tell what it takes.

    `type_name` tells how many axes a BatchNorm or a Dropout is made for.
    """
    if spec.kind == "Embedding":
        return (np.array([0, 2, 1, 2], np.int32),)
    shapes = _shapes(spec.kind, spec.attributes, _axes(type_name))
    generator = np.random.default_rng(len(spec.kind))
    return shapes and tuple(generator.standard_normal(shape).astype(np.float32) for shape in shapes)


def _axes(type_name: str) -> int:
    found = re.search(r"([123])d", type_name.lower())
    return int(found.group(1)) if found else 0


def _shapes(kind: str, settings: Mapping[str, Any], axes: int) -> Optional[tuple[Shape, ...]]:
    if kind in _ELEMENTWISE:
        return (_PLAIN,)
    image: Shape = (6,) * (axes or 2)
    if kind.startswith("Conv"):
        return ((2, settings["in_channels"], *image),)
    if "Pool" in kind or kind in ("Dropout", "Pad", "Upsample", "Unfold"):
        return ((2, 4, *image),)
    if kind in ("BatchNorm", "InstanceNorm"):
        return ((2, settings["num_features"], *image),)
    return _other_shapes(kind, settings)


def _other_shapes(kind: str, settings: Mapping[str, Any]) -> Optional[tuple[Shape, ...]]:
    if kind == "Linear":
        return ((3, settings["in_features"]),)
    if kind == "Bilinear":
        return (3, settings["in1_features"]), (3, settings["in2_features"])
    if kind in ("LayerNorm", "RMSNorm"):
        return ((3, *settings["normalized_shape"]),)
    if kind == "GroupNorm":
        return ((2, settings["num_channels"], 4, 4),)
    if kind == "Unflatten":
        return ((2, int(np.prod(settings["unflattened_size"]))),)
    if kind == "PixelShuffle":
        return ((2, 2 * settings["upscale_factor"] ** 2, 3, 3),)
    if kind == "PixelUnshuffle":
        return ((2, 2, 2 * settings["downscale_factor"], 2 * settings["downscale_factor"]),)
    if kind in ("LSTM", "GRU", "RNN"):
        return ((5, 2, settings["input_size"]),)
    if kind.endswith("Cell"):
        return ((2, settings["input_size"]),)
    if kind == "MultiheadAttention":
        return ((3, 2, settings["embed_dim"]),) * 3
    if kind == "TransformerEncoderLayer":
        return ((3, 2, settings["d_model"]),)
    if kind == "TransformerDecoderLayer":
        return ((3, 2, settings["d_model"]),) * 2
    return None
