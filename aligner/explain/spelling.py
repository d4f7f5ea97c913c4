"""How a port writes the reference's settings: MindSpore's words for the canonical ones.

The vocabulary speaks torch, and who mends a port types MindSpore. Data first; what one word cannot say (a momentum
that is kept and not given, a padding with its mode) has a function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Optional

from aligner.record import Attribute, LayerSpec
from aligner.vocabulary import KINDS

CLASSES: Mapping[str, str] = {
    **{f"ConvTranspose{n}d": f"nn.Conv{n}dTranspose" for n in (1, 2, 3)},
    "Linear": "nn.Dense",
    "Bilinear": "nn.BiDense",
    "RMSNorm": "ops.rms_norm",
    "LocalResponseNorm": "nn.LRN",
    "SELU": "nn.SeLU",
    "Hardswish": "nn.HSwish",
    "Hardsigmoid": "nn.HSigmoid",
    "Hardshrink": "nn.HShrink",
    "Softshrink": "nn.SoftShrink",
    "Softplus": "ops.softplus",
    "Sequential": "nn.SequentialCell",
    "ModuleList": "nn.CellList",
    "ModuleDict": "nn.CellDict",
}
"""Kind -> MindSpore's class, where it is not nn.<kind>."""

WORDS: Mapping[str, Mapping[str, str]] = {
    "": {"bias": "has_bias", "groups": "group", "eps": "epsilon", "dim": "axis"},
    "BatchNorm": {"eps": "eps"},
    "InstanceNorm": {"eps": "eps"},
    "GroupNorm": {"eps": "eps"},
    "LeakyReLU": {"negative_slope": "alpha"},
    "PReLU": {"num_parameters": "channel"},
    "Linear": {"in_features": "in_channels", "out_features": "out_channels"},
    "Bilinear": {"in1_features": "in1_channels", "in2_features": "in2_channels", "out_features": "out_channels"},
    "Embedding": {"num_embeddings": "vocab_size", "embedding_dim": "embedding_size"},
    "TransformerEncoderLayer": {"eps": "layer_norm_eps"},
    "TransformerDecoderLayer": {"eps": "layer_norm_eps"},
    "Unfold": {"kernel_size": "ksizes", "stride": "strides", "dilation": "rates"},
}
"""Kind -> canonical setting -> MindSpore's keyword; "" holds for every kind without a word of its own."""

