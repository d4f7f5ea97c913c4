"""MindSpore's classes in aligner's words, for a dump whose net is not at hand."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Optional

from aligner.ingest.scopes import ATOMS
from aligner.vocabulary import KINDS

# MindSpore's name where it is another one than torch's.
WORDS = {
    "Dense": "Linear",
    "BiDense": "Bilinear",
    "EmbeddingLookup": "Embedding",
    "SyncBatchNorm": "BatchNorm",
    **{f"BatchNorm{n}d": "BatchNorm" for n in (1, 2, 3)},
    **{f"InstanceNorm{n}d": "InstanceNorm" for n in (1, 2, 3)},
    **{f"Conv{n}dTranspose": f"ConvTranspose{n}d" for n in (1, 2, 3)},
    **{f"Dropout{n}d": "Dropout" for n in (1, 2, 3)},
    "LRN": "LocalResponseNorm",
    "SeLU": "SELU",
    "HSwish": "Hardswish",
    "HSigmoid": "Hardsigmoid",
    "HShrink": "Hardshrink",
    "SoftShrink": "Softshrink",
    "SequentialCell": "Sequential",
    "CellList": "ModuleList",
    "CellDict": "ModuleDict",
}
UNCALLED = frozenset({"CellList", "CellDict"})
CONTAINERS = UNCALLED | {"SequentialCell"}
MANY = frozenset(
    {"LSTMCell", "GRUCell", "RNNCell", "MultiheadAttention", "Bilinear", "Transformer", "Identity", "RMSNorm"}
    | {f"Transformer{part}{layer}" for part in ("Encoder", "Decoder") for layer in ("", "Layer")}
)
"""Kinds that take several values, hold layers, or are mostly written by users."""
# The operator that runs once in a call, as a part of its name; the class's own name is one as well.
MAIN: Mapping[str, tuple[str, ...]] = {
    "Linear": ("matmul",),
    "Embedding": ("gather", "embedding"),
    "GELU": ("gelu", "erf"),
    "SiLU": ("silu", "swish", "sigmoid"),
    "ConvTranspose1d": ("conv2dbackpropinput", "conv2dtranspose", "convolution"),
    "ConvTranspose2d": ("conv2dbackpropinput", "conv2dtranspose", "convolution"),
    "ConvTranspose3d": ("conv3dtranspose", "conv3dbackpropinput", "convolution"),
    "Conv1d": ("conv2d", "convolution"),
    "Conv2d": ("conv2d", "depthwise", "convolution"),
    "Conv3d": ("conv3d", "convolution"),
    "BatchNorm": ("batchnorm", "bninfer"),
    "MaxPool1d": ("maxpool",),
    "AvgPool1d": ("avgpool", "reducemean"),
    "MaxPool2d": ("maxpool",),
    "AvgPool2d": ("avgpool",),
}
ROLES: Mapping[str, str] = {
    "gamma": "weight",
    "beta": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
    "embedding_table": "weight",
}
"""MindSpore's names of parameters that torch calls otherwise; a layer of the user's keeps its own."""
FLAT_KERNELS = frozenset({"Conv1d", "ConvTranspose1d"})
"""Kinds whose one-dimensional kernel MindSpore keeps with an axis more, the third."""
REWRITTEN = re.compile(r"(?<=\w)Opt(_\d+)*$")


def plain_class(name: str) -> str:
    """The class the user wrote: amp level O1 makes "Conv2dOpt_3" of Conv2d."""
    base = REWRITTEN.sub("", name)
    return base if base in WORDS or base in KINDS else name


def kind(name: str) -> str:
    """aligner's word for a class of MindSpore's; another class is called by its own name."""
    base = plain_class(name)
    return WORDS.get(base, base)


def is_library(name: str) -> bool:
    """Whether MindSpore has the class itself, and one value goes in and one comes out."""
    word = kind(name)
    return word in KINDS and plain_class(name) not in CONTAINERS and word not in MANY and not word.endswith("Loss")


def is_atom(name: str) -> bool:
    """Whether MindSpore builds it of many operators, the number of which does not tell how often it ran."""
    return plain_class(name) in ATOMS


def mains(name: str, counts: Mapping[str, int]) -> Optional[int]:
    """How often a layer of this class ran, by how often its main operator did; None where that is not known."""
    if not is_library(name) or is_atom(name):
        return None
    for part in _parts(name):
        number = sum(count for kernel, count in counts.items() if part in kernel.lower().replace("_", ""))
        if number:
            return number
    return 1 if all(count == 1 for count in counts.values()) else None


def is_main(name: str, kernel: str) -> bool:
    """Whether this operator is what makes a layer of this class what it is."""
    return is_library(name) and any(part in kernel.lower().replace("_", "") for part in _parts(name))


def _parts(name: str) -> tuple[str, ...]:
    return (*MAIN.get(kind(name), ()), kind(name).lower())


def role(kind_: str, own: str) -> str:
    """The canonical name of a layer's parameter."""
    if kind_ == "PReLU" and own in ("w", "a"):
        return "weight"
    return own if kind_ and kind_ not in KINDS else ROLES.get(own, own)
