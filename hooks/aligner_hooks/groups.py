"""What an optimizer with `param_groups` is told to do: torch's, MindTorch's, MindSpore's of experimental and mint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Optional

from aligner.adapter import Group
from aligner.record import Attribute
from aligner.words import optimizers

# How a group is run, and nothing of what comes of it.
_MEANS = ("params", "foreach", "fused", "capturable", "differentiable", "initial_lr", "order_params", "param_names")


def groups(optimizer: Any, implied: Mapping[str, Attribute], number: Callable[[Any], Optional[float]]) -> list[Group]:
    """Its groups; `number` reads a tensor of one element, and gives None for what is no number."""
    return [Group({**implied, **settings(group, number)}, list(group["params"])) for group in optimizer.param_groups]


def settings(group: Mapping[str, Any], number: Callable[[Any], Optional[float]]) -> dict[str, Attribute]:
    """A group's settings in canonical words; what is neither a number nor a switch is left out."""
    found: dict[str, Attribute] = {}
    for name, value in group.items():
        if name == "betas" and isinstance(value, (tuple, list)) and len(value) == 2:
            found["beta1"], found["beta2"] = (number(one) for one in value)
        elif name not in _MEANS and isinstance(value, bool):
            found[optimizers.setting(name)] = value
        elif name not in _MEANS and (plain := number(value)) is not None:
            found[optimizers.setting(name)] = plain
    return found