ROLES: Mapping[str, Mapping[str, str]] = {
    **{kind: {"weight": "gamma", "bias": "beta"} for kind in ("LayerNorm", "GroupNorm", "RMSNorm")},
    **{
        kind: {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
        for kind in ("BatchNorm", "InstanceNorm")
    },
    "Embedding": {"weight": "embedding_table"},
    "PReLU": {"weight": "w"},
}
"""Kind -> canonical role of a parameter -> MindSpore's name."""

POOLS = ("MaxPool", "AvgPool")
"""Kinds that are told once for both sides of an axis how it is padded."""

Keywords = dict[str, Attribute]
Written = Callable[[LayerSpec, Optional[int]], Keywords]


def literal(value: Attribute) -> str:
    """The value as Python writes it; a float with no more digits than a person would."""
    if isinstance(value, (tuple, list)):
        inside = ", ".join(literal(item) for item in value)
        return f"({inside},)" if len(value) == 1 else f"({inside})"
    if isinstance(value, float):
        exact = repr(value)
        return exact if len(exact) <= len("0.0001234") else f"{value:.8g}"
    return repr(value)


def parameter(kind: str, role: str) -> str:
    """MindSpore's name of a parameter: gamma for a norm's weight."""
    return ROLES.get(kind, {}).get(role, role)


def constructor(kind: str, rank: Optional[int] = None) -> str:
    """MindSpore's class: "nn.Dense". `rank` is the number of the input's axes, which some names hold."""
    if kind in ("BatchNorm", "InstanceNorm"):
        return f"nn.{kind}{ {2: 1, 3: 1, 5: 3}.get(rank or 4, 2) }d"
    if kind in CLASSES:
        return CLASSES[kind]
    return f"nn.{kind}" if kind in KINDS else kind


def written(spec: LayerSpec, names: Iterable[str], rank: Optional[int] = None) -> str:
    """A call that gives a port these settings of `spec`: "nn.LayerNorm(..., epsilon=1e-05)"."""
    wanted = list(names)
    found: Keywords = {}
    for name in wanted:
        special = SPECIAL.get((_family(spec.kind), name)) or SPECIAL.get((spec.kind, name))
        if special is not None:
            found.update(special(spec, rank))
        else:
            found[word(spec.kind, name)] = spec.attributes.get(name)
    rest = [] if set(KINDS.get(spec.kind, ("",))) <= set(wanted) else ["..."]
    return f"{constructor(spec.kind, rank)}({', '.join(rest + [f'{k}={literal(v)}' for k, v in found.items()])})"


def word(kind: str, name: str) -> str:
    """MindSpore's keyword for a canonical setting; a kind outside the vocabulary has its own words."""
    if kind not in KINDS:
        return name
    return WORDS.get(kind, {}).get(name, WORDS[""].get(name, name))


def _family(kind: str) -> str:
    """Conv2d and Conv1d are written alike."""
    return kind[:-2] if kind[-2:] in ("1d", "2d", "3d") else kind


def _pairs(value: Any) -> tuple[Any, ...]:
    """(before, after) of each axis, flat."""
    return tuple(amount for pair in value for amount in pair)


def _padding(spec: LayerSpec, _rank: Optional[int]) -> Keywords:
    value: Any = spec.attributes.get("padding")
    if isinstance(value, str) or value is None:
        return {"pad_mode": value}
    flat = _pairs(value)
    if not any(flat) and not spec.attributes.get("ceil_mode"):
        return {"pad_mode": "valid"}
    if _family(spec.kind) in POOLS and flat[::2] == flat[1::2]:  # told once for both sides
        flat = flat[::2]
    return {"pad_mode": "pad", "padding": flat[0] if len(set(flat)) == 1 else flat}


def _transposed_padding(spec: LayerSpec, rank: Optional[int]) -> Keywords:
    """output_padding is said by cutting less at the end; MindSpore's own only appends zeros on CPU."""
    padding: Any = spec.attributes.get("padding")
    more: Any = spec.attributes.get("output_padding") or ()
    if isinstance(padding, str) or not any(isinstance(rows, int) and rows for rows in more):
        return _padding(spec, rank)
    flat = tuple(amount for (before, after), rows in zip(padding, more) for amount in (before, after - rows))
    return {"pad_mode": "pad", "padding": flat}


def _padded(name: str) -> Written:
    """A setting that counts with pad_mode "pad" only."""
    return lambda spec, rank: {**_padding(spec, rank), name: spec.attributes.get(name)}


def _momentum(spec: LayerSpec, _rank: Optional[int]) -> Keywords:
    """MindSpore's BatchNorm is told what is kept, not what is given."""
    value: Any = spec.attributes.get("momentum")
    return {"momentum": None if value is None else round(1 - value, 12)}


def _statistics(spec: LayerSpec, _rank: Optional[int]) -> Keywords:
    """None follows train and eval mode."""
    tracked = spec.attributes.get("track_running_stats")
    return {"use_batch_statistics": None if tracked is True else tracked is False}


def _normalized_shape(spec: LayerSpec, rank: Optional[int]) -> Keywords:
    """The axes are said by where they begin."""
    shape: Any = spec.attributes.get("normalized_shape")
    if rank is None or not isinstance(shape, (tuple, list)):
        return {"normalized_shape": shape}
    begin = rank - len(shape)
    return {"normalized_shape": tuple(shape), "begin_norm_axis": begin, "begin_params_axis": begin}


def _approximate(spec: LayerSpec, _rank: Optional[int]) -> Keywords:
    return {"approximate": spec.attributes.get("approximate") == "tanh"}


def _local_response(spec: LayerSpec, _rank: Optional[int]) -> Keywords:
    """MindSpore counts a radius and does not divide alpha by the size."""
    size: Any = spec.attributes.get("size", 1)
    alpha: Any = spec.attributes.get("alpha", 1.0)
    kept = {"beta": spec.attributes.get("beta"), "bias": spec.attributes.get("k")}
    return {"depth_radius": size // 2, "alpha": float(f"{alpha / size:.12g}"), **kept}


def _paddings(spec: LayerSpec, rank: Optional[int]) -> Keywords:
    """nn.Pad counts axes from the first, and has a pair for each."""
    listed: Any = spec.attributes.get("padding")
    pairs = tuple(tuple(pair) for pair in reversed(listed))
    return {"paddings": ((0, 0),) * ((rank or len(pairs)) - len(pairs)) + pairs}


def _pad_mode(spec: LayerSpec, _rank: Optional[int]) -> Keywords:
    return {"mode": str(spec.attributes.get("mode")).upper()}


SPECIAL: Mapping[tuple[str, str], Written] = {
    **{(kind, "padding"): _padding for kind in ("Conv", *POOLS)},
    **{(kind, "ceil_mode"): _padded("ceil_mode") for kind in POOLS},
    ("AvgPool", "count_include_pad"): _padded("count_include_pad"),
    **{("ConvTranspose", name): _transposed_padding for name in ("padding", "output_padding")},
    ("BatchNorm", "momentum"): _momentum,
    ("BatchNorm", "track_running_stats"): _statistics,
    ("LayerNorm", "normalized_shape"): _normalized_shape,
    ("GELU", "approximate"): _approximate,
    **{("LocalResponseNorm", name): _local_response for name in ("size", "alpha", "beta", "k")},
    ("Pad", "padding"): _paddings,
    ("Pad", "mode"): _pad_mode,
}
"""(Kind without its dimension, setting) -> the keywords that say it."""
