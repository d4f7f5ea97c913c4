"""A softmax over another axis, of scores at another scale, or with or without its logarithm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.patterns.activations import spoken
from aligner.explain.patterns.functions import softmax
from aligner.explain.patterns.pair import Floats, figure
from aligner.explain.patterns.scales import name_of, slope
from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect

KINDS = {"Softmax", "LogSoftmax", "Softmin"}


def suspects(scene: Scene) -> Iterator[Suspect]:
    """At most one."""
    x, pair = scene.x, scene.pair
    if x is None or not pair.alike or x.shape != pair.actual.shape or not x.ndim:
        return
    if scene.kind not in KINDS and _axis(pair.expected, x, pair.limit) is None:
        return
    for rule in (_other_axis, _temperature):
        found = rule(scene, np.asarray(x, np.float64))
        if found is not None:
            yield found
            return


def _forms(x: Floats, axis: int) -> dict[str, Floats]:
    made = softmax(x, axis)
    with np.errstate(divide="ignore"):  # of what is zero
        return {"Softmax": made, "LogSoftmax": np.log(made)}


def _axis(made: Floats, x: Floats, limit: float) -> Optional[int]:
    """Along which axis the values sum to 1, for a layer that is no softmax by name."""
    for axis in range(x.ndim):
        if x.shape[axis] > 1 and np.abs(made.sum(axis=axis, dtype=np.float64) - 1.0).max() < max(limit, 1e-4):
            return axis
    return None


def _other_axis(scene: Scene, x: Floats) -> Optional[Suspect]:
    pair = scene.pair
    for axis in range(x.ndim):
        forms = _forms(x, axis)
        if scene.kind == "Softmin" or scene.kind == "Softmax":
            forms["Softmin"] = softmax(-x, axis)
        for name, made in forms.items():
            left = pair.proved(made, pair.actual)
            if left is None:
                continue
            told = f"{name}(axis={axis})"
            if name == scene.kind:
                cause = "logsoftmax-axis" if name == "LogSoftmax" else "softmax-axis-default"
                return scene.setting_suspect(cause, left, 0.85, "dim", axis, **spoken(told, scene.kind))
            wanted = scene.kind if scene.kind in KINDS else f"Softmax(axis={_axis(pair.expected, x, pair.limit)})"
            cause = "activation-other" if scene.kind in KINDS else "softmax-axis"
            code = {**spoken(told, wanted), "instead": told, "other": wanted}
            return scene.setting_suspect(cause, left, 0.85, "", told, **code)
    return None


def _temperature(scene: Scene, x: Floats) -> Optional[Suspect]:
    """Softmax of k * x: within a row, logarithms of the port's values rise with x by the slope k."""
    known = scene.kind in KINDS
    axis = scene.axis("dim", x.ndim) if known else _axis(scene.pair.actual, x, scene.pair.limit)
    if axis is None or x.shape[axis] < 2:
        return None
    made = np.asarray(scene.pair.actual, np.float64)
    if scene.kind != "LogSoftmax":
        made = np.log(np.maximum(made, 1e-300))
    seen = np.isfinite(x) & (made > -30.0)
    if seen.sum() < 8:
        return None
    count = np.maximum(seen.sum(axis=axis, keepdims=True), 1)
    high = np.where(seen, x, 0.0)
    rise = np.where(seen, made, 0.0)
    high = np.where(seen, high - high.sum(axis=axis, keepdims=True) / count, 0.0)
    rise = np.where(seen, rise - rise.sum(axis=axis, keepdims=True) / count, 0.0)
    scale = slope(high.reshape(-1), rise.reshape(-1))
    forms = _forms(x * scale, axis)
    left = scene.pair.proved(forms["LogSoftmax" if scene.kind == "LogSoftmax" else "Softmax"], scene.pair.actual)
    if left is None:
        return None
    told = name_of(scale, scene.pair.actual.shape)
    return scene.pair.suspect("softmax-scale", left, 0.8, scale=figure(scale) + (f" = {told}" if told else ""))
