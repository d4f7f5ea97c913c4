"""The type of the values, and what frameworks compute less exactly than the reference does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aligner.explain.patterns.functions import coarse_tanh
from aligner.explain.patterns.pair import figure
from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect

EDGE = 2.0
"""A tanh of inputs below this is exact in every framework that was looked at; the worst is at 5."""

WORST = 2e-4
"""More than a known approximation of tanh is off."""

SHORT = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def suspects(scene: Scene) -> Iterator[Suspect]:
    """Evidence, mostly: little of this can be undone in numbers."""
    expected, actual = scene.case.expected, scene.case.actual
    if expected is not None and actual is not None and expected.dtype != actual.dtype:
        small = scene.pair.before < 4.0 * max(SHORT.get(actual.dtype, 0.0), SHORT.get(expected.dtype, 0.0))
        weight = 0.75 if small else 0.3
        yield scene.pair.suspect("dtype-differs", None, weight, port_dtype=actual.dtype, reference_dtype=expected.dtype)
    yield from _tanh(scene)


def _tanh(scene: Scene) -> Iterator[Suspect]:
    """Large inputs alone are off, by what MindSpore's tanh is off by on CPU."""
    x, pair = scene.x, scene.pair
    if scene.kind != "Tanh" or x is None or not pair.alike or x.shape != pair.actual.shape:
        return
    apart = np.abs(pair.actual - pair.expected)
    near = np.abs(x) < EDGE
    small = float(apart[near].max()) if near.any() else 0.0
    largest = float(apart.max())
    if near.all() or largest > WORST or small > largest / 8:
        return
    left = pair.proved(coarse_tanh(x), pair.actual)
    yield pair.suspect(
        "tanh-cpu-approximation", left, 0.7, largest=figure(largest), small=figure(small), edge=figure(EDGE)
    )
