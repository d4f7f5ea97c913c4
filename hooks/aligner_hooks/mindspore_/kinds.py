"""Which of MindSpore's classes is which canonical kind, and how its settings are read."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from functools import cache
from typing import Any, Callable

from mindspore import mint, nn

from aligner.record import Attribute
from aligner.vocabulary import INTERPOLATING
from aligner_hooks.mindspore_ import losses, norms, windows

Attributes = dict[str, Attribute]
Read = Callable[[Any], Attributes]


def _nothing(_cell: Any) -> Attributes:
    return {}


def _same(**names: str) -> Read:
    """Settings that only have other names: canonical name = the cell's attribute."""
    return lambda cell: {canonical: _plain(getattr(cell, own)) for canonical, own in names.items()}


def _inside(primitive: str, **names: str) -> Read:
    """Settings that stand in a primitive of the cell only."""
    return lambda cell: {name: _plain(getattr(getattr(cell, primitive), own)) for name, own in names.items()}


def _plain(value: Any) -> Attribute:
    """Lists as tuples; the axis of a softmax, which its primitive keeps as (1,), as a number."""
    if isinstance(value, (list, tuple)):
        return tuple(_plain(item) for item in value)
    return value if isinstance(value, (bool, int, float, str, type(None))) else str(value)


def _axis(primitive: str) -> Read:
    def read(cell: Any) -> Attributes:
        axis = getattr(cell, primitive).axis
        return {"dim": axis[0] if isinstance(axis, tuple) and len(axis) == 1 else _plain(axis)}

    return read


def _linear(cell: Any) -> Attributes:
    return {"in_features": cell.in_channels, "out_features": cell.out_channels, "bias": cell.has_bias}


def _mint_linear(cell: Any) -> Attributes:
    return {"in_features": cell.in_features, "out_features": cell.out_features, "bias": cell.bias is not None}


def _bilinear(cell: Any) -> Attributes:
    return {
        "in1_features": cell.in1_channels,
        "in2_features": cell.in2_channels,
        "out_features": cell.out_channels,
        "bias": cell.has_bias,
    }


def _embedding(cell: Any) -> Attributes:
    return {
        "num_embeddings": cell.vocab_size,
        "embedding_dim": cell.embedding_size,
        "padding_idx": getattr(cell, "padding_idx", None),
    }


def dropout_rate(cell: Any) -> float:
    """The chance to drop: `p` where it was given, else what is left of `keep_prob`."""
    rate = getattr(cell, "p", None)
    if rate is None:
        rate = getattr(cell, "prob", None)
    return round(1.0 - cell.keep_prob, 12) if rate is None else float(rate)


def _dropout(cell: Any) -> Attributes:
    return {"p": dropout_rate(cell)}


def _rrelu(cell: Any) -> Attributes:
    return {name: _decimal(float(getattr(cell, name).asnumpy())) for name in ("lower", "upper")}


def _decimal(value: float) -> float:
    """The number that was meant: the cell keeps 1/3 as a float32."""
    near = Fraction(value).limit_denominator(1000)
    return float(near) if abs(float(near) - value) <= 1e-7 * abs(value) else float(f"{value:.7g}")


def upsample(cell: Any) -> Attributes:
    """Equal factors are one number, and align_corners=None is False where it matters, None where it does not."""
    interpolates = cell.mode in INTERPOLATING
    return {
        "size": _one_if_equal(cell.size),
        "scale_factor": _one_if_equal(cell.scale_factor),
        "mode": cell.mode,
        "align_corners": bool(cell.align_corners) if interpolates else None,
    }


def _one_if_equal(value: Any) -> Attribute:
    return _plain(value[0] if isinstance(value, (list, tuple)) and len(set(value)) == 1 else value)


