"""A pooling over other windows, with another border, another divisor, or a mean for a maximum: tried on a few maps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.patterns.pair import Floats
from aligner.explain.patterns.scene import Scene
from aligner.explain.patterns.windows import pairs, per_axis
from aligner.explain.phrase import phrase
from aligner.explain.suspect import Suspect

MAPS = 1 << 15
"""Elements of the maps that are looked at."""

Window = tuple[int, int, int]
"""From, to (both inside the map), and how many elements a mean divides by."""


@dataclass(frozen=True)
class Guess:
    """How a pooling works. `border` is what a maximum sees outside, `divisor` what a mean divides by.

    `windows`: "sliding", "adaptive" (overlapping where the sizes do not divide) or "disjoint".
    """

    mean: bool
    windows: str
    kernel: tuple[int, ...] = ()
    stride: tuple[int, ...] = ()
    before: tuple[int, ...] = ()
    border: str = "nothing"
    divisor: str = "window"


def suspects(scene: Scene) -> Iterator[Suspect]:
    """At most one."""
    x, pair = scene.x, scene.pair
    if "Pool" not in scene.kind or x is None or pair.actual.ndim != x.ndim or x.ndim < 3:
        return
    own = _own(scene, x)
    if own is None or pair.actual.shape[:2] != x.shape[:2] or pair.expected.shape[:2] != x.shape[:2]:
        return
    maps = _maps(scene, x)
    few, made = np.asarray(_flat(x)[maps], np.float64), np.asarray(_flat(pair.actual)[maps], np.float64)
    wanted = np.asarray(_flat(pair.expected)[maps], np.float64)
    if distance(pooled(few, own, wanted.shape[1:]), wanted) > pair.limit:
        return
    for guess in _guesses(own):
        found = pooled(few, guess, made.shape[1:])
        left = distance(found, made)
        if left <= pair.limit and left * 8 <= pair.before:
            yield _told(scene, own, guess, left)
            return


def _flat(value: Floats) -> Floats:
    return value.reshape(-1, *value.shape[2:])


def _maps(scene: Scene, x: Floats) -> Floats:
    """Maps that are wrong, as many as fit."""
    pair = scene.pair
    each = int(np.prod(x.shape[2:]))
    count = max(2, min(len(_flat(x)), MAPS // max(each, 1)))
    if not pair.alike:
        return np.arange(count)
    apart = np.abs(_flat(pair.actual) - _flat(pair.expected)).reshape(len(_flat(x)), -1).max(axis=1)
    return np.argsort(-apart, kind="stable")[:count]


def _own(scene: Scene, x: Floats) -> Optional[Guess]:
    """The reference's settings."""
    axes = x.ndim - 2
    mean = "Avg" in scene.kind
    if scene.kind.startswith("Adaptive"):
        return Guess(mean, "adaptive")
    kernel = per_axis(scene.setting("kernel_size"), axes)
    padding = scene.setting("padding")
    if isinstance(padding, str) or any(d != 1 for d in per_axis(scene.setting("dilation"), axes)):
        return None
    before = tuple(pair[0] for pair in pairs(padding, axes))
    counted = bool(scene.setting("count_include_pad", True))
    stride = per_axis(scene.setting("stride", scene.setting("kernel_size")), axes)
    return Guess(mean, "sliding", kernel, stride, before, divisor="padded" if counted else "inside")


def pooled(x: Floats, guess: Guess, shape: Sequence[int]) -> Floats:
    """The pooling of maps (count, *sizes) to `shape`; NaN where a window sees nothing."""
    made, divided, partial = x, np.ones((1,) * x.ndim), np.zeros((1,) * x.ndim, bool)
    for axis, size in enumerate(shape):
        windows = _windows(guess, axis, x.shape[axis + 1], size)
        form = [-1 if a == axis + 1 else 1 for a in range(x.ndim)]
        parts = [made[(slice(None),) * (axis + 1) + (slice(a, b),)] for a, b, _ in windows]
        if any(part.shape[axis + 1] == 0 for part in parts):
            return np.full((len(x), *shape), np.nan)
        joined = [part.sum(axis=axis + 1) if guess.mean else part.max(axis=axis + 1) for part in parts]
        made = np.stack(joined, axis + 1)
        divided = divided * np.array([n for _, _, n in windows], np.float64).reshape(form)
        whole = guess.kernel[axis] if guess.kernel else 0
        partial = partial | np.array([b - a < whole for a, b, _ in windows]).reshape(form)
    if guess.mean:
        return np.asarray(made / divided)
    return np.where(partial, np.maximum(made, 0.0), made) if guess.border == "zeros" else made


