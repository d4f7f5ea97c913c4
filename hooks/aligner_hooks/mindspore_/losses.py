"""Losses: what their settings are in canonical words, and what their constructors want to be given for them.

Half of MindSpore's losses keep their reduction as two flags of their base class, some in a primitive only. Weights of
classes are plain tensors of the cell, which a copy is given along.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Callable

from aligner.record import Attribute
from aligner_hooks.mindspore_.window_arguments import Attributes, Recipe, Write

Read = Callable[[Any], Attributes]

REDUCTIONS = ("sum", "mean", "none")
"""By the numbers that MindSpore's newer operators have for them."""

WEIGHTS = ("weight", "pos_weight")


def _reduction(cell: Any) -> Attribute:
    """Its own word, else what the flags of the base class say."""
    found = getattr(cell, "reduction", None)
    if isinstance(found, str):
        return found
    if not cell.reduce:
        return "none"
    return "mean" if cell.average else "sum"


def _read(*names: str, **fixed: Attribute) -> Read:
    """Settings that stand on the cell under the same names, what MindSpore always does, and the reduction."""
    return lambda cell: {**{name: getattr(cell, name) for name in names}, **fixed, "reduction": _reduction(cell)}


def _inside(primitive: str, *names: str) -> Read:
    """Settings that stand in a primitive of the cell only."""
    return lambda cell: {name: getattr(getattr(cell, primitive), name) for name in (*names, "reduction")}


def _numbered(cell: Any) -> Attributes:
    """mint's loss of logits has a number for the word."""
    found = cell.bce_with_logits.reduction
    return {"reduction": found if isinstance(found, str) else REDUCTIONS[found]}


def _within(cell: Any) -> Attributes:
    """mint's loss of probabilities is one of nn's inside."""
    return {"reduction": _reduction(cell.bce_loss)}


CLASSES = ("ignore_index", "label_smoothing")

# Class of mindspore.nn -> kind, reader.
NN: Mapping[str, tuple[str, Read]] = {
    **{name: (name, _read()) for name in ("L1Loss", "MSELoss", "BCELoss", "BCEWithLogitsLoss", "SoftMarginLoss")},
    "MAELoss": ("L1Loss", _read()),
    "SmoothL1Loss": ("SmoothL1Loss", _read("beta")),
    "HuberLoss": ("HuberLoss", _read("delta")),
    "CrossEntropyLoss": ("CrossEntropyLoss", _read(*CLASSES)),
    "NLLLoss": ("NLLLoss", _read("ignore_index")),
    "KLDivLoss": ("KLDivLoss", _read(log_target=False)),
    "CTCLoss": ("CTCLoss", _read("blank", "zero_infinity")),
    "CosineEmbeddingLoss": ("CosineEmbeddingLoss", _read("margin")),
    "MarginRankingLoss": ("MarginRankingLoss", _read("margin")),
    "HingeEmbeddingLoss": ("HingeEmbeddingLoss", _read("margin")),
    "TripletMarginLoss": ("TripletMarginLoss", _read("margin", "p", "eps", "swap")),
    "MultiMarginLoss": ("MultiMarginLoss", _inside("multi_margin_loss", "p", "margin")),
    "MultilabelMarginLoss": ("MultiLabelMarginLoss", _inside("multilabel_margin_loss")),
    "MultiLabelSoftMarginLoss": ("MultiLabelSoftMarginLoss", _read()),
    "GaussianNLLLoss": ("GaussianNLLLoss", _read("full", "eps")),
    "PoissonNLLLoss": ("PoissonNLLLoss", _read("log_input", "full", "eps")),
}

# Class of mindspore.mint.nn -> kind, reader, where it is not nn's own.
MINT: Mapping[str, tuple[str, Read]] = {
    **{name: (name, _read()) for name in ("L1Loss", "MSELoss")},
    "BCELoss": ("BCELoss", _within),
    "BCEWithLogitsLoss": ("BCEWithLogitsLoss", _numbered),
    "SmoothL1Loss": ("SmoothL1Loss", _read("beta")),
    "CrossEntropyLoss": ("CrossEntropyLoss", _read(*CLASSES)),
    "NLLLoss": ("NLLLoss", _read("ignore_index")),
    "KLDivLoss": ("KLDivLoss", _read("log_target")),
    "CosineEmbeddingLoss": ("CosineEmbeddingLoss", _read("margin")),
}


def _write(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """All settings by name, and the weights that the cell has."""
    home = getattr(cell, "bce_loss", cell)
    weights = {word: getattr(home, word, None) for word in WEIGHTS}
    given = {word: _typed(word, value) for word, value in wanted.items()}
    yield Recipe(name, {**given, **{word: value for word, value in weights.items() if value is not None}})


def _typed(word: str, value: Any) -> Any:
    """Some constructors refuse a whole number for a float, and 2.0 for a power."""
    if word in ("margin", "beta", "delta", "label_smoothing") and type(value) is int:
        return float(value)
    return int(value) if word == "p" and isinstance(value, float) and value.is_integer() else value


def _divergence(name: str, cell: Any, wanted: Attributes) -> Iterator[Recipe]:
    """nn's has no log_target: only its absence can be said."""
    yield Recipe(name, {"reduction": wanted["reduction"]})


def writers(names: Mapping[str, tuple[str, Read]]) -> Mapping[str, Write]:
    """Class -> what gives its constructor's arguments."""
    special = {"KLDivLoss": _divergence} if names is NN else {}
    return {name: special.get(name, _write) for name in names}
