"""The activation functions that nets use, by the names people know, in numpy."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[Any]
else:
    Floats = Any

Function = Callable[[Floats], Floats]


@cache
def _erf_table() -> tuple[Floats, Floats, Floats]:
    x = np.linspace(-6.0, 6.0, 6001)
    return x, np.array([math.erf(v) for v in x]), 2.0 / math.sqrt(math.pi) * np.exp(-x * x)


def erf(x: Floats) -> Floats:
    """The error function to 1e-12, by cubics between the values of a table: numpy has none."""
    points, values, slopes = _erf_table()
    step = points[1] - points[0]
    inside = np.clip(np.nan_to_num(x), points[0], points[-1])
    left = np.minimum(((inside - points[0]) / step).astype(np.int64), points.size - 2)
    t = (inside - points[left]) / step
    rise = t * t * (3.0 - 2.0 * t)
    bend = t * (1.0 - t) * step
    found = values[left] * (1.0 - rise) + values[left + 1] * rise
    return np.asarray(found + bend * ((1.0 - t) * slopes[left] - t * slopes[left + 1]) + x * 0.0)


def sigmoid(x: Floats) -> Floats:
    """1 / (1 + exp(-x)) without overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * x)))


def softplus(x: Floats) -> Floats:
    """log(1 + exp(x)) without overflow."""
    return np.asarray(np.logaddexp(0.0, x))


def elu(x: Floats, alpha: float = 1.0) -> Floats:
    """x, and alpha * (exp(x) - 1) below zero."""
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0.0)))


def leaky(x: Floats, slope: Any) -> Floats:
    """x, and slope * x below zero."""
    return np.where(x > 0, x, slope * x)


def gelu_tanh(x: Floats) -> Floats:
    """The approximation of GELU by a tanh."""
    return np.asarray(0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3))))


def softmax(x: Floats, axis: int) -> Floats:
    """Softmax along one axis."""
    with np.errstate(invalid="ignore"):  # a row of -inf is NaN, as in the frameworks
        raised = np.exp(x - x.max(axis=axis, keepdims=True))
        return np.asarray(raised / raised.sum(axis=axis, keepdims=True))


FUNCTIONS: Mapping[str, Function] = {
    "ReLU": lambda x: np.maximum(x, 0.0),
    "ReLU6": lambda x: np.clip(x, 0.0, 6.0),
    "LeakyReLU(0.01)": lambda x: leaky(x, 0.01),
    "LeakyReLU(0.1)": lambda x: leaky(x, 0.1),
    "LeakyReLU(0.2)": lambda x: leaky(x, 0.2),
    "GELU": lambda x: 0.5 * x * (1.0 + erf(x / math.sqrt(2.0))),
    "GELU(tanh)": gelu_tanh,
    "QuickGELU": lambda x: x * sigmoid(1.702 * x),
    "SiLU": lambda x: x * sigmoid(x),
    "Mish": lambda x: x * np.tanh(softplus(x)),
    "Hardswish": lambda x: x * np.clip(x + 3.0, 0.0, 6.0) / 6.0,
    "ELU": elu,
    "SELU": lambda x: 1.0507009873554805 * elu(x, 1.6732632423543772),
    "Sigmoid": sigmoid,
    "Hardsigmoid": lambda x: np.clip(x + 3.0, 0.0, 6.0) / 6.0,
    "Hardsigmoid(0.2x+0.5)": lambda x: np.clip(0.2 * x + 0.5, 0.0, 1.0),
    "Tanh": np.tanh,
    "Hardtanh": lambda x: np.clip(x, -1.0, 1.0),
    "Softplus": softplus,
    "Softsign": lambda x: x / (1.0 + np.abs(x)),
    "LogSigmoid": lambda x: -softplus(-x),
    "Tanhshrink": lambda x: x - np.tanh(x),
    "Softshrink(0.5)": lambda x: x - np.clip(x, -0.5, 0.5),
    "Hardshrink(0.5)": lambda x: np.where(np.abs(x) > 0.5, x, 0.0),
    "exp": np.exp,
    "square": np.square,
    "abs": np.abs,
}
"""Each takes and gives float64; callers put up with overflow (np.errstate)."""


def applied(name: str, x: Floats) -> Floats:
    """The function's values, infinities and NaN included, in silence."""
    with np.errstate(all="ignore"):
        return np.asarray(FUNCTIONS[name](np.asarray(x, np.float64)))
