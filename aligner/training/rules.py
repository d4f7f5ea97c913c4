"""What an optimizer makes of a parameter, by its kind and settings, in float64: the rule itself, of no framework."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.record import Attribute
from aligner.words.optimizers import EPS_FIRST, RMSPROP

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]
else:
    Floats = Any

Settings = Mapping[str, Attribute]


@dataclass(frozen=True)
class Before:
    """What an update begins with, of one parameter."""

    parameter: Floats
    gradient: Floats
    state: Mapping[str, Floats]
    count: int
    """Updates made before this one."""


def updated(kind: str, settings: Settings, before: Before) -> Optional[Floats]:
    """The parameter after the update; None for a rule that is not known."""
    rule = _RULES.get(kind)
    with np.errstate(all="ignore"):
        return None if rule is None else rule(settings, before)


def nearer(own: Floats, one: Floats, other: Optional[Floats]) -> Floats:
    """Of two ways to make an update, element by element the one that was gone: MindSpore's RMSProp on a CPU adds its
    eps under the root in the last elements of a tensor alone, which its vectors do not fill."""
    return one if other is None else np.where(np.abs(own - one) <= np.abs(own - other), one, other)


def number(settings: Settings, name: str, default: float = 0.0) -> float:
    """A setting as a number."""
    value = settings.get(name, default)
    return float(value) if isinstance(value, (int, float)) else default


def _decayed(settings: Settings, before: Before) -> Floats:
    """The gradient with the decay of a rule that adds it there."""
    gradient = before.gradient / number(settings, "loss_scale", 1.0)
    if settings.get("decoupled") is True:
        return gradient
    return gradient + number(settings, "weight_decay") * before.parameter


def _of(before: Before, word: str) -> Floats:
    return before.state.get(word, np.zeros_like(before.parameter))


def _sgd(settings: Settings, before: Before) -> Floats:
    gradient, factor = _decayed(settings, before), number(settings, "momentum")
    step = gradient
    if factor:
        fresh = before.count == 0 and "momentum" not in before.state
        kept = gradient if fresh else factor * _of(before, "momentum") + (1 - number(settings, "dampening")) * gradient
        step = gradient + factor * kept if settings.get("nesterov") is True else kept
    return before.parameter - number(settings, "lr") * step


def _adam(settings: Settings, before: Before) -> Floats:
    gradient, rate = _decayed(settings, before), number(settings, "lr")
    beta1, beta2 = number(settings, "beta1", 0.9), number(settings, "beta2", 0.999)
    first = beta1 * _of(before, "first") + (1 - beta1) * gradient
    second = beta2 * _of(before, "second") + (1 - beta2) * gradient * gradient
    eps = number(settings, "eps", 1e-8)
    if settings.get("bias_correction") is not False:
        first = first / (1 - beta1 ** (before.count + 1))
        start = 1 - beta2 ** (before.count + 1)
        second = second / start
        eps = eps / math.sqrt(start) if settings.get(EPS_FIRST) is True else eps
    parameter = before.parameter
    if settings.get("decoupled") is True:
        parameter = parameter * (1 - rate * number(settings, "weight_decay"))
    return parameter - rate * first / (np.sqrt(second) + eps)


def _rmsprop(settings: Settings, before: Before) -> Floats:
    gradient, alpha = _decayed(settings, before), number(settings, "alpha", 0.99)
    second = alpha * _of(before, "second") + (1 - alpha) * gradient * gradient
    if settings.get("centered") is True:
        mean = alpha * _of(before, "mean") + (1 - alpha) * gradient
        second = second - mean * mean
    eps = number(settings, "eps", 1e-8)
    step = gradient / (np.sqrt(second + eps) if settings.get(EPS_FIRST) is True else np.sqrt(second) + eps)
    if number(settings, "momentum"):
        step = number(settings, "momentum") * _of(before, "momentum") + step
    return before.parameter - number(settings, "lr") * step


_RULES: Mapping[str, Callable[[Settings, Before], Floats]] = {"SGD": _sgd, "Adam": _adam, RMSPROP: _rmsprop}
