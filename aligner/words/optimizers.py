"""The one vocabulary for optimizers: kinds, settings, and what they keep of each parameter.

settings   lr, weight_decay, decoupled, momentum, dampening, nesterov, beta1, beta2, eps, amsgrad, alpha, centered ...
state      momentum, first, second, max_second, mean, sum, step
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aligner.record import Attribute

RMSPROP = "RMSprop"

KINDS: Mapping[str, tuple[str, Mapping[str, Attribute]]] = {
    "sgd": ("SGD", {}),
    "momentum": ("SGD", {}),
    "adam": ("Adam", {"decoupled": False, "bias_correction": True}),
    "adamw": ("Adam", {"decoupled": True, "bias_correction": True}),
    "adamweightdecay": ("Adam", {"decoupled": True, "bias_correction": False}),
    "rmsprop": (RMSPROP, {}),
    "adagrad": ("Adagrad", {}),
    "adadelta": ("Adadelta", {}),
    "adamax": ("Adamax", {}),
    "nadam": ("NAdam", {}),
    "radam": ("RAdam", {}),
    "lamb": ("LAMB", {"decoupled": True}),
    "lars": ("LARS", {}),
}
"""A class's name in lower case -> the kind, and settings that are so by being this class."""

SETTINGS: Mapping[str, str] = {
    "learning_rate": "lr",
    "use_nesterov": "nesterov",
    "epsilon": "eps",
    "decay": "alpha",
    "use_amsgrad": "amsgrad",
    "decoupled_weight_decay": "decoupled",
}
"""Other words for a setting."""

KEPT = ("momentum", "first", "second", "mean")
"""What the rules need of the state."""

STEP = "step"
"""How many updates an optimizer has made."""

STATE: Mapping[str, str] = {
    "momentum_buffer": "momentum",
    "moments": "momentum",
    "accum": "momentum",
    "momentum_buf": "momentum",
    "moment": "momentum",
    "exp_avg": "first",
    "moment1": "first",
    "moments1": "first",
    "exp_avg_sq": "second",
    "moment2": "second",
    "moments2": "second",
    "square_avg": "second",
    "mean_square": "second",
    "ms": "second",
    "max_exp_avg_sq": "max_second",
    "vhat": "max_second",
    "grad_avg": "mean",
    "mean_grad": "mean",
    "mg": "mean",
    "state_step": STEP,
    "global_step": STEP,
}
"""A framework's word for a part of the state -> ours; one that is not here is kept as it is."""

EPS_FIRST = "eps_first"
"""Whether an Adam adds its eps to the root of a second moment that is not yet corrected for its start, an
RMSprop its own to the second moment itself."""

OF_KIND: Mapping[tuple[str, str], str] = {("Adagrad", "accum"): "sum", ("Adadelta", "accum"): "second"}
"""The same word, where a kind of optimizer means something else by it."""


def kind(name: str) -> tuple[str, Mapping[str, Attribute]]:
    """The canonical kind of a class of this name, and the settings that come with it; a stranger keeps its name."""
    return KINDS.get(name.lower(), (name, {}))


def setting(name: str) -> str:
    """The canonical word for a setting."""
    return SETTINGS.get(name, name)


def state(kind: str, name: str) -> str:
    """The canonical word for a part of the state."""
    return OF_KIND.get((kind, name), STATE.get(name, name))
