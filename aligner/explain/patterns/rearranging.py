"""Layers that only move values: pixel shuffles, flatten, unfold, padding, and the halves of a gated unit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np

from aligner.explain.patterns.activations import spoken
from aligner.explain.patterns.functions import applied, sigmoid
from aligner.explain.patterns.pair import Floats
from aligner.explain.patterns.scene import Scene
from aligner.explain.patterns.windows import pairs
from aligner.explain.phrase import phrase
from aligner.explain.suspect import Suspect

PAD_MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "symmetric": "symmetric"}
"""Our words for numpy's."""


def suspects(scene: Scene) -> Iterator[Suspect]:
    """At most one, for the layer's own kind."""
    x = scene.x
    rule = {
        "PixelShuffle": _shuffled,
        "PixelUnshuffle": _unshuffled,
        "Flatten": _flattened,
        "Unfold": _unfolded,
        "Pad": _padded,
        "GLU": _gated,
    }.get(scene.kind)
    if x is not None and rule is not None:
        yield from rule(scene, x)


def _shuffled(scene: Scene, x: Floats) -> Iterator[Suspect]:
    r = scene.whole("upscale_factor")
    if x.ndim != 4 or x.shape[1] % (r * r):
        return
    n, c, h, w = x.shape
    made = x.reshape(n, r, r, c // r**2, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // r**2, h * r, w * r)
    yield from _if_made(scene, made, "pixel-shuffle-vs-depth-to-space", factor=r)


def _unshuffled(scene: Scene, x: Floats) -> Iterator[Suspect]:
    r = scene.whole("downscale_factor")
    if x.ndim != 4 or x.shape[2] % r or x.shape[3] % r:
        return
    n, c, h, w = x.shape
    cut = x.reshape(n, c, h // r, r, w // r, r)
    for order in ((0, 3, 5, 1, 2, 4), (0, 5, 3, 1, 2, 4), (0, 1, 5, 3, 2, 4)):
        made = cut.transpose(order).reshape(n, c * r * r, h // r, w // r)
        found = list(_if_made(scene, made, "focus-slice-order", factor=r))
        if found:
            yield from found
            return


def _flattened(scene: Scene, x: Floats) -> Iterator[Suspect]:
    if x.ndim > 5 or x.size != scene.pair.actual.size:
        return
    for order in permutations(range(1, x.ndim)):
        whole = (0, *order)
        if whole == tuple(range(x.ndim)):
            continue
        made = x.transpose(whole).reshape(scene.pair.actual.shape)
        found = list(_if_made(scene, made, "flatten-nhwc-order", axes=str(whole)))
        if found:
            yield from found
            return


def _unfolded(scene: Scene, x: Floats) -> Iterator[Suspect]:
    wanted = scene.pair.expected
    if x.ndim != 4 or wanted.ndim != 3 or wanted.shape[1] % x.shape[1] or scene.pair.actual.size != wanted.size:
        return
    n, rows, places = wanted.shape
    made = wanted.reshape(n, x.shape[1], -1, places).swapaxes(1, 2).reshape(scene.pair.actual.shape)
    yield from _if_made(scene, made, "unfold-kernel-major", channels=x.shape[1], kernel=rows // x.shape[1])


def _padded(scene: Scene, x: Floats) -> Iterator[Suspect]:
    given: Any = scene.setting("padding", ())
    amounts = list(pairs(given, len(given))) if isinstance(given, (tuple, list)) else []
    if not amounts or len(amounts) > x.ndim or any(v < 0 for p in amounts for v in p):
        return
    rest = [(0, 0)] * (x.ndim - len(amounts))
    orders = {
        "last-axis-first": [*rest, *reversed(amounts)],
        "first-axis-first": [*rest, *amounts],
        "ends-exchanged": [*rest, *(p[::-1] for p in reversed(amounts))],
    }
    for order, pads in orders.items():
        shape = tuple(n + sum(p) for n, p in zip(x.shape, pads))
        if shape != scene.pair.actual.shape:
            continue
        for mode in PAD_MODES:
            made = _pad(x, pads, mode, scene.number("value", 0.0))
            told = {
                "found": phrase("padding-order", mode, phrase(order)),
                "wanted": str(scene.setting("mode", "constant")),
            }
            found = list(_if_made(scene, made, "pad-done-otherwise", **told)) if made is not None else []
            if found:
                yield from found
                return


def _pad(x: Floats, pads: list[Any], mode: str, value: float) -> Any:
    most = max(v for p in pads for v in p)
    if mode == "reflect" and any(max(p) >= n for p, n in zip(pads, x.shape) if any(p)):
        return None
    if mode == "symmetric" and most > max(x.shape):
        return None
    return np.pad(x, pads, mode=PAD_MODES[mode], **({"constant_values": value} if mode == "constant" else {}))  # type: ignore[call-overload]  # the words are numpy's


def _gated(scene: Scene, x: Floats) -> Iterator[Suspect]:
    axis = scene.axis("dim", x.ndim)
    if axis is None or x.shape[axis] % 2:
        return
    first, second = np.split(np.asarray(x, np.float64), 2, axis)
    told = {"instead": "x[first]", "reference_code": "x[first] * sigmoid(x[second])"}
    yield from _if_made(
        scene, second * sigmoid(first), "swiglu-chunk-order", **told, port_code="x[second] * sigmoid(x[first])"
    )
    for name in ("SiLU", "GELU", "Tanh", "ReLU"):
        yield from _if_made(scene, first * applied(name, second), "activation-other", **spoken(name, "Sigmoid"))


def _if_made(scene: Scene, made: Floats, cause: str, **facts: Any) -> Iterator[Suspect]:
    left = scene.pair.proved(made, scene.pair.actual) if made.shape == scene.pair.actual.shape else None
    if left is not None:
        yield scene.pair.suspect(cause, left, 0.9, **facts)