def _pad(mode: str) -> Read:
    """The ready-made paddings, whose numbers start at the last axis as torch's do; reflection keeps pairs reversed."""

    def read(cell: Any) -> Attributes:
        found = cell.padding
        if isinstance(found, int):
            found = (found,) * (2 * int(type(cell).__name__[-2]))
        if found and isinstance(found[0], (list, tuple)):
            padding = [tuple(pair) for pair in reversed(found)]
        else:
            padding = [(found[at], found[at + 1]) for at in range(0, len(found), 2)]
        return _padding(padding, mode, getattr(cell, "value", 0.0))

    return read


def _general_pad(cell: Any) -> Attributes:
    """nn.Pad counts axes from the first."""
    pairs = cell.paddings.asnumpy().tolist() if hasattr(cell.paddings, "asnumpy") else cell.paddings
    padding = [tuple(int(number) for number in pair) for pair in reversed(pairs)]
    return _padding(padding, cell.mode.lower(), 0.0)


def _padding(pairs: list[Any], mode: str, value: float) -> Attributes:
    """Pairs from the last axis backwards, without those of axes that are not padded."""
    while pairs and pairs[-1] == (0, 0):
        pairs.pop()
    return {"padding": tuple(pairs), "mode": mode, "value": value if mode == "constant" else None}


def _recurrent(cell: Any) -> Attributes:
    found: Attributes = {
        "input_size": int(cell.w_ih_list[0].shape[1]),
        "hidden_size": cell.hidden_size,
        "num_layers": cell.num_layers,
        "bias": cell.has_bias,
        "batch_first": cell.batch_first,
        "dropout": float(cell.dropout),
        "bidirectional": cell.bidirectional,
    }
    inside = type(cell.rnn).__name__.lower()
    for word in ("relu", "tanh"):
        if word in inside:  # of nn.RNN
            found["nonlinearity"] = word
    return found


def _recurrent_cell(cell: Any) -> Attributes:
    found: Attributes = {"input_size": cell.input_size, "hidden_size": cell.hidden_size, "bias": cell.has_bias}
    if hasattr(cell, "nonlinearity"):  # nn.RNNCell
        found["nonlinearity"] = cell.nonlinearity
    return found


def _attention(cell: Any) -> Attributes:
    return {
        "embed_dim": cell.embed_dim,
        "num_heads": cell.num_heads,
        "dropout": float(cell.dropout),
        "bias": cell.in_proj_bias is not None,
        "batch_first": cell.batch_first,
        "kdim": cell.kdim,
        "vdim": cell.vdim,
    }


def _transformer_layer(cell: Any) -> Attributes:
    # `activation1` is what the constructor was given: a word, a cell or a function.
    given = cell.activation1
    activation = given if isinstance(given, str) else getattr(given, "__name__", type(given).__name__)
    return {
        "d_model": cell.d_model,
        "nhead": cell.nhead,
        "dim_feedforward": cell.dim_feedforward,
        "dropout": float(cell.dropout_num),
        "activation": activation.lower(),
        "eps": cell.layernorm_eps,
        "batch_first": cell.batch_first,
        "norm_first": cell.norm_first,
    }


def _mint_norm(cell: Any) -> Attributes:
    names = ("num_features", "eps", "momentum", "affine", "track_running_stats")
    return {name: _plain(getattr(cell, name)) for name in names}


