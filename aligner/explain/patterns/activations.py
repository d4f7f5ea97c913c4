"""Another function of each element than the reference's: told from what went in and what came out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Optional

import numpy as np

from aligner.explain import spelling
from aligner.explain.patterns.composed import fitting
from aligner.explain.patterns.functions import elu, leaky, sigmoid
from aligner.explain.patterns.pair import Floats, figure
from aligner.explain.patterns.scales import slope
from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect

SPELLED = {("GELU", "tanh"): "GELU(tanh)", ("GELU", "none"): "GELU"}
KNOWN = {
    *("ReLU", "ReLU6", "LeakyReLU", "PReLU", "RReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Hardswish"),
    *("Hardsigmoid", "Hardtanh", "Hardshrink", "Softshrink", "Softplus", "Softsign", "Threshold", "Sigmoid"),
    *("LogSigmoid", "Tanh", "Tanhshrink"),
}
"""Kinds that are a function of each element."""

GELUS = {"GELU", "GELU(tanh)"}

Fit = tuple[str, float, Optional[str], str]
"""A function's name, what it leaves, and the setting it stands for with its value."""


def suspects(scene: Scene) -> Iterator[Suspect]:
    """At most one."""
    x, pair = scene.x, scene.pair
    if x is None or not pair.alike or x.shape != pair.actual.shape:
        return
    found = _found(scene, x)
    if found is None:
        return
    function, left, setting, value = found
    wanted = _wanted(scene, x)
    if not wanted or wanted == function:
        return
    cause = _cause(wanted, function)
    if setting is None and cause in ("gelu-approximate-default", "gelu-new-vs-erf"):
        setting, value = "approximate", function
    told = spoken(function, wanted)
    if cause in ("quick-gelu-vs-gelu", "hardswish-vs-swish"):
        told.update(kind=wanted, port_kind=function)
    suspect = scene.setting_suspect(cause, left, 0.85, setting or "", value if setting else function, **told)
    if setting == "approximate":  # known of a class of the user's own as well
        both = {"reference_value": _APPROXIMATE[wanted], "port_value": _APPROXIMATE[function]}
        change = {setting: _APPROXIMATE[wanted]} if setting in scene.case.port.attributes else suspect.change
        facts = {side: spelling.literal(value) for side, value in both.items()}
        suspect = replace(suspect, facts={**suspect.facts, **facts}, change=change)
    yield suspect


_APPROXIMATE = {"GELU": "none", "GELU(tanh)": "tanh"}


def spoken(function: str, wanted: str) -> dict[str, Any]:
    """The facts of two functions, as the causes of layers and of code between them put them."""
    told = {"function": wanted if function == "identity" else function, "wanted": wanted}
    code = {"port_code": f"{function}(x)", "reference_code": f"{wanted}(x)"}
    return {**told, **code, "port_function": function, "reference_function": wanted}


def _found(scene: Scene, x: Floats) -> Optional[Fit]:
    """What the port computed."""
    pair = scene.pair
    left = pair.proved(x, pair.actual)
    if left is not None:
        return "identity", left, None, ""
    one_slope = _leaky(scene, x) or _elu(scene, x) or _quick(scene, x)
    named = fitting(pair, x, pair.actual)
    if named is not None and not (one_slope and named[0].startswith("Leaky")):
        return (*named, None, "")
    return one_slope or _prelu(scene, x)


def _wanted(scene: Scene, x: Floats) -> str:
    """What the reference computes: by its kind, or by its numbers where that is a class of the user's own."""
    kind = scene.kind
    if kind in KNOWN:
        spelled = SPELLED.get((kind, str(scene.setting("approximate", "none"))))
        for word in ("negative_slope", "alpha"):
            if spelled is None and word in scene.case.reference.attributes:
                spelled = f"{kind}({figure(scene.number(word, 1.0))})"
        return spelled or kind
    named = fitting(scene.pair, x, scene.pair.expected)
    return named[0] if named is not None else ""


