"""What a normalisation did, read off its input and its output: over which axes, centred or not, which eps.

With the weight and bias undone, a normalised group of elements is its centred input times one number. That holds for
the axes it was done over and for no others, which tells the axes; how the numbers depend on the variances tells eps,
the divisor (n or n - 1) and whether eps stands inside the root. A few groups are looked at; the whole is the proof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.patterns.pair import Floats, thin
from aligner.explain.patterns.scene import Scene

LARGEST = 1 << 24
"""Larger inputs are not taken apart in float64."""

GROUPS = 1 << 14
"""Elements of the groups that are looked at."""

WIDE = 1 << 16
"""A group with more elements is looked at only where the reference's own kind has such groups."""

EPS = (1e-5, 1e-6, 1e-7, 1e-12, 1e-8, 1e-3, 1e-4, 1e-2, 1e-10, 0.0)
"""What people write, the usual first: of several that do as well as another the first is told."""

Affine = tuple[str, Floats, Floats]
"""A name of AFFINE, its weight and its bias."""

LAWS = ("var", "unbiased", "std", "unbiased std", "sum", "none")
"""How the divisor follows from the variance; the usual one first."""

AFFINE = ("weight, bias", "weight", "-", "bias", "1 + weight")


@dataclass(frozen=True)
class Form:
    """What a normalisation does. `over` are the axes, or "running", or the number of groups as "groups 4"."""

    over: str
    centred: bool
    law: str
    eps: float
    affine: str


