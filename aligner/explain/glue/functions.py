"""Functions of one value that code between layers applies: by name, as code, and the way back where there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from aligner.explain.patterns import functions
from aligner.explain.patterns.pair import Floats

Function = Callable[[Floats], Floats]

ACTIVATIONS: Mapping[str, Function] = {
    **{name: function for name, function in functions.FUNCTIONS.items() if name[0].isupper()},
    "Clamp(0, 1)": lambda x: np.clip(x, 0.0, 1.0),
    "ReLU ** 2": lambda x: np.square(np.maximum(x, 0.0)),
}

PLAIN: Mapping[str, Function] = {
    "": lambda x: x,
    "abs": np.abs,
    "square": np.square,
    "exp": np.exp,
    "exp(x / 2)": lambda x: np.exp(0.5 * x),
    "exp(-x)": lambda x: np.exp(-x),
    "sqrt": np.sqrt,
    "1 -": lambda x: 1.0 - x,
    "1 +": lambda x: 1.0 + x,
    "1 - sigmoid": lambda x: functions.sigmoid(-x),
    "1 /": lambda x: 1.0 / x,
    "1 / sqrt": lambda x: 1.0 / np.sqrt(x),
    "log": np.log,
    "log1p": np.log1p,
    "sin": np.sin,
    "cos": np.cos,
    "!= 0": lambda x: (x != 0).astype(np.float64),
    "== 0": lambda x: (x == 0).astype(np.float64),
    "floor": np.floor,
    "round": np.round,
    "trunc": np.trunc,
}

FUNCTIONS: Mapping[str, Function] = {**PLAIN, **ACTIVATIONS}

_SPELLED: Mapping[str, str] = {
    "": "{}",
    "!= 0": "({} != 0)",
    "== 0": "({} == 0)",
    "square": "{} ** 2",
    "exp(x / 2)": "exp({} / 2)",
    "exp(-x)": "exp(-{})",
    "1 -": "(1 - {})",
    "1 +": "(1 + {})",
    "1 - sigmoid": "(1 - Sigmoid({}))",
    "1 /": "1 / {}",
    "1 / sqrt": "1 / sqrt({})",
    "ReLU ** 2": "ReLU({}) ** 2",
    "Sigmoid ** 2": "Sigmoid({}) ** 2",
}


def spelled(function: str, inner: str) -> str:
    """The function of `inner` as code."""
    return _SPELLED.get(function, function + "({})").format(inner)


def _between(y: Floats, low: float, high: float, back: Function) -> Floats:
    inside = (y > low) & (y < high)
    return np.where(inside, back(np.where(inside, y, 0.5 * (low + high))), np.nan)


def _rising(name: str) -> Function:
    """The way back on the rising branch, x > 0, by bisection."""

    def back(y: Floats) -> Floats:
        low, high = np.zeros_like(y), y + 1.0
        for _ in range(60):
            middle = 0.5 * (low + high)
            below = FUNCTIONS[name](middle) < y
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return low

    return lambda y: _between(y, 0.01, np.inf, back) if (y > 0.01).any() else np.full_like(y, np.nan)


BACK: Mapping[str, Function] = {
    "": lambda y: y,
    "ReLU": lambda y: np.where(y > 0, y, np.nan),
    "Clamp(0, 1)": lambda y: np.where((y > 0) & (y < 1.0), y, np.nan),
    "Hardtanh": lambda y: np.where(np.abs(y) < 1.0, y, np.nan),
    "ReLU6": lambda y: np.where((y > 0) & (y < 6.0), y, np.nan),
    "LeakyReLU(0.01)": lambda y: functions.leaky(y, 100.0),
    "LeakyReLU(0.1)": lambda y: functions.leaky(y, 10.0),
    "LeakyReLU(0.2)": lambda y: functions.leaky(y, 5.0),
    "Tanh": lambda y: _between(y, -0.99, 0.99, np.arctanh),
    "Sigmoid": lambda y: _between(y, 0.01, 0.99, lambda p: np.log(p / (1.0 - p))),
    "ELU": lambda y: np.where(y > 0, y, _between(np.minimum(y, 0.0), -0.99, 1.0, np.log1p)),
    "Softplus": lambda y: _between(y, 1e-3, 30.0, lambda p: np.log(np.expm1(p))),
    "GELU": _rising("GELU"),
    "GELU(tanh)": _rising("GELU(tanh)"),
    "SiLU": _rising("SiLU"),
}
"""What went into a function, told from what came out; NaN where that cannot be told."""
