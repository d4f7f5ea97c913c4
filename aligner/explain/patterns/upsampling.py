"""A resampling by another rule: nearest or linear or cubic, corners aligned or not, another scale. Tried on a map."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.inquiry import spend
from aligner.explain.patterns.pair import Floats
from aligner.explain.patterns.scene import Scene
from aligner.explain.phrase import Phrase, phrase
from aligner.explain.suspect import Suspect

MAPS = 1 << 15
"""Elements of the output maps that are looked at."""

CUBIC = -0.75
"""The coefficient of cubic weights."""

METHODS = {
    "nearest": ("plain", "half", "corners"),
    "linear": ("half", "corners", "plain"),
    "cubic": ("half", "corners", "plain"),
}
"""What is read, and the grids it is read at; the usual first."""


@dataclass(frozen=True)
class Rule:
    """How an output coordinate is turned into an input coordinate, and what is read there.

    `grid`: "half" (pixel centres), "corners" (aligned) or "plain" (a product). `scale`: input over output size, or the
    inverse of the factor that was asked for.
    """

    method: str
    grid: str
    scale: str = "sizes"


def suspects(scene: Scene) -> Iterator[Suspect]:
    """At most one. For classes of the user's own the reference's rule is found by its numbers."""
    x, pair = scene.x, scene.pair
    if x is None or x.ndim < 3 or not pair.alike or pair.actual.ndim != x.ndim:
        return
    sizes = pair.actual.shape[2:]
    if pair.actual.shape[:2] != x.shape[:2] or sizes == x.shape[2:] or "Pool" in scene.kind or "Conv" in scene.kind:
        return
    count = max(1, min(int(np.prod(x.shape[:2])), MAPS // max(int(np.prod(sizes)), 1)))
    few = np.asarray(x.reshape(-1, *x.shape[2:])[:count], np.float64)
    values = [np.asarray(v.reshape(-1, *sizes)[:count], np.float64) for v in (pair.expected, pair.actual)]
    factors = _factors(scene, x)
    rules = tuple(_rules(factors is not None))
    wanted = _fit(few, values[0], rules, factors, pair.limit)
    found = _fit(few, values[1], rules, factors, pair.limit)
    if wanted is None or found is None or found[0] == wanted[0] or found[1] * 8 > pair.before:
        return
    yield _told(scene, found[0], wanted[0], found[1])


def _factors(scene: Scene, x: Floats) -> Optional[tuple[float, ...]]:
    """The factors asked for, where the layer was given factors and not sizes."""
    factor: Any = scene.setting("scale_factor")
    if factor is None:
        return None
    axes = x.ndim - 2
    listed = factor if isinstance(factor, tuple) else (factor,) * axes
    good = len(listed) == axes and all(isinstance(f, (int, float)) and f > 0 for f in listed)
    return tuple(float(f) for f in listed) if good else None


def _rules(by_factor: bool) -> Iterator[Rule]:
    for scale in ("factor", "sizes") if by_factor else ("sizes",):
        for method, grids in METHODS.items():
            yield from (Rule(method, grid, scale) for grid in grids)


def _fit(
    few: Floats, made: Floats, rules: tuple[Rule, ...], factors: Optional[tuple[float, ...]], limit: float
) -> Optional[tuple[Rule, float]]:
    """The first rule that makes it."""
    for rule in rules:
        spend(10 * made.size)
        left = distance(resampled(few, made.shape[1:], rule, factors), made)
        if left <= limit:
            return (replace(rule, scale="sizes") if _whole(few, made, factors) else rule), left
    return None


def _whole(few: Floats, made: Floats, factors: Optional[tuple[float, ...]]) -> bool:
    """Whether the factors are the sizes' own ratio, so that both scales are one."""
    if factors is None:
        return True
    return all(abs(m / n - f) < 1e-9 for n, m, f in zip(few.shape[1:], made.shape[1:], factors))


def resampled(x: Floats, sizes: tuple[int, ...], rule: Rule, factors: Optional[tuple[float, ...]] = None) -> Floats:
    """Maps (count, *sizes) brought to other sizes, one axis after another."""
    for axis, size in enumerate(sizes):
        weights = matrix(x.shape[axis + 1], size, rule, _inverse(x, sizes, axis, rule, factors))
        x = np.moveaxis(np.tensordot(weights, x, (1, axis + 1)), 0, axis + 1)
    return x


def _inverse(x: Floats, sizes: tuple[int, ...], axis: int, rule: Rule, factors: Optional[tuple[float, ...]]) -> float:
    by_factor = rule.scale == "factor" and factors is not None
    return 1.0 / factors[axis] if by_factor and factors is not None else float(x.shape[axis + 1] / sizes[axis])


@lru_cache(maxsize=40)
def matrix(size: int, count: int, rule: Rule, inverse: float) -> Floats:
    """What each of `count` outputs reads from `size` inputs."""
    index = np.arange(count, dtype=np.float64)
    at = (index + 0.5) * inverse - 0.5 if rule.grid == "half" else index * inverse
    if rule.grid == "corners":
        at = index * ((size - 1) / max(count - 1, 1))
    weights = np.zeros((count, size))
    rows = np.arange(count)
    if rule.method == "nearest":
        near = {"plain": np.floor(at + 1e-9), "half": np.floor(at + 0.5 + 1e-9), "corners": np.floor(at + 0.5)}[
            rule.grid
        ]
        weights[rows, np.clip(near, 0, size - 1).astype(np.int64)] = 1.0
        return weights
    if rule.method == "linear":
        at = np.clip(at, 0, size - 1)
    low = np.floor(at).astype(np.int64)
    part = at - low
    for step, weight in ((0, 1.0 - part), (1, part)) if rule.method == "linear" else _cubic(part):
        np.add.at(weights, (rows, np.clip(low + step, 0, size - 1)), weight)
    return weights


def _cubic(t: Floats) -> tuple[tuple[int, Floats], ...]:
    def near(d: Floats) -> Floats:
        return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1

    def far(d: Floats) -> Floats:
        return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC

    return (-1, far(t + 1)), (0, near(t)), (1, near(1 - t)), (2, far(2 - t))


def _told(scene: Scene, found: Rule, wanted: Rule, left: float) -> Suspect:
    told: dict[str, Any] = {"found": _words(found), "wanted": _words(wanted)}
    if found.method != wanted.method:
        return scene.setting_suspect("upsample-mode-default-nearest", left, 0.85, "mode", found.method, **told)
    if found.grid != wanted.grid and "corners" in (found.grid, wanted.grid) and found.method != "nearest":
        return scene.setting_suspect(
            "interpolate-align-corners", left, 0.85, "align_corners", found.grid == "corners", **told
        )
    if found.grid == wanted.grid and found.scale != wanted.scale:
        return scene.pair.suspect("interpolate-scale-factor-rounding", left, 0.85, **told)
    return scene.pair.suspect("upsample-grid", left, 0.8, **told)


def _words(rule: Rule) -> Phrase:
    grid = {"half": "half-pixels", "corners": "corners-aligned", "plain": "index-times-scale"}[rule.grid]
    told = phrase(grid, rule.method)
    return phrase("scale-from-factor", told) if rule.scale == "factor" else told
