"""A table looked up otherwise: rows off by some, the padding row zero or not, indices beyond the table."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from aligner.explain.patterns.scene import Scene
from aligner.explain.phrase import phrase
from aligner.explain.suspect import Suspect

STEPS = (1, -1, 2, -2)


def suspects(scene: Scene) -> Iterator[Suspect]:
    """At most one."""
    table, pair = scene.parameter("weight"), scene.pair
    if scene.x is None or table is None or table.ndim != 2 or not pair.alike:
        return
    if pair.expected.shape != (*scene.x.shape, table.shape[1]) or (scene.x != np.floor(scene.x)).any():
        return
    rows = len(table)
    ids = scene.x.astype(np.int64)
    for step in STEPS:
        left = pair.proved(table[np.clip(ids + step, 0, rows - 1)], pair.actual)
        if left is None:
            left = pair.proved(table[(ids + step) % rows], pair.actual)
        if left is not None:
            yield pair.suspect("embedding-rows-shifted", left, 0.9, step=f"{step:+d}")
            return
    beyond = (ids < 0) | (ids >= rows)
    if beyond.any() and not (np.abs(pair.actual - pair.expected)[~beyond] > pair.limit).any():
        yield pair.suspect("embedding-index-out-of-range", None, 0.8, highest=int(ids.max()), rows=rows)
        return
    wrong = np.abs(pair.actual - pair.expected).max(axis=-1) > pair.limit
    which = np.unique(ids[wrong])
    if which.size == 1 and (ids == which[0])[~wrong].sum() == 0:
        index = int(which[0])
        if not pair.actual[wrong].any():
            left = pair.proved(np.where(wrong[..., None], 0.0, pair.expected), pair.actual)
            yield pair.suspect("embedding-padding-row", left, 0.85, row=index, who=phrase("port"))
        elif not pair.expected[wrong].any():
            left = pair.proved(np.where(wrong[..., None], 0.0, pair.actual), pair.expected)
            yield pair.suspect("embedding-padding-row", left, 0.85, row=index, who=phrase("reference"))