def _cause(wanted: str, function: str) -> str:
    both = {wanted, function}
    if wanted == "GELU" and function == "GELU(tanh)":
        return "gelu-approximate-default"
    if wanted == "GELU(tanh)" and function == "GELU":
        return "gelu-new-vs-erf"
    if "QuickGELU" in both and both & GELUS:
        return "quick-gelu-vs-gelu"
    if both == {"Hardswish", "SiLU"}:
        return "hardswish-vs-swish"
    if wanted == "Hardsigmoid" and function == "Hardsigmoid(0.2x+0.5)":
        return "hardsigmoid-keras-formula"
    if wanted.startswith("LeakyReLU") and function.startswith("LeakyReLU"):
        return "leakyrelu-slope-default" if function == "LeakyReLU(0.2)" else "leakyrelu-yolo-0.1"
    return "activation-missing" if function == "identity" else "activation-other"


def _few(scene: Scene, x: Floats) -> tuple[Floats, Floats]:
    flat = np.unravel_index(scene.pair.spots, x.shape)
    return np.asarray(x[flat], np.float64), np.asarray(scene.pair.actual[flat], np.float64)


def _leaky(scene: Scene, x: Floats) -> Optional[Fit]:
    """x above zero and a fraction of it below."""
    few, made = _few(scene, x)
    below = few < 0
    if below.sum() < 4:
        return None
    fitted = slope(few[below], made[below])
    if fitted == 0.0 or fitted == 1.0 or not scene.pair.near(leaky(few, fitted), made):
        return None
    left = scene.pair.proved(leaky(x, fitted), scene.pair.actual)
    told = figure(round(fitted, 6))
    return None if left is None else (f"LeakyReLU({told})", left, "negative_slope", told)


def _elu(scene: Scene, x: Floats) -> Optional[Fit]:
    few, made = _few(scene, x)
    below = few < 0
    if below.sum() < 4:
        return None
    fitted = slope(np.expm1(few[below]), made[below])
    if fitted == 0.0 or not scene.pair.near(elu(few, fitted), made):
        return None
    left = scene.pair.proved(elu(np.asarray(x, np.float64), fitted), scene.pair.actual)
    told = figure(round(fitted, 6))
    return None if left is None else (f"ELU({told})", left, "alpha", told)


def _quick(scene: Scene, x: Floats) -> Optional[Fit]:
    """x * sigmoid(b * x) with a b of its own."""
    few, made = _few(scene, x)
    part = made / np.where(few == 0, 1.0, few)
    clear = (np.abs(few) > 0.1) & (part > 1e-4) & (part < 1 - 1e-4)
    if clear.sum() < 8:
        return None
    fitted = float(np.median(np.log(part[clear] / (1 - part[clear])) / few[clear]))
    near = {1.0: "SiLU", 1.702: "QuickGELU"}
    fitted = next((known for known in near if abs(known - fitted) < 1e-4), fitted)
    if not scene.pair.near(few * sigmoid(fitted * few), made):
        return None
    wide = np.asarray(x, np.float64)
    left = scene.pair.proved(wide * sigmoid(fitted * wide), scene.pair.actual)
    told = near.get(fitted, f"x * sigmoid({figure(fitted)} * x)")
    return None if left is None else (told, left, None, "")


def _prelu(scene: Scene, x: Floats) -> Optional[Fit]:
    """A slope for each slice of the second axis, or of the last."""
    actual: Any = scene.pair.actual
    few, made = _few(scene, x)
    if not scene.pair.near(made[few > 0], few[few > 0]):
        return None
    for axis in sorted({1 % x.ndim, x.ndim - 1}):
        others = tuple(a for a in range(x.ndim) if a != axis)
        below = np.minimum(x, 0.0)
        square = np.square(below, dtype=np.float64).sum(axis=others, keepdims=True)
        both = np.multiply(below, actual, dtype=np.float64).sum(axis=others, keepdims=True)
        slopes = np.divide(both, square, out=np.zeros_like(both), where=square > 0)
        left = scene.pair.proved(leaky(x, slopes), actual) if x.size >= 4 * slopes.size else None
        if left is not None:
            return f"PReLU({figure(slopes.min())}..{figure(slopes.max())}, axis={axis})", left, None, ""
    return None
