"""Functions that a framework computes less exactly than the reference's: nobody's mistake, but to be known."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

import numpy as np

from aligner.explain.case import distance
from aligner.explain.patterns.functions import erf
from aligner.explain.patterns.pair import Floats, Pair, at, figure
from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect

Named = tuple[str, Floats]
"""A value that was in hand, and its name."""

EDGE = 0.97
"""MindSpore's erfinv on CPU is exact to 3e-7 of inputs below this."""

WORST = 0.06
"""More than it is off at -0.999, relative to its value there."""

SCALES = (1.0, math.sqrt(2.0))
"""erfinv itself, and the quantiles of a normal distribution."""

NEAR = 1e-4
SAME = 1e-5


def suspects(scene: Scene) -> Iterator[Suspect]:
    """For a layer."""
    yield from told(scene.pair, [(f"input.{number}", array) for number, array in enumerate(scene.inputs)])


def told(pair: Pair, held: Iterable[Named]) -> Iterator[Suspect]:
    """At most one: the reference's value is erfinv of one in hand, and the port's is off near the edges alone."""
    if not pair.alike or not (np.isfinite(pair.expected).all() and np.isfinite(pair.actual).all()):
        return
    apart = np.abs(np.asarray(pair.actual, np.float64) - pair.expected)
    for name, array in held:
        if array.shape != pair.expected.shape or array.dtype.kind != "f" or np.isnan(array).any():
            continue
        for scale, shift, x in _given(np.asarray(array, np.float64)):
            wanted = np.asarray(pair.expected, np.float64) / scale
            if np.abs(x).max() >= 1.0 or distance(erf(at(wanted, pair.spots)), at(x, pair.spots)) > NEAR:
                continue
            near = np.abs(x) < EDGE
            largest = float((apart / (np.abs(pair.expected) + 1.0)).max())
            small = float(apart[near].max()) if near.any() else 0.0
            if near.all() or largest > WORST or small > SAME * (1.0 + scale):
                return
            given = f"2 * [{name}] - 1" if shift else f"[{name}]"
            formula = f"{'' if scale == 1.0 else 'sqrt(2) * '}erfinv({given})"
            facts = {"largest": figure(float(apart.max())), "small": figure(small), "other": formula}
            yield pair.suspect("erfinv-cpu-approximation", None, 0.8, None, **facts)
            return


def _given(array: Floats) -> Iterator[tuple[float, bool, Floats]]:
    """What erfinv may have been taken of: the value, or the value as a share from 0 to 1."""
    for scale in SCALES:
        yield scale, False, array
        if array.min() > 0.0 and array.max() < 1.0:
            yield scale, True, 2.0 * array - 1.0
