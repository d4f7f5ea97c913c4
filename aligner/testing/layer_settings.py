"""Other values for settings, to change a layer by: sensible ones for any layer that has such a setting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from aligner.record import Attribute

NEEDED: tuple[tuple[str, str], ...] = (
    *((f"Conv{n}d", word) for n in (1, 2) for word in ("stride", "padding", "dilation")),
    ("ConvTranspose2d", "padding"),
    *((kind, "eps") for kind in ("BatchNorm", "LayerNorm", "GroupNorm")),
    ("BatchNorm", "momentum"),
    ("GroupNorm", "num_groups"),
    *((f"{which}Pool2d", word) for which in ("Max", "Avg") for word in ("kernel_size", "stride", "padding")),
    ("AvgPool2d", "count_include_pad"),
    ("Linear", "bias"),
    ("Conv2d", "bias"),
    ("Dropout", "p"),
    ("LeakyReLU", "negative_slope"),
    ("ELU", "alpha"),
    ("GELU", "approximate"),
    ("Softmax", "dim"),
    ("LogSoftmax", "dim"),
    ("Flatten", "start_dim"),
    ("Hardtanh", "min_val"),
    ("Upsample", "mode"),
    ("LSTM", "batch_first"),
)
"""What a trial must be able to change, in layers of these kinds."""

SHAPING: Mapping[str, Attribute] = {
    "in_features": 77,
    "out_features": 77,
    "in_channels": 77,
    "embedding_dim": 77,
    "input_size": 77,
    "hidden_size": 77,
    "num_features": 77,
    "normalized_shape": (77,),
    "num_channels": 77,
}
"""Settings that give the weights another shape (of layers that have weights)."""

_NUMBERS: Mapping[str, tuple[float, ...]] = {
    "eps": (0.25,),
    "momentum": (0.3,),
    "negative_slope": (0.3,),
    "alpha": (0.7,),
    "beta": (0.6,),
    "k": (2.0,),
    "p": (0.25,),
    "dropout": (0.25,),
    "min_val": (-0.5,),
    "max_val": (0.5,),
    "lambd": (0.3,),
    "threshold": (0.4,),
    "value": (0.8,),
    "lower": (0.05,),
    "upper": (0.4,),
}
_WHOLE: Mapping[str, tuple[Attribute, ...]] = {
    "dim": (-1, 1, -2),
    "start_dim": (2,),
    "end_dim": (2,),
    "num_groups": (1, 2),
    "groups": (2,),
    "nhead": (1,),
    "num_heads": (1,),
    "padding_idx": (1, None),
    "approximate": ("none", "tanh"),
    "activation": ("relu", "gelu"),
    "nonlinearity": ("tanh", "relu"),
    "padding_mode": ("reflect", "circular"),
}
_PER_AXIS: Mapping[str, int] = {"stride": 2, "dilation": 2, "output_size": 2, "output_padding": 1}


def another(kind: str, word: str, old: Attribute) -> Iterator[Attribute]:
    """Other values that the setting may take, if any are known."""
    if word == "kernel_size" and "Pool" not in kind:
        return  # the weights would have another shape
    if type(old) is bool:
        candidates: tuple[Any, ...] = (not old,)
    elif word in _NUMBERS:
        candidates = _NUMBERS[word] if isinstance(old, (int, float)) else ()
    elif word == "padding" and isinstance(old, tuple) and old and isinstance(old[0], tuple):
        candidates = (((2, 1),) * len(old),) if kind == "Pad" else (((1, 1),) * len(old), ((0, 0),) * len(old))
    elif word == "mode":
        candidates = ("reflect", "constant") if kind == "Pad" else ("nearest", "bilinear")
    elif word == "kernel_size" and isinstance(old, tuple):
        candidates = ((3,) * len(old),)
    elif word in _PER_AXIS and isinstance(old, tuple):
        candidates = ((_PER_AXIS[word],) * len(old), (1,) * len(old))
    else:
        candidates = _WHOLE.get(word, ())
    yield from (value for value in candidates if value != old or type(value) is not type(old))
