"""Products of operands that a device rounds on its own, and sums in a short type: float32 by name, less in fact."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.patterns import convolution
from aligner.explain.patterns.limits import GRIDS, grid
from aligner.explain.patterns.linear import rows_of
from aligner.explain.patterns.pair import Floats, figure
from aligner.explain.patterns.scene import Scene
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect

SMALL = 0.05
"""Rounding operands makes no larger an error."""

DEVICES = ("tf32", "hf32", "bfloat16", "float16")
"""What devices make of the operands of a product."""

LARGEST = 1 << 24
"""Inputs of more elements are not rounded once for each type."""

EPS = {"float16": 2.0**-11, "bfloat16": 2.0**-8}

MANY = 256
"""Fewer products in a sum leave no more than rounding the result does."""


def suspects(scene: Scene) -> Iterator[Suspect]:
    """What the device does, and the same where a cast in the code does it."""
    pair = scene.pair
    if not pair.alike or not 0.0 < pair.before < SMALL:
        return
    found = _convolved(scene) or _multiplied(scene) or _summed(scene)
    if found is not None:
        yield found
    if found is not None and found.error is not None:
        yield replace(found, cause="mixed-precision-rounding-signature", weight=0.7)


def _words() -> Iterator[tuple[str, bool]]:
    """The types, each rounded to the nearest and cut off."""
    for word in DEVICES:
        yield word, False
        if word != "float16":
            yield word, True


def _short(values: Floats, word: str, cut: bool) -> Floats:
    if not cut:
        return np.asarray(grid(values, word), np.float64)
    low = np.uint32(GRIDS[word])
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return np.asarray((bits >> low << low).view(np.float32), np.float64)


def _convolved(scene: Scene) -> Optional[Suspect]:
    work = None if scene.kind.startswith("ConvTranspose") else convolution.Work.of(scene)
    if work is None or work.x.size > LARGEST:
        return None
    pair, own = scene.pair, convolution.settings_of(scene, work)
    if work.left(own, pair.expected, convolution.FEW) > pair.limit:
        return None
    for word, cut in _words():
        made = replace(work, x=_short(work.x, word, cut), weight=_short(work.weight, word, cut))
        if made.left(own, pair.actual, convolution.FEW) > pair.limit:
            continue
        left = made.left(own, pair.actual, convolution.MANY)
        if left <= pair.limit and left * 8 <= pair.before:
            return pair.suspect(
                "ascend-hf32-conv-default", left, 0.85, None, dtype=_told(word, cut, (work.x, work.weight))
            )
    return None


def _multiplied(scene: Scene) -> Optional[Suspect]:
    rows = rows_of(scene)
    if rows is None:
        return None
    few, made, weight, bias = rows
    pair = scene.pair
    for word, cut in _words():
        left = distance(_short(few, word, cut) @ _short(weight, word, cut).T + bias, made)
        if left <= pair.limit and left * 8 <= pair.before:
            dtype = _told(word, cut, (few, weight))
            facts = {"dtype": dtype, "setting": phrase("input-weight"), "reference_code": "x @ W.T + b"}
            code = f"{word}(x) @ {word}(W).T + b"
            return pair.suspect("ascend-matmul-precision-mode", left, 0.85, None, port_code=code, **facts)
    return None


def _told(word: str, cut: bool, operands: Iterable[Floats]) -> Fact:
    """tf32 and float16 are the same where no number is too small or too large for float16."""
    if word == "tf32" and not cut and all(np.array_equal(grid(x, word), grid(x, "float16")) for x in operands):
        return phrase("either-type", "tf32", "float16")
    return phrase("cut-off", word) if cut else word


def _summed(scene: Scene) -> Optional[Suspect]:
    """Evidence: both sides compute in a short type, and more is lost than by rounding the result, but nothing else."""
    case, pair = scene.case, scene.pair
    weight = scene.parameter("weight")
    if case.expected is None or case.actual is None or weight is None or weight.ndim < 2:
        return None
    word, terms = case.actual.dtype, int(np.prod(weight.shape[1:]))
    if word not in EPS or case.expected.dtype != word or terms < MANY:
        return None
    times = pair.before / EPS[word]
    if not 1.0 < times <= np.sqrt(terms) or not _even(pair.expected, pair.actual):
        return None
    facts: dict[str, Any] = {"dtype": word, "terms": terms, "distance": figure(pair.before), "times": figure(times)}
    return pair.suspect("fp16-matmul-accumulate", None, 0.5, None, **facts)


def _even(expected: Floats, actual: Floats) -> bool:
    """Whether all elements are off by about as much, up and down: no mistake of a formula's."""
    apart = np.asarray(actual, np.float64) - expected
    spread = float(np.sqrt(np.mean(np.square(apart))))
    if not spread:
        return False
    middle = abs(float(apart.mean())) * np.sqrt(apart.size) / spread
    follows = abs(float(np.corrcoef(apart.reshape(-1), np.asarray(expected, np.float64).reshape(-1))[0, 1]))
    return bool(np.abs(apart).max() < 8 * spread and middle < 4 and follows * np.sqrt(apart.size) < 4)
