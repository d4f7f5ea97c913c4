"""What some layers must make of their input once a setting is changed, computed with numpy in float64."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import erf, pi
from typing import Any, NamedTuple

import numpy as np

from aligner.record import Attribute

Settings = Mapping[str, Any]
Compute = Callable[[Any, Mapping[str, Any], Settings], Any]


class Oracle(NamedTuple):
    """A change, and the output of a layer that was changed so: of its input, weights and settings."""

    changes: Mapping[str, Attribute]
    compute: Compute


def _normalised(x: Any, axes: Any, weights: Mapping[str, Any], settings: Settings) -> Any:
    centred = x - x.mean(axes, keepdims=True)
    return centred / np.sqrt((centred**2).mean(axes, keepdims=True) + settings["eps"])


def _layer_norm(x: Any, weights: Mapping[str, Any], settings: Settings) -> Any:
    axes = tuple(range(-len(settings["normalized_shape"]), 0))
    return _normalised(x, axes, weights, settings) * weights["weight"] + weights["bias"]


def _group_norm(x: Any, weights: Mapping[str, Any], settings: Settings) -> Any:
    grouped = x.reshape(x.shape[0], settings["num_groups"], -1)
    normal = _normalised(grouped, (-1,), weights, settings).reshape(x.shape)
    along = (1, -1, *(1,) * (x.ndim - 2))
    return normal * weights["weight"].reshape(along) + weights["bias"].reshape(along)


def _batch_norm(x: Any, weights: Mapping[str, Any], settings: Settings) -> Any:
    along = (1, -1, *(1,) * (x.ndim - 2))
    mean, var, weight, bias = (
        weights[role].reshape(along) for role in ("running_mean", "running_var", "weight", "bias")
    )
    return (x - mean) / np.sqrt(var + settings["eps"]) * weight + bias


def _softmax(x: Any, weights: Mapping[str, Any], settings: Settings) -> Any:
    powers = np.exp(x - x.max(settings["dim"], keepdims=True))
    return powers / powers.sum(settings["dim"], keepdims=True)


def _gelu(x: Any, weights: Mapping[str, Any], settings: Settings) -> Any:
    if settings["approximate"] == "tanh":
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(erf)(x / np.sqrt(2)))


def _convolution(x: Any, weights: Mapping[str, Any], settings: Settings) -> Any:
    (before, after), (stride,), (dilation,) = settings["padding"][0], settings["stride"], settings["dilation"]
    weight = weights["weight"].astype(np.float64)
    padded = np.pad(x, ((0, 0), (0, 0), (before, after)))
    reach = dilation * (weight.shape[2] - 1) + 1
    starts = range(0, padded.shape[2] - reach + 1, stride)
    columns = [np.einsum("nck,ock->no", padded[:, :, s : s + reach : dilation], weight) for s in starts]
    return np.stack(columns, axis=2) + (weights["bias"][:, None] if settings["bias"] else 0)


def _linear(x: Any, weights: Mapping[str, Any], settings: Settings) -> Any:
    return x @ weights["weight"].astype(np.float64).T + (weights["bias"] if settings["bias"] else 0)


ORACLES: Mapping[tuple[str, str], Oracle] = {
    ("LayerNorm", "eps"): Oracle({"eps": 0.5}, _layer_norm),
    ("GroupNorm", "eps"): Oracle({"eps": 0.5}, _group_norm),
    ("GroupNorm", "num_groups"): Oracle({"num_groups": 1}, _group_norm),
    ("BatchNorm", "eps"): Oracle({"eps": 0.5}, _batch_norm),
    ("Softmax", "dim"): Oracle({"dim": 1}, _softmax),
    ("Softmax", "last"): Oracle({"dim": -1}, _softmax),
    ("GELU", "none"): Oracle({"approximate": "none"}, _gelu),
    ("GELU", "tanh"): Oracle({"approximate": "tanh"}, _gelu),
    ("LeakyReLU", "slope"): Oracle({"negative_slope": 0.3}, lambda x, w, s: np.where(x > 0, x, 0.3 * x)),
    ("ELU", "alpha"): Oracle({"alpha": 0.5}, lambda x, w, s: np.where(x > 0, x, 0.5 * np.expm1(x))),
    ("Hardtanh", "limits"): Oracle({"min_val": -0.5, "max_val": 0.25}, lambda x, w, s: np.clip(x, -0.5, 0.25)),
    ("Flatten", "start"): Oracle({"start_dim": 2}, lambda x, w, s: x.reshape(*x.shape[:2], -1)),
    ("Conv1d", "stride"): Oracle({"stride": (2,)}, _convolution),
    ("Conv1d", "padding"): Oracle({"padding": ((2, 2),)}, _convolution),
    ("Conv1d", "dilation"): Oracle({"dilation": (2,), "padding": ((1, 1),)}, _convolution),
    ("Conv1d", "bias"): Oracle({"bias": False}, _convolution),
    ("Linear", "bias"): Oracle({"bias": False}, _linear),
}
