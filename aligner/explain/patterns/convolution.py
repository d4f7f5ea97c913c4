"""A convolution with another stride, padding, dilation, border or kernel: done at a few places for each guess."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.patterns.pair import Floats, spots
from aligner.explain.patterns.scene import Scene
from aligner.explain.patterns.windows import MODES, pairs, per_axis, placed, same
from aligner.explain.suspect import Suspect

FEW, MANY = 24, 384
"""Places at which a guess is tried, and at which it is proved."""

CHANNELS = 12
"""Output channels that are looked at."""

NAMES = {
    "stride": "conv-stride",
    "before": "conv-padding",
    "dilation": "conv2d-dilation-dropped",
    "turn": "conv-weight-hw-transposed",
}


KERNELS = {"as it is": "weight", "flipped": "flip(weight)", "transposed": "weight.swapaxes(-1, -2)"}
"""What became of the kernel, as code."""

_CROSSWISE = {2: (0, 1, 3, 2), 3: (0, 1, 2, 4, 3)}
"""The axes of a weight whose kernel is transposed, by the axes of the kernel."""


@dataclass(frozen=True)
class Guess:
    """How a window slides: `before` is the padding at the start of each axis, `turn` what became of the kernel."""

    stride: tuple[int, ...]
    before: tuple[int, ...]
    dilation: tuple[int, ...]
    mode: str
    turn: str = "as it is"


def suspects(scene: Scene) -> Iterator[Suspect]:
    """At most one."""
    work = None if scene.kind.startswith("ConvTranspose") else Work.of(scene)
    if work is None:
        return
    own = settings_of(scene, work)
    if work.left(own, scene.pair.expected, FEW) > scene.pair.limit:
        return
    bare = replace(work, bias=np.zeros_like(work.bias))
    for material in (work, bare) if work.bias.any() else (work,):
        for guess in _guesses(own, work):
            if material.left(guess, scene.pair.actual, FEW) > scene.pair.limit:
                continue
            left = material.left(guess, scene.pair.actual, MANY)
            if left <= scene.pair.limit and left * 8 <= scene.pair.before:
                yield _told(scene, own, guess, left)
                if material is bare:
                    yield scene.setting_suspect(
                        "bias-missing", left, 0.8, "bias", False, axis=1, channels=bare.bias.size
                    )
                return


@dataclass(frozen=True, eq=False)
class Work:
    """The convolution's material: input, weight and bias."""

    x: Floats
    weight: Floats
    bias: Floats
    groups: int

    @staticmethod
    def of(scene: Scene) -> Optional[Work]:
        """None where the layer is no plain convolution."""
        x, weight = scene.x, scene.parameter("weight")
        if x is None or weight is None or weight.ndim < 3 or x.ndim != weight.ndim or x.shape[1] % weight.shape[1]:
            return None
        for value in (scene.pair.expected, scene.pair.actual):
            if value.ndim != x.ndim or value.shape[:2] != (x.shape[0], weight.shape[0]):
                return None
        bias = scene.parameter("bias")
        groups = x.shape[1] // weight.shape[1]
        if weight.shape[0] % groups or (bias is not None and bias.shape != weight.shape[:1]):
            return None
        return Work(x, weight, np.zeros(weight.shape[0]) if bias is None else bias, groups)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The input's size along the axes that the window slides over."""
        return tuple(self.x.shape[2:])

    @property
    def kernel(self) -> tuple[int, ...]:
        """The window's size."""
        return tuple(self.weight.shape[2:])

    def left(self, guess: Guess, made: Floats, count: int) -> float:
        """Relative L2 between what the guess makes and what was made, at some places."""
        shape = (made.shape[0], *made.shape[2:])
        places = np.unravel_index(_spread(shape, count), shape)
        chosen = np.linspace(0, self.weight.shape[0] - 1, min(CHANNELS, self.weight.shape[0])).astype(np.int64)
        found = np.empty((places[0].size, chosen.size))
        each = self.weight.shape[0] // self.groups
        for group in np.unique(chosen // each):
            mine = np.flatnonzero(chosen // each == group)
            patches = self._patches(guess, places, int(group))
            kernels = _turned(self.weight[chosen[mine]], guess.turn)
            found[:, mine] = patches @ kernels.reshape(mine.size, -1).T + self.bias[chosen[mine]]
        wanted = np.moveaxis(made, 1, -1)[places][:, chosen]
        return distance(found, np.asarray(wanted, np.float64))

    def _patches(self, guess: Guess, places: tuple[Floats, ...], group: int) -> Floats:
        """What the window sees at each place: (places, channels of the group times window)."""
        width, axes = self.weight.shape[1], len(self.sizes)
        index: list[Floats] = []
        counts = np.ones((1,) * (axes + 1), bool)
        for axis in range(axes):
            steps = np.arange(self.kernel[axis]) * guess.dilation[axis] - guess.before[axis]
            at, inside = placed(
                places[axis + 1][:, None] * guess.stride[axis] + steps[None, :], self.sizes[axis], guess.mode
            )
            form = (at.shape[0], *(at.shape[1] if a == axis else 1 for a in range(axes)))
            index.append(at.reshape(form))
            counts = counts & inside.reshape(form)
        first = places[0].reshape((-1,) + (1,) * axes)
        part = self.x[:, group * width : (group + 1) * width]
        where: Any = (first, *index)
        seen = np.moveaxis(part, 1, -1)[where]
        seen = np.where(counts[..., None], seen, 0.0)
        return np.asarray(np.moveaxis(seen, -1, 1).reshape(seen.shape[0], -1), np.float64)


def _spread(shape: tuple[int, ...], count: int) -> Floats:
    """Flat places over the whole, the corners and the middle among them."""
    size = int(np.prod(shape))
    ends = np.array(list(product(*[sorted({0, n // 2, n - 1}) for n in shape]))[:64]).T
    corners = np.ravel_multi_index(tuple(ends), shape)[:: max(1, ends.shape[1] * 2 // count)]
    return np.asarray(np.unique(np.concatenate([corners, spots(size, count)[:count]])))


def _turned(weight: Floats, how: str) -> Floats:
    if how == "flipped":
        return np.flip(weight, tuple(range(2, weight.ndim)))
    return weight.swapaxes(-1, -2) if how == "transposed" else weight


def settings_of(scene: Scene, work: Work) -> Guess:
    """The reference's settings."""
    axes = len(work.sizes)
    stride = per_axis(scene.setting("stride"), axes)
    dilation = per_axis(scene.setting("dilation"), axes)
    padding = scene.setting("padding")
    if isinstance(padding, str):
        before = tuple(
            same(n, k, s, d) if padding == "same" else 0
            for n, k, s, d in zip(work.sizes, work.kernel, stride, dilation)
        )
    else:
        before = tuple(pair[0] for pair in pairs(padding, axes))
    return Guess(stride, before, dilation, str(scene.setting("padding_mode", "zeros")))


def _guesses(own: Guess, work: Work) -> Iterator[Guess]:
    """One thing changed at a time; another stride or dilation with the paddings that go with it."""
    axes = len(work.sizes)
    yield from (replace(own, mode=mode) for mode in MODES if mode != own.mode)
    yield replace(own, turn="flipped")
    if axes >= 2 and work.kernel[-1] == work.kernel[-2] > 1:
        yield replace(own, turn="transposed")
    reach = [range(min((k - 1) * d, 12) + 1) for k, d in zip(work.kernel, own.dilation)]
    combined = product(*reach) if np.prod([len(r) for r in reach]) <= 49 else zip(*reach)
    yield from (replace(own, before=tuple(before)) for before in combined if tuple(before) != own.before)
    for stride in {(n,) * axes for n in (1, 2, 3)} - {own.stride}:
        for before in sorted({own.before, *((n,) * axes for n in range(min(max(work.kernel), 4)))}):
            yield replace(own, stride=stride, before=before)
    for dilation in {(n,) * axes for n in (1, 2, 3, 4)} - {own.dilation}:
        centre = tuple((k - 1) * d // 2 for k, d in zip(work.kernel, dilation))
        yield from (replace(own, dilation=dilation, before=before) for before in sorted({own.before, centre}))


def _told(scene: Scene, own: Guess, guess: Guess, left: float) -> Suspect:
    if guess.mode != own.mode:
        return scene.setting_suspect(
            "conv2d-padding-mode-reflect", left, 0.85, "padding_mode", guess.mode, found=guess.mode, wanted=own.mode
        )
    for name in ("turn", "dilation", "stride", "before"):
        found, wanted = getattr(guess, name), getattr(own, name)
        if found == wanted:
            continue
        cause = NAMES[name]
        if name == "before" and len(found) == 1 and wanted[0] == max(wanted[0], found[0]) and _causal(scene, own):
            cause = "causal-conv-padding"
        setting = {"before": "padding", "turn": "kernel"}.get(name, name)
        told = {
            "found": KERNELS.get(str(found), str(found)),
            "wanted": KERNELS.get(str(wanted), str(wanted)),
            "turned": KERNELS.get(str(found), "weight"),
            "port_parameter": "weight",
        }
        suspect = scene.setting_suspect(cause, left, 0.85, setting, told["found"], role="weight", **told)
        return replace(suspect, turned={"weight": _CROSSWISE[len(own.before)]} if found == "transposed" else {})
    return scene.pair.suspect("conv-padding", left, 0.5, found=str(guess.before), wanted=str(own.before))


def _causal(scene: Scene, own: Guess) -> bool:
    """Whether the reference pads before only."""
    padding = pairs(scene.setting("padding"), len(own.before))
    return all(before > 0 and after == 0 for before, after in padding)