@dataclass(frozen=True, eq=False)
class Statistics:
    """One way to group the elements: `axes` of `view` are reduced."""

    over: str
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @cached_property
    def count(self) -> int:
        """Elements of a group."""
        return int(np.prod([self.shape[axis] for axis in self.axes]))

    def some(self) -> tuple[Floats, ...]:
        """Indices of a few whole groups, at least four where there are."""
        kept = [axis for axis in range(len(self.shape)) if axis not in self.axes]
        room = max(GROUPS // max(self.count, 1), 4)
        picks = [np.arange(n) for n in self.shape]
        for rank, axis in enumerate(sorted(kept, key=lambda axis: self.shape[axis])):
            share = max(1, int(room ** (1.0 / (len(kept) - rank)) + 1e-9))
            take = min(self.shape[axis], share)
            picks[axis] = np.unique(np.linspace(0, self.shape[axis] - 1, take).round().astype(np.int64))
            room = max(1, room // take)
        return tuple(np.ix_(*picks))


def ways(scene: Scene, x: Floats) -> Iterator[Statistics]:
    """The groupings that norms know, the reference's own kind first."""
    rank = x.ndim
    found: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []

    def add(axes: Sequence[int], own: bool = False) -> None:
        axes = tuple(axis for axis in axes if axis < rank)
        if not own and np.prod([x.shape[axis] for axis in axes]) > WIDE:
            return
        if axes and all(entry[2] != axes or entry[1] != x.shape for entry in found):
            found.append((", ".join(map(str, axes)), x.shape, axes))

    batch = (0, *range(2, rank))
    shape = scene.setting("normalized_shape", ())
    last = len(shape) if isinstance(shape, tuple) else 1
    if scene.kind == "BatchNorm":
        add(batch, own=True)
    if scene.kind == "InstanceNorm":
        add(range(2, rank), own=True)
    if scene.kind in ("LayerNorm", "RMSNorm") and 0 < last <= rank:
        add(range(rank - last, rank), own=True)
    channels = x.shape[1] if rank >= 2 else 1
    groups = [n for n in range(1, channels + 1) if channels % n == 0] if rank >= 3 and channels <= 4096 else []
    own = scene.setting("num_groups", 0)
    for n in sorted(groups, key=lambda n: n != own)[:24] if scene.kind == "GroupNorm" else ():
        found.append((f"groups {n}", (x.shape[0], n, x.size // (x.shape[0] * n)), (2,)))
    for count in range(1, rank + 1):
        add(range(rank - count, rank))
    for axis in range(rank):
        add((axis,))
    if rank >= 2:
        add(batch)
        add(range(rank - 1))
        add(range(1, rank))
    return (Statistics(*entry) for entry in found)


@dataclass(frozen=True, eq=False)
class Reader:
    """Reads the form of a value made from the scene's first input."""

    scene: Scene
    x: Floats
    limit: float

    @staticmethod
    def of(scene: Scene) -> Optional[Reader]:
        """None where the input is no material for a norm."""
        x = scene.x
        if x is None or not 2 <= x.ndim <= 6 or x.size > LARGEST or not np.isfinite(x).all():
            return None
        if not scene.pair.alike or x.shape != scene.pair.actual.shape:
            return None
        return Reader(scene, np.asarray(x, np.float64), scene.pair.limit)

    def _spread(self, role: str) -> list[Floats]:
        """The parameter as it may be laid over the input: along its own axis first."""
        value = self.scene.parameter(role)
        if value is None:
            return []
        shape, rank = self.x.shape, self.x.ndim
        laid: list[Floats] = []
        if value.ndim <= rank and shape[rank - value.ndim :] == value.shape:
            laid.append(value.reshape((1,) * (rank - value.ndim) + value.shape))
        if value.ndim == 1 and rank >= 2 and shape[1] == value.size:
            laid.append(value.reshape((1, -1) + (1,) * (rank - 2)))
        if self.scene.kind in ("BatchNorm", "GroupNorm", "InstanceNorm"):
            laid.reverse()
        return laid

    def _affine(self) -> Iterator[Affine]:
        """Each affine part there may have been, with its weight and bias laid over the input."""
        weights, biases = self._spread("weight"), self._spread("bias")
        zero, one = np.zeros((1,) * self.x.ndim), np.ones((1,) * self.x.ndim)
        for name in AFFINE:
            first, second = "weight" in name, "bias" in name
            if (first and not weights) or (second and not biases):
                continue
            for index in range(max(len(weights) if first else 0, len(biases) if second else 0, 1)):
                weight = weights[min(index, len(weights) - 1)] if first else one
                bias = biases[min(index, len(biases) - 1)] if second else zero
                yield name, weight + 1.0 if name == "1 + weight" else weight, bias

    def read(self, made: Floats) -> Optional[tuple[Form, float]]:
        """The form that makes `made` of the input, and the relative L2 that it leaves."""
        made = np.asarray(made, np.float64)
        if not np.isfinite(made).all():
            return None
        affine = list(self._affine())
        if self.scene.kind == "BatchNorm":
            found = self._running(affine, made)
            if found is not None:
                return found
        for way in ways(self.scene, self.x):
            found = self._along(way, affine, made) if way.count > 1 else None
            if found is not None:
                return found
        return None

    def _along(self, way: Statistics, affine: list[Affine], made: Floats) -> Optional[tuple[Form, float]]:
        some = way.some()
        x, part = self.x.reshape(way.shape)[some], made.reshape(way.shape)[some]
        for centred in (True, False):
            center = x - x.mean(axis=way.axes, keepdims=True) if centred else x
            var = np.square(center).mean(axis=way.axes)
            for name, weight, bias in affine:
                plain = undone(part, self._few(weight, way.shape, some), self._few(bias, way.shape, some))
                scale, left = _scales(center, plain, way.axes)
                if left > self.limit or not (scale > 0).any():
                    continue
                law, eps = self._law(var.reshape(-1), scale.reshape(-1), way.count)
                form = Form(way.over, centred, law, eps, name)
                apart = distance(self._made(form, way, weight, bias), made)
                if apart <= self.limit:
                    return form, apart
        return None

    def _few(self, part: Floats, shape: tuple[int, ...], some: tuple[Floats, ...]) -> Floats:
        """The affine part at some places of the input seen as `shape`."""
        return np.broadcast_to(part, self.x.shape).reshape(shape)[some] if part.size > 1 else part.reshape(-1)[0]

    def _made(self, form: Form, way: Statistics, weight: Floats, bias: Floats) -> Floats:
        x = self.x.reshape(way.shape)
        center = x - x.mean(axis=way.axes, keepdims=True) if form.centred else x
        var = np.square(center).mean(axis=way.axes, keepdims=True)
        return np.asarray((center / divisor(form.law, var, way.count, form.eps)).reshape(self.x.shape) * weight + bias)

    def _running(self, affine: list[Affine], made: Floats) -> Optional[tuple[Form, float]]:
        """With the running statistics of a BatchNorm."""
        for mean, var in zip(self._spread("running_mean"), self._spread("running_var")):
            others = tuple(axis for axis in range(self.x.ndim) if mean.shape[axis] == 1)
            center = self.x - mean
            some = thin(self.x.shape, [axis for axis in range(self.x.ndim) if axis not in others], GROUPS, 1 << 16)
            for name, weight, bias in affine:
                plain = undone(made[some], self._few(weight, made.shape, some), self._few(bias, made.shape, some))
                scale, left = _scales(center[some], plain, others)
                if left > self.limit or not (scale > 0).any():
                    continue
                law, eps = self._law(var.reshape(-1), scale.reshape(-1), 1 << 30)
                apart = distance(center / divisor(law, var, 1 << 30, eps) * weight + bias, made)
                if apart <= self.limit:
                    return Form("running", True, law, eps, name), apart
        return None

    def _law(self, var: Floats, scale: Floats, count: int) -> tuple[str, float]:
        """How the scales follow from the variances; the reference's own eps where several do as well."""
        good = (scale > 0) & np.isfinite(scale) & (var > 0)
        if not good.any():
            return LAWS[0], 0.0
        var, wanted = var[good], 1.0 / scale[good]
        low = var <= np.quantile(var, 0.25)
        own = self.scene.setting("eps")
        known = ([float(own)] if isinstance(own, float) else []) + list(EPS)
        best: tuple[float, str, float] = (np.inf, LAWS[0], 0.0)
        for law in LAWS:
            if "unbiased" in law and count > 1 << 20:
                continue
            fitted = float(np.median(_eps(law, var[low], wanted[low], count)))
            for eps in (*known, fitted):
                if eps < 0 or (law in ("sum", "none") and eps):
                    continue
                apart = float(np.sqrt(np.mean(np.square(divisor(law, var, count, eps) / wanted - 1.0))))
                if apart < 0.7 * best[0] - 1e-8:
                    best = apart, law, eps
        return best[1], best[2]


def undone(made: Floats, weight: Floats, bias: Floats) -> Floats:
    """The values before their affine part; NaN where the weight hides them."""
    hidden = np.abs(weight) <= 1e-3 * np.abs(weight).max()
    return np.asarray((made - bias) / np.where(hidden, np.nan, weight))


def _scales(center: Floats, plain: Floats, axes: tuple[int, ...]) -> tuple[Floats, float]:
    """For each group the number that brings its centred input onto its output, and the relative L2 that is left."""
    seen = np.isfinite(plain)
    plain, part = np.where(seen, plain, 0.0), np.where(seen, center, 0.0)
    square = np.square(part).sum(axis=axes, keepdims=True)
    both = (part * plain).sum(axis=axes, keepdims=True)
    scale = np.divide(both, square, where=square > 0, out=np.zeros_like(square))
    size = float(np.linalg.norm(plain))
    return scale, float(np.linalg.norm(plain - scale * part)) / size if size else np.inf


def divisor(law: str, var: Floats, count: int, eps: float) -> Floats:
    """What the centred values are divided by."""
    unbiased = var * (count / (count - 1.0)) if count > 1 else var
    if law == "std":
        return np.asarray(np.sqrt(var) + eps)
    if law == "unbiased std":
        return np.asarray(np.sqrt(unbiased) + eps)
    if law == "none":
        return np.ones_like(var)
    if law == "sum":
        return np.asarray(np.sqrt(var * count))
    return np.asarray(np.sqrt((unbiased if law == "unbiased" else var) + eps))


def _eps(law: str, var: Floats, wanted: Floats, count: int) -> Floats:
    """The eps of each group, had that law made it."""
    unbiased = var * (count / (count - 1.0)) if count > 1 else var
    if law == "std":
        return np.asarray(wanted - np.sqrt(var))
    if law == "unbiased std":
        return np.asarray(wanted - np.sqrt(unbiased))
    return np.asarray(np.square(wanted) - (unbiased if law == "unbiased" else var))
