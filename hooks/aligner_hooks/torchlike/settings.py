"""Settings of layers that need more than a look: paddings, pools, norms, attention.

Each function here takes a layer and returns its settings in the forms that aligner.vocabulary defines.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np

from aligner.record import Attribute
from aligner.vocabulary import INTERPOLATING

Settings = Mapping[str, Attribute]

RECURRENT = ("input_size", "hidden_size", "num_layers", "bias", "batch_first", "dropout", "bidirectional")
CELL = ("input_size", "hidden_size", "bias")

PADDERS: dict[str, tuple[str, ...]] = {
    "constant": tuple(f"{name}{n}d" for name in ("ConstantPad", "ZeroPad") for n in (1, 2, 3)),
    "reflect": tuple(f"ReflectionPad{n}d" for n in (1, 2, 3)),
    "replicate": tuple(f"ReplicationPad{n}d" for n in (1, 2, 3)),
    "circular": tuple(f"CircularPad{n}d" for n in (1, 2, 3)),
}

# The distance from 1 to the next number.
_SPACING = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}
_LONGEST_WORD = 200
_MOST_ATTRIBUTES = 64


def recurrent(*more: str) -> Callable[[Any], Settings]:
    """A recurrent layer; mindnlp's do not keep how wide their input is, and their weights tell."""

    def read(layer: Any) -> Settings:
        found = {name: plain(getattr(layer, name)) for name in (*RECURRENT[1:], *more)}
        width = getattr(layer, "input_size", None)
        return {"input_size": plain(layer.weight_ih_l0.shape[1] if width is None else width), **found}

    return read


def is_transposed_linear(layer: Any) -> bool:
    """Whether the layer is the Conv1D of Hugging Face transformers (GPT-2), a Linear with its weight transposed."""
    return any(
        base.__name__ == "Conv1D" and base.__module__.partition(".")[0] == "transformers"
        for base in type(layer).__mro__
    )


def transposed_linear(layer: Any) -> Mapping[str, Attribute]:
    """Settings of such a layer in a Linear's words."""
    inside, outside = layer.weight.shape
    return {"in_features": int(inside), "out_features": int(outside), "bias": layer.bias is not None}


def plain(value: Any) -> Attribute:
    """A number, word, None or tuple of them from whatever a layer holds: numpy and torch scalars, lists, sizes."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, (tuple, list)):
        return tuple(plain(item) for item in value)
    for known in (bool, int, float, str):
        if isinstance(value, known):
            return known(value)
    if hasattr(value, "item") and getattr(value, "ndim", 1) == 0 and not getattr(value, "is_meta", False):
        return plain(value.item())
    return str(value)


def plain_own(layer: Any, of_every_module: Container[str] = ("training",)) -> Settings:
    """The public plain attributes of a layer of the user's own, without those that every module has."""
    found: dict[str, Attribute] = {}
    for name, value in vars(layer).items():
        if name.startswith("_") or name in of_every_module or not _is_plain(value):
            continue
        found[name] = plain(value)
        if len(found) == _MOST_ATTRIBUTES:
            break
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, str):
        return len(value) <= _LONGEST_WORD
    if isinstance(value, (tuple, list)):
        return 0 < len(value) <= 16 and all(_is_plain(item) and not isinstance(item, (tuple, list)) for item in value)
    return isinstance(value, (bool, int, float, np.bool_, np.number))


def per_axis(value: Any, axes: int) -> tuple[Any, ...]:
    """One entry for each axis, from one number for all or from a sequence."""
    return tuple(plain(item) for item in value) if isinstance(value, (tuple, list)) else (plain(value),) * axes


def both_sides(value: Any, axes: int) -> tuple[tuple[Any, Any], ...]:
    """(before, after) pairs from symmetric padding."""
    return tuple((amount, amount) for amount in per_axis(value, axes))


def with_bias(*names: str) -> Callable[[Any], Settings]:
    """Settings of the same names, and whether there is a bias."""

    def read(layer: Any) -> Settings:
        return {**{name: plain(getattr(layer, name)) for name in names}, "bias": layer.bias is not None}

    return read