# Classes of mindspore.nn: the class's name -> kind, reader. Names a MindSpore does not have are passed over.
NN: Mapping[str, tuple[str, Read]] = {
    **{f"Conv{n}d": (f"Conv{n}d", windows.convolution(n)) for n in (1, 2, 3)},
    **{f"Conv{n}dTranspose": (f"ConvTranspose{n}d", windows.transposed(n)) for n in (1, 2, 3)},
    **{f"MaxPool{n}d": (f"MaxPool{n}d", windows.pooling(n, True)) for n in (1, 2, 3)},
    **{f"AvgPool{n}d": (f"AvgPool{n}d", windows.pooling(n, False)) for n in (1, 2, 3)},
    **{
        f"Adaptive{which}Pool{n}d": (f"Adaptive{which}Pool{n}d", windows.adaptive(n))
        for which in ("Avg", "Max")
        for n in (1, 2, 3)
    },
    **{f"BatchNorm{n}d": ("BatchNorm", norms.batch_norm) for n in (1, 2, 3)},
    "SyncBatchNorm": ("BatchNorm", norms.batch_norm),
    **{f"InstanceNorm{n}d": ("InstanceNorm", norms.instance_norm) for n in (1, 2, 3)},
    "LayerNorm": ("LayerNorm", norms.layer_norm),
    "GroupNorm": ("GroupNorm", norms.group_norm),
    "LRN": ("LocalResponseNorm", norms.local_response_norm),
    "Dense": ("Linear", _linear),
    "BiDense": ("Bilinear", _bilinear),
    "Embedding": ("Embedding", _embedding),
    "EmbeddingLookup": ("Embedding", _embedding),
    "Dropout": ("Dropout", _dropout),
    **{f"Dropout{n}d": ("Dropout", _dropout) for n in (1, 2, 3)},
    **{name: (name, _nothing) for name in ("ReLU", "ReLU6", "SiLU", "Mish", "Softsign", "Sigmoid", "LogSigmoid")},
    **{name: (name, _nothing) for name in ("Tanh", "Tanhshrink", "Identity", "Transformer")},
    "SeLU": ("SELU", _nothing),
    "HSwish": ("Hardswish", _nothing),
    "HSigmoid": ("Hardsigmoid", _nothing),
    "LeakyReLU": ("LeakyReLU", _same(negative_slope="alpha")),
    "PReLU": ("PReLU", lambda cell: {"num_parameters": int(cell.w.shape[0])}),
    "RReLU": ("RReLU", _rrelu),
    "ELU": ("ELU", _inside("elu", alpha="alpha")),
    "CELU": ("CELU", _inside("celu", alpha="alpha")),
    "GELU": ("GELU", _same(approximate="approximate")),
    "Hardtanh": ("Hardtanh", _same(min_val="min_val", max_val="max_val")),
    "HShrink": ("Hardshrink", _inside("hshrink", lambd="lambd")),
    "SoftShrink": ("Softshrink", _inside("softshrink", lambd="lambd")),
    "Threshold": ("Threshold", _same(threshold="threshold", value="value")),
    "GLU": ("GLU", _same(dim="dim")),
    "Softmax": ("Softmax", _axis("softmax")),
    "Softmax2d": ("Softmax", _axis("softmax")),
    "LogSoftmax": ("LogSoftmax", _axis("log_softmax")),
    "Softmin": ("Softmin", _same(dim="axis")),
    "Flatten": ("Flatten", _same(start_dim="start_dim", end_dim="end_dim")),
    "Unflatten": ("Unflatten", _same(dim="axis", unflattened_size="unflattened_size")),
    "Upsample": ("Upsample", upsample),
    "PixelShuffle": ("PixelShuffle", _same(upscale_factor="upscale_factor")),
    "PixelUnshuffle": ("PixelUnshuffle", _same(downscale_factor="downscale_factor")),
    "Pad": ("Pad", _general_pad),
    **{f"ConstantPad{n}d": ("Pad", _pad("constant")) for n in (1, 2, 3)},
    "ZeroPad2d": ("Pad", _pad("constant")),
    **{f"ReflectionPad{n}d": ("Pad", _pad("reflect")) for n in (1, 2, 3)},
    **{f"ReplicationPad{n}d": ("Pad", _pad("replicate")) for n in (1, 2, 3)},
    "Unfold": ("Unfold", windows.unfold),
    **{name: (name, _recurrent) for name in ("LSTM", "GRU", "RNN")},
    **{name: (name, _recurrent_cell) for name in ("LSTMCell", "GRUCell", "RNNCell")},
    "MultiheadAttention": ("MultiheadAttention", _attention),
    **{f"Transformer{part}Layer": (f"Transformer{part}Layer", _transformer_layer) for part in ("Encoder", "Decoder")},
    **{f"Transformer{part}": (f"Transformer{part}", _same(num_layers="num_layers")) for part in ("Encoder", "Decoder")},
    "SequentialCell": ("Sequential", _nothing),
    "CellList": ("ModuleList", _nothing),
    "CellDict": ("ModuleDict", _nothing),
    **losses.NN,
}

