"""A matrix product done otherwise: without its bias or with it twice, scaled, or with the weight across."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.patterns.pair import Floats, figure, spots
from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect

WORK = 1 << 27
"""Products that may be spent on one hypothesis."""


def suspects(scene: Scene) -> Iterator[Suspect]:
    """What fits the port's value: of the bias for every layer that adds one, of the weight for plain products."""
    bias = _bias(scene)
    if bias is not None:
        yield bias
        return
    rows = rows_of(scene)
    if rows is not None:
        yield from _weight(scene, *rows)


def _bias(scene: Scene) -> Optional[Suspect]:
    """The difference is the bias itself."""
    bias, pair = scene.parameter("bias"), scene.pair
    if bias is None or bias.ndim != 1 or not pair.alike:
        return None
    shape = pair.expected.shape
    axes = [len(shape) - 1, 1] if scene.kind == "Linear" else [1, len(shape) - 1]
    for axis in (a for a in axes if 0 <= a < len(shape) and shape[a] == bias.size):
        laid = bias.reshape([-1 if a == axis else 1 for a in range(len(shape))])
        for cause, times in (("bias-missing", 1.0), ("bias-twice", -1.0)):
            left = pair.proved(pair.actual + times * laid, pair.expected)
            if left is not None:
                return scene.setting_suspect(cause, left, 0.9, "bias", times < 0, axis=axis, channels=int(bias.size))
        scaled = _scaled(scene, laid)
        if scaled is not None:
            return scaled
    return None


def _scaled(scene: Scene, bias: Floats) -> Optional[Suspect]:
    """Everything but the bias is scaled."""
    pair = scene.pair
    places = np.unravel_index(pair.spots, pair.expected.shape)
    offset = np.broadcast_to(bias, pair.expected.shape)[places]
    wanted, found = pair.expected[places] - offset, pair.actual[places]
    if not np.isfinite(wanted).all() or not np.isfinite(found).all() or wanted.size < 8:
        return None
    terms = np.stack([wanted, offset], 1).astype(np.float64)
    (product, added), *_ = np.linalg.lstsq(terms, found.astype(np.float64), rcond=None)
    if not pair.near(terms @ np.array([product, added]), found):
        return None
    left = pair.proved((pair.expected - bias) * product + added * bias, pair.actual)
    if left is None or not product or abs(added - 1.0) >= 1e-4:
        return None
    factor = figure(round(1.0 / product, 6))
    code: dict[str, Any] = {"reference_code": f"x * {factor} @ W + b", "port_code": "x @ W + b"}
    return pair.suspect("scale-missing", left, 0.8, factor=factor, **code)


def rows_of(scene: Scene) -> Optional[tuple[Floats, Floats, Floats, Any]]:
    """Some rows of input and output, the weight and the bias, where the reference is their product."""
    x, weight, pair = scene.x, scene.parameter("weight"), scene.pair
    if x is None or weight is None or weight.ndim != 2 or not pair.alike or x.ndim < 1:
        return None
    shape = pair.expected.shape
    if x.shape[-1:] != weight.shape[1:] or shape != (*x.shape[:-1], weight.shape[0]):
        return None
    count = max(4, min(256, WORK // max(weight.size, 1)))
    chosen = spots(x.size // x.shape[-1], count)
    few = np.asarray(x.reshape(-1, x.shape[-1])[chosen], np.float64)
    made = np.asarray(pair.actual.reshape(-1, shape[-1])[chosen], np.float64)
    wanted = np.asarray(pair.expected.reshape(-1, shape[-1])[chosen], np.float64)
    found = scene.parameter("bias")
    bias = 0.0 if found is None or found.shape != weight.shape[:1] else found
    if distance(few @ weight.T + bias, wanted) > pair.limit:
        return None
    return few, made, weight, bias


def _weight(scene: Scene, few: Floats, made: Floats, weight: Floats, bias: Any) -> Iterator[Suspect]:
    pair = scene.pair

    def left_of(guess: Floats) -> Optional[float]:
        left = distance(guess, made)
        return left if left <= pair.limit and left * 8 <= pair.before else None

    if weight.shape[0] == weight.shape[1]:
        left = left_of(few @ weight + bias)
        if left is not None:
            told = pair.suspect("dense-weight-transposed-square", left, 0.85, role="weight", port_parameter="weight")
            yield replace(told, turned={"weight": (1, 0)})
            return
    across = few @ weight.reshape(weight.shape[::-1]) + bias
    left = left_of(across)
    if left is not None:
        yield pair.suspect("weight-across", left, 0.85, shape=str(weight.shape))
        return