def convolution(layer: Any) -> Settings:
    """A convolution; padding="same" is said in numbers, with the odd element after, as torch puts it."""
    axes = len(layer.kernel_size)
    if layer.padding == "same":
        totals = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size)]
        padding: Any = tuple((total // 2, total - total // 2) for total in totals)
    else:
        padding = both_sides(0 if layer.padding == "valid" else layer.padding, axes)
    return {
        "in_channels": plain(layer.in_channels),
        "out_channels": plain(layer.out_channels),
        "kernel_size": per_axis(layer.kernel_size, axes),
        "stride": per_axis(layer.stride, axes),
        "padding": padding,
        "dilation": per_axis(layer.dilation, axes),
        "groups": plain(layer.groups),
        "bias": layer.bias is not None,
        "padding_mode": plain(layer.padding_mode),
    }


def transposed_convolution(layer: Any) -> Settings:
    """A transposed convolution."""
    return {**convolution(layer), "output_padding": per_axis(layer.output_padding, len(layer.kernel_size))}


def _pool(layer: Any, axes: int) -> dict[str, Attribute]:
    stride = layer.kernel_size if layer.stride is None else layer.stride
    return {
        "kernel_size": per_axis(layer.kernel_size, axes),
        "stride": per_axis(stride, axes),
        "padding": both_sides(layer.padding, axes),
        "ceil_mode": bool(layer.ceil_mode),
    }


def max_pool(axes: int) -> Callable[[Any], Settings]:
    """Max pooling."""
    return lambda layer: {**_pool(layer, axes), "dilation": per_axis(layer.dilation, axes)}


def average_pool(axes: int) -> Callable[[Any], Settings]:
    """Average pooling."""
    return lambda layer: {**_pool(layer, axes), "count_include_pad": bool(layer.count_include_pad)}


def adaptive_pool(axes: int) -> Callable[[Any], Settings]:
    """Adaptive pooling; None keeps an axis as it is."""
    return lambda layer: {"output_size": per_axis(layer.output_size, axes)}


def rms_norm(layer: Any) -> Settings:
    """RMSNorm; eps=None means the spacing of the dtype at 1, so that is said."""
    eps = layer.eps
    if eps is None:
        weight = layer.weight
        eps = _SPACING["float32" if weight is None else str(weight.dtype).rpartition(".")[2]]
    return {
        "normalized_shape": plain(layer.normalized_shape),
        "eps": plain(eps),
        "affine": bool(layer.elementwise_affine),
    }


def unflatten(layer: Any) -> Settings:
    """Unflatten by number; a named shape keeps its names."""
    return {"dim": plain(layer.dim), "unflattened_size": plain(layer.unflattened_size)}


def upsample(layer: Any) -> Settings:
    """Upsample; equal factors for all axes are one number, and align_corners=None means False where it matters."""
    interpolates = layer.mode in INTERPOLATING
    return {
        "size": _one_if_equal(layer.size),
        "scale_factor": _one_if_equal(layer.scale_factor),
        "mode": plain(layer.mode),
        "align_corners": bool(layer.align_corners) if interpolates else None,
    }


def _one_if_equal(value: Any) -> Attribute:
    if isinstance(value, (tuple, list)) and len(set(value)) == 1:
        value = value[0]
    return plain(value)


def padder(mode: str) -> Callable[[Any], Settings]:
    """Padding layers: pairs from the last axis backwards, without pairs of zeros at the end."""

    def read(layer: Any) -> Settings:
        amounts = [plain(amount) for amount in layer.padding]
        pairs = list(zip(amounts[::2], amounts[1::2]))
        while pairs and pairs[-1] == (0, 0):
            pairs.pop()
        value = plain(getattr(layer, "value", 0.0)) if mode == "constant" else None
        return {"padding": tuple(pairs), "mode": mode, "value": value}

    return read


def unfold(layer: Any) -> Settings:
    """Unfold, which has two axes always."""
    return {
        "kernel_size": per_axis(layer.kernel_size, 2),
        "stride": per_axis(layer.stride, 2),
        "padding": both_sides(layer.padding, 2),
        "dilation": per_axis(layer.dilation, 2),
    }


def attention(layer: Any) -> Settings:
    """Multi-head attention."""
    return {
        "embed_dim": plain(layer.embed_dim),
        "num_heads": plain(layer.num_heads),
        "dropout": plain(layer.dropout),
        "bias": layer.in_proj_bias is not None,
        "batch_first": bool(layer.batch_first),
        "kdim": plain(layer.kdim),
        "vdim": plain(layer.vdim),
    }


def transformer_layer(layer: Any) -> Settings:
    """An encoder or decoder layer, whose settings stand in the layers inside it."""
    return {
        "d_model": plain(layer.self_attn.embed_dim),
        "nhead": plain(layer.self_attn.num_heads),
        "dim_feedforward": plain(layer.linear1.out_features),
        "dropout": plain(layer.dropout.p),
        "activation": _activation(layer.activation),
        "eps": plain(layer.norm1.eps),
        "batch_first": bool(layer.self_attn.batch_first),
        "norm_first": bool(layer.norm_first),
    }


def _activation(value: Any) -> str:
    """The word for an activation given as a function or a layer, which has no name of its own: "relu", "gelu"."""
    return str(getattr(value, "__name__", type(value).__name__.lower()))
