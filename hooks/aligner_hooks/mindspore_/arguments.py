"""What the constructors of MindSpore's layers want to be given for settings in canonical words.

The other direction of `kinds`. A writer gets the class's name, the cell it starts from (for what the vocabulary has
no word for) and the settings wanted, and gives one recipe or more: the first that reads as wanted is taken.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from mindspore import mint, nn

from aligner_hooks.mindspore_ import kinds, losses
from aligner_hooks.mindspore_ import window_arguments as windows
from aligner_hooks.mindspore_.norm_arguments import (
    batch_norm,
    group_norm,
    instance_norm,
    layer_norm,
    local_response_norm,
    mint_layer_norm,
)
from aligner_hooks.mindspore_.window_arguments import Attributes, Recipe, Write


def _renamed(*same: str, **names: str) -> Write:
    """Settings that only have other names: the constructor's argument = canonical name."""

    def write(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
        yield Recipe(name, {**{each: wanted[each] for each in same}, **{own: wanted[c] for own, c in names.items()}})

    return write


_nothing = _renamed()
_dense = _renamed(in_channels="in_features", out_channels="out_features", has_bias="bias")
_dropout = _renamed("p")


def _embedding(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    given = {"vocab_size": wanted["num_embeddings"], "embedding_size": wanted["embedding_dim"]}
    if wanted["padding_idx"] is not None:
        given["padding_idx"] = wanted["padding_idx"]
    if cell.use_one_hot:
        given["use_one_hot"] = True
    yield Recipe(name, given)


def _embedding_lookup(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    given: dict[str, Any] = {"vocab_size": wanted["num_embeddings"], "embedding_size": wanted["embedding_dim"]}
    if cell.max_norm is not None:
        given["max_norm"] = float(cell.max_norm)
    yield Recipe(name, given)


def _gelu(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """nn's takes a bool, mint's the word."""
    yield Recipe(name, {"approximate": wanted["approximate"] == "tanh"})


def _softmax(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    yield Recipe(name, {"axis": wanted["dim"]})


def _softmax2d(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    yield Recipe(name, {})
    yield from _softmax("Softmax", cell, wanted)


def _upsample(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """From a factor nn's needs the size worked out beforehand, in most modes."""
    for recipe in _mint_upsample(name, cell, wanted):
        if "scale_factor" in recipe.arguments and wanted != kinds.upsample(cell):
            recipe.arguments["recompute_scale_factor"] = True
        yield recipe


def _mint_upsample(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    given = {word: value for word, value in wanted.items() if value is not None}
    if "scale_factor" in given and cell.recompute_scale_factor is not None:
        given["recompute_scale_factor"] = cell.recompute_scale_factor
    yield Recipe(name, given)


def _pad(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """The cell's own class where it can, else the one for the mode, which is named by the axes it pads."""
    pairs: Any = wanted["padding"]
    mode, value = wanted["mode"], wanted["value"]
    own = int(name[-2]) if name[-2].isdigit() else 1
    axes = max(own, len(pairs))
    flat = tuple(number for pair in (*pairs, *((0, 0),) * (axes - len(pairs))) for number in pair)
    if name == "Pad":
        missing = len(cell.paddings) - len(pairs)
        yield Recipe(name, {"paddings": ((0, 0),) * missing + tuple(reversed(pairs)), "mode": str(mode).upper()})
    if mode == "constant":
        yield Recipe(f"ZeroPad{axes}d", {"padding": flat})
        yield Recipe(f"ConstantPad{axes}d", {"padding": flat, "value": value})
    stem = {"reflect": "ReflectionPad", "replicate": "ReplicationPad"}.get(str(mode))
    if stem is not None:
        yield Recipe(f"{stem}{axes}d", {"padding": flat})


# The recurrent layers' signatures do not tell what need not be said.
_PLAIN_RECURRENT = {
    "num_layers": 1,
    "bias": True,
    "batch_first": False,
    "dropout": 0.0,
    "bidirectional": False,
    "nonlinearity": "tanh",
}


def _recurrent(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    said = {
        word: value for word, value in wanted.items() if word not in _PLAIN_RECURRENT or value != _PLAIN_RECURRENT[word]
    }
    yield Recipe(name, {("has_bias" if word == "bias" else word): value for word, value in said.items()})


def _attention(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    given: dict[str, Any] = {("has_bias" if word == "bias" else word): value for word, value in wanted.items()}
    for word in ("kdim", "vdim"):
        if given[word] == given["embed_dim"]:
            del given[word]
    if cell.bias_k is not None:
        given["add_bias_kv"] = True
    if cell.add_zero_attn:
        given["add_zero_attn"] = True
    yield Recipe(name, given)


def _transformer_layer(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    given: dict[str, Any] = {("layer_norm_eps" if word == "eps" else word): value for word, value in wanted.items()}
    own = cell.activation1
    if not isinstance(own, str) and given["activation"] == getattr(own, "__name__", type(own).__name__).lower():
        given["activation"] = own
    yield Recipe(name, given)


def _stack(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """TransformerEncoder and TransformerDecoder copy one layer."""
    given = {name[len("Transformer") :].lower() + "_layer": cell.layers[0], "num_layers": wanted["num_layers"]}
    if cell.norm is not None:
        given["norm"] = cell.norm
    yield Recipe(name, given)


def _transformer(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    stacks = (cell.encoder, cell.decoder)
    if not all(type(stack) is getattr(nn, f"Transformer{part}") for stack, part in zip(stacks, ("Encoder", "Decoder"))):
        raise ValueError("its encoder or decoder is of a class of the user's own")
    layer = cell.encoder.layers[0]
    given = {"d_model": cell.d_model, "nhead": cell.nhead}
    given.update(num_encoder_layers=cell.encoder.num_layers, num_decoder_layers=cell.decoder.num_layers)
    given.update(dim_feedforward=layer.dim_feedforward, dropout=layer.dropout_num, activation=layer.activation1)
    given.update(layer_norm_eps=layer.layernorm_eps, batch_first=cell.batch_first, norm_first=layer.norm_first)
    yield Recipe(name, given)


# Classes of mindspore.nn by their names. Containers are spelled by `construction`.
NN: Mapping[str, Write] = {
    **{f"Conv{n}d": windows.convolution(n) for n in (1, 2, 3)},
    **{f"Conv{n}dTranspose": windows.transposed(n) for n in (1, 2, 3)},
    **{f"MaxPool{n}d": windows.pooling(n, True) for n in (1, 2, 3)},
    **{f"AvgPool{n}d": windows.pooling(n, False) for n in (1, 2, 3)},
    **{f"Adaptive{which}Pool{n}d": windows.adaptive for which in ("Avg", "Max") for n in (1, 2, 3)},
    **{f"BatchNorm{n}d": batch_norm for n in (1, 2, 3)},
    "SyncBatchNorm": batch_norm,
    **{f"InstanceNorm{n}d": instance_norm for n in (1, 2, 3)},
    "LayerNorm": layer_norm,
    "GroupNorm": group_norm,
    "LRN": local_response_norm,
    "Dense": _dense,
    "BiDense": _renamed(
        in1_channels="in1_features", in2_channels="in2_features", out_channels="out_features", has_bias="bias"
    ),
    "Embedding": _embedding,
    "EmbeddingLookup": _embedding_lookup,
    "Dropout": _dropout,
    **{f"Dropout{n}d": _dropout for n in (1, 2, 3)},
    **dict.fromkeys(("ReLU", "ReLU6", "SiLU", "Mish", "Softsign", "Sigmoid", "LogSigmoid"), _nothing),
    **dict.fromkeys(("Tanh", "Tanhshrink", "Identity", "SeLU", "HSwish", "HSigmoid"), _nothing),
    "LeakyReLU": _renamed(alpha="negative_slope"),
    "PReLU": _renamed(channel="num_parameters"),
    "RReLU": _renamed("lower", "upper"),
    "ELU": _renamed("alpha"),
    "CELU": _renamed("alpha"),
    "GELU": _gelu,
    "Hardtanh": _renamed("min_val", "max_val"),
    "HShrink": _renamed("lambd"),
    "SoftShrink": _renamed("lambd"),
    "Threshold": _renamed("threshold", "value"),
    "GLU": _softmax,
    "Softmax": _softmax,
    "Softmax2d": _softmax2d,
    "LogSoftmax": _softmax,
    "Softmin": _softmax,
    "Flatten": _renamed("start_dim", "end_dim"),
    "Unflatten": _renamed("unflattened_size", axis="dim"),
    "Upsample": _upsample,
    "PixelShuffle": _renamed("upscale_factor"),
    "PixelUnshuffle": _renamed("downscale_factor"),
    "Pad": _pad,
    **{f"{stem}{n}d": _pad for stem in ("ConstantPad", "ReflectionPad", "ReplicationPad") for n in (1, 2, 3)},
    "ZeroPad2d": _pad,
    "Unfold": windows.unfold,
    **dict.fromkeys(("LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"), _recurrent),
    "MultiheadAttention": _attention,
    **dict.fromkeys(("TransformerEncoderLayer", "TransformerDecoderLayer"), _transformer_layer),
    **dict.fromkeys(("TransformerEncoder", "TransformerDecoder"), _stack),
    "Transformer": _transformer,
    **losses.writers(losses.NN),
}

_NORM = ("num_features", "eps", "momentum", "affine", "track_running_stats")

# Classes of mindspore.mint.nn, where they are not those of mindspore.nn.
MINT: Mapping[str, Write] = {
    **{f"Conv{n}d": windows.mint_convolution(n) for n in (1, 2, 3)},
    "ConvTranspose2d": windows.mint_convolution(2),
    "MaxPool2d": windows.mint_pooling(2, True),
    **{f"AvgPool{n}d": windows.mint_pooling(n, False) for n in (1, 2, 3)},
    **{f"Adaptive{which}Pool{n}d": windows.adaptive for which in ("Avg", "Max") for n in (1, 2, 3)},
    **{f"BatchNorm{n}d": _renamed(*_NORM) for n in (1, 2, 3)},
    "SyncBatchNorm": _renamed(*_NORM),
    "LayerNorm": mint_layer_norm,
    "GroupNorm": group_norm,
    "Linear": _renamed("in_features", "out_features", "bias"),
    "Embedding": _renamed("num_embeddings", "embedding_dim", "padding_idx"),
    **dict.fromkeys(("Dropout", "Dropout2d"), _dropout),
    **dict.fromkeys(("ReLU", "ReLU6", "SiLU", "SELU", "Mish", "Sigmoid", "LogSigmoid", "Tanh"), _nothing),
    **dict.fromkeys(("Hardswish", "Hardsigmoid", "Identity"), _nothing),
    "PReLU": _renamed("num_parameters"),
    "ELU": _renamed("alpha"),
    "GELU": _renamed("approximate"),
    "Hardtanh": _renamed("min_val", "max_val"),
    **dict.fromkeys(("Hardshrink", "Softshrink"), _renamed("lambd")),
    "Threshold": _renamed("threshold", "value"),
    **dict.fromkeys(("GLU", "Softmax", "LogSoftmax"), _renamed("dim")),
    "Flatten": _renamed("start_dim", "end_dim"),
    "Upsample": _mint_upsample,
    "PixelShuffle": _renamed("upscale_factor"),
    **{
        f"{stem}{n}d": _pad for stem in ("ConstantPad", "ZeroPad", "ReflectionPad", "ReplicationPad") for n in (1, 2, 3)
    },
    "Unfold": windows.mint_unfold,
    **losses.writers(losses.MINT),
}


@cache
def table() -> Mapping[type, tuple[str, str, Write]]:
    """Class -> its home as users write it, its name there, and its writer; nn's own go first."""
    found: dict[type, tuple[str, str, Write]] = {}
    for home, module, names in (("nn", nn, NN), ("mint.nn", getattr(mint, "nn", None), MINT)):
        for name, write in names.items():
            kind = getattr(module, name, None)
            if isinstance(kind, type):
                found.setdefault(kind, (home, name, write))
    return found