@lru_cache(maxsize=256)
def _windows(guess: Guess, axis: int, size: int, count: int) -> list[Window]:
    if guess.windows == "adaptive":
        spans = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
        return [(a, b, b - a) for a, b in spans]
    if guess.windows == "disjoint":
        step = max(size // count, 1)
        return [(i * step, min((i + 1) * step, size), step) for i in range(count)]
    if guess.windows == "wide":
        step = max(size // count, 1)
        kernel = size - (count - 1) * step
        return [(i * step, min(i * step + kernel, size), kernel) for i in range(count)]
    kernel, stride, before = guess.kernel[axis], guess.stride[axis], guess.before[axis]
    found: list[Window] = []
    for i in range(count):
        start = i * stride - before
        inside = max(start, 0), max(min(start + kernel, size), max(start, 0))
        padded = min(start + kernel, size + before) - start
        number = {"padded": padded, "inside": inside[1] - inside[0], "window": kernel}[guess.divisor]
        found.append((*inside, max(number, 1)))
    return found


def _guesses(own: Guess) -> Iterator[Guess]:
    """One thing changed at a time, then the other kind of pooling."""
    if own.windows == "adaptive":
        yield replace(own, windows="disjoint")
        yield replace(own, windows="wide")
        yield replace(own, mean=not own.mean)
        return
    if own.mean:
        yield from (replace(own, divisor=word) for word in ("padded", "inside", "window") if word != own.divisor)
    else:
        yield replace(own, border="zeros")
    axes = len(own.kernel)
    reach = [tuple(range(min(k, 6))) for k in own.kernel]
    strides = sorted({own.stride, own.kernel, (1,) * axes, (2,) * axes})
    for stride in strides:
        for before in product(*reach) if np.prod([len(r) for r in reach]) <= 36 else zip(*reach):
            for divisor in ("padded", "inside") if own.mean else (own.divisor,):
                for edge in ("nothing",) if own.mean else ("nothing", "zeros"):
                    yield replace(own, stride=stride, before=tuple(before), divisor=divisor, border=edge)
    for mean, divisor in ((not own.mean, "padded"), (not own.mean, "inside")):
        yield replace(own, mean=mean, divisor=divisor)


def _told(scene: Scene, own: Guess, guess: Guess, left: float) -> Suspect:
    names = {True: phrase("mean"), False: phrase("maximum")}
    if guess.mean != own.mean:
        told = {"found": names[guess.mean], "wanted": names[own.mean]}
        return scene.pair.suspect("pool-mean-or-max", left, 0.85, None, **told)
    divisors = {"found": phrase(f"divisor-{guess.divisor}"), "wanted": phrase(f"divisor-{own.divisor}")}
    if guess.windows != own.windows:
        return scene.pair.suspect(
            "adaptive-avgpool-nondivisible", left, 0.85, found=phrase(guess.windows), wanted=phrase(own.windows)
        )
    if guess.stride != own.stride:
        return scene.setting_suspect("pool-stride-default", left, 0.85, "stride", guess.stride)
    if guess.before == own.before and guess.border == "zeros":
        return scene.pair.suspect("maxpool-zero-padding-before", left, 0.85)
    if guess.before == own.before and "window" in (guess.divisor, own.divisor):
        return scene.pair.suspect("avgpool-ceil-mode-divisor", left, 0.85, None, **divisors)
    if guess.before == own.before and guess.divisor != own.divisor:
        return scene.setting_suspect(
            "avgpool-count-include-pad", left, 0.85, "count_include_pad", guess.divisor == "padded"
        )
    return scene.setting_suspect(
        "pool-padding", left, 0.85, "padding", guess.before, found=str(guess.before), wanted=str(own.before)
    )