# Classes of mindspore.mint.nn, where they are not those of mindspore.nn.
MINT: Mapping[str, tuple[str, Read]] = {
    **{f"Conv{n}d": (f"Conv{n}d", windows.mint_convolution(n)) for n in (1, 2, 3)},
    "ConvTranspose2d": ("ConvTranspose2d", windows.mint_convolution(2)),
    "MaxPool2d": ("MaxPool2d", windows.mint_pooling(2, True)),
    **{f"AvgPool{n}d": (f"AvgPool{n}d", windows.mint_pooling(n, False)) for n in (1, 2, 3)},
    **{
        f"Adaptive{which}Pool{n}d": (f"Adaptive{which}Pool{n}d", windows.adaptive(n))
        for which in ("Avg", "Max")
        for n in (1, 2, 3)
    },
    **{f"BatchNorm{n}d": ("BatchNorm", _mint_norm) for n in (1, 2, 3)},
    "SyncBatchNorm": ("BatchNorm", _mint_norm),
    "LayerNorm": ("LayerNorm", norms.mint_layer_norm),
    "GroupNorm": ("GroupNorm", norms.group_norm),
    "Linear": ("Linear", _mint_linear),
    "Embedding": ("Embedding", _same(**{name: name for name in ("num_embeddings", "embedding_dim", "padding_idx")})),
    "Dropout": ("Dropout", _dropout),
    "Dropout2d": ("Dropout", _dropout),
    **{name: (name, _nothing) for name in ("ReLU", "ReLU6", "SiLU", "SELU", "Mish", "Sigmoid", "LogSigmoid", "Tanh")},
    **{name: (name, _nothing) for name in ("Hardswish", "Hardsigmoid", "Identity")},
    "PReLU": ("PReLU", lambda cell: {"num_parameters": int(cell.weight.shape[0])}),
    "ELU": ("ELU", _same(alpha="alpha")),
    "GELU": ("GELU", _same(approximate="approximate")),
    "Hardtanh": ("Hardtanh", _same(min_val="min_val", max_val="max_val")),
    "Hardshrink": ("Hardshrink", _inside("hshrink", lambd="lambd")),
    "Softshrink": ("Softshrink", _inside("softshrink", lambd="lambd")),
    "Threshold": ("Threshold", _same(threshold="threshold", value="value")),
    **{name: (name, _same(dim="dim")) for name in ("GLU", "Softmax", "LogSoftmax")},
    "Flatten": ("Flatten", _same(start_dim="start_dim", end_dim="end_dim")),
    "Upsample": ("Upsample", upsample),
    "PixelShuffle": ("PixelShuffle", _same(upscale_factor="upscale_factor")),
    **{f"ConstantPad{n}d": ("Pad", _pad("constant")) for n in (1, 2, 3)},
    **{f"ZeroPad{n}d": ("Pad", _pad("constant")) for n in (1, 2, 3)},
    **{f"ReflectionPad{n}d": ("Pad", _pad("reflect")) for n in (1, 2, 3)},
    **{f"ReplicationPad{n}d": ("Pad", _pad("replicate")) for n in (1, 2, 3)},
    "Unfold": ("Unfold", windows.unfold),
    **losses.MINT,
}


@cache
def table() -> Mapping[type, tuple[str, Read]]:
    """Class -> kind and reader. Where mint has nn's own class, nn's reader goes first."""
    found: dict[type, tuple[str, Read]] = {}
    for home, names in ((nn, NN), (getattr(mint, "nn", None), MINT)):
        for name, entry in names.items():
            kind = getattr(home, name, None)
            if isinstance(kind, type):
                found.setdefault(kind, entry)
    return found
