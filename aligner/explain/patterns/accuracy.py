"""The type of the values."""

from __future__ import annotations

from collections.abc import Iterator

from aligner.explain.patterns.scene import Scene
from aligner.explain.suspect import Suspect

SHORT = {"float16": 2.0**-10, "bfloat16": 2.0**-7}


def suspects(scene: Scene) -> Iterator[Suspect]:
    """Evidence: this cannot be undone in numbers."""
    expected, actual = scene.case.expected, scene.case.actual
    if expected is not None and actual is not None and expected.dtype != actual.dtype:
        small = scene.pair.before < 4.0 * max(SHORT.get(actual.dtype, 0.0), SHORT.get(expected.dtype, 0.0))
        weight = 0.75 if small else 0.3
        yield scene.pair.suspect("dtype-differs", None, weight, port_dtype=actual.dtype, reference_dtype=expected.dtype)
