"""NaN that one framework hands on and the other hides, and what is made of nothing at all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Optional

import numpy as np

from aligner.explain.case import Value, distance
from aligner.explain.patterns.pair import Floats, Pair, figure
from aligner.explain.patterns.scene import Scene
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

Named = tuple[str, Floats]
"""A value that was in hand, and its name."""

BOUNDS = 2
"""A clamp has no more of them."""

MIXED = {
    "MaxPool": "largest-number",
    "AdaptiveMaxPool": "largest-number",
    "Softmax": "zero-beside",
    "LogSoftmax": "numbers-beside",
}
"""Layers that mix NaN with numbers, and what becomes of them where it does not spread, by a phrase."""


def suspects(scene: Scene) -> Iterator[Suspect]:
    """For a layer."""
    held = [(f"input.{number}", array) for number, array in enumerate(scene.inputs)]
    yield from told(scene.pair, held)
    instead = next((word for kind, word in MIXED.items() if scene.kind.startswith(kind)), None)
    if instead is not None and scene.x is not None and np.isnan(scene.x).any():
        yield from _mixed(scene.pair, instead)
    yield from of_nothing(scene.pair, scene.case.inputs)


def told(pair: Pair, held: Iterable[Named]) -> Iterator[Suspect]:
    """At most one: the port makes a number of what was NaN already."""
    if not pair.alike:
        return
    gone = np.isnan(pair.expected) & ~np.isnan(pair.actual)
    left = _rest(pair, gone)
    if left is None:
        return
    numbers = np.unique(pair.actual[gone])
    for name, array in held:
        if array.shape != gone.shape or array.dtype.kind != "f" or not np.isnan(array[gone]).all():
            continue
        facts: dict[str, Scalar] = {
            "other": f"[{name}]",
            "count": int(gone.sum()),
            "instead": ", ".join(map(figure, numbers[:BOUNDS])),
        }
        kept = np.isnan(array) & np.isfinite(pair.expected)
        if numbers.size <= BOUNDS and not kept.any():
            zero = numbers.size == 1 and numbers[0] == 0 and not (pair.expected[~gone] < 0).any()
            yield pair.suspect("relu-nan" if zero else "clamp-nan", left, 0.9, None, **facts)
            return


def _rest(pair: Pair, gone: Floats) -> Optional[float]:
    """How far all else is apart, where it agrees."""
    if not gone.any():
        return None
    left = distance(np.where(gone, 0.0, pair.actual), np.where(gone, 0.0, pair.expected))
    return left if left <= pair.limit else None


def _mixed(pair: Pair, instead: str) -> Iterator[Suspect]:
    """Evidence: NaN that reaches less of the port's value."""
    gone = np.isnan(pair.expected) & ~np.isnan(pair.actual) if pair.alike else np.zeros(0, bool)
    if gone.any() and _rest(pair, gone) is not None:
        told: dict[str, Fact] = {"other": "[input.0]", "count": int(gone.sum()), "instead": phrase(instead)}
        yield pair.suspect("clamp-nan", None, 0.75, None, **told)


def of_nothing(pair: Pair, held: Iterable[Value]) -> Iterator[Suspect]:
    """A mean over an empty selection: NaN in the reference, infinite in the port."""
    if not pair.alike:
        return
    gone = np.isnan(pair.expected) & np.isinf(pair.actual)
    if not gone.any() or _rest(pair, gone) is None:
        return
    for value in held:
        if 0 in value.shape or (value.dtype == "bool" and not value.load().any()):
            name = f"[{value.layer} {value.slot}]" if value.layer else f"[{value.slot}]"
            yield pair.suspect("mint-mean-empty-inf", _rest(pair, gone), 0.9, None, other=name, count=int(gone.sum()))
            return
