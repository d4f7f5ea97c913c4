"""A table of sines or cosines of places times frequencies, as rotary embeddings use it: its base, told from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.patterns.limits import grid
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect

CLOSE = 2e-4
"""Angles of far places are not exact in float32."""


STAGES = ("places", "frequencies", "angles", "tables")
"""What may be made in a shorter type, in the order of computing; tables are the sines and cosines."""

TURNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("angles", STAGES[:3]),
    ("angles-tables", STAGES),
    ("tables", STAGES[3:]),
    ("frequencies", STAGES[1:2]),
    ("places-angles", (STAGES[0], STAGES[2])),
    ("places-times-frequencies", STAGES[2:3]),
    ("places", STAGES[:1]),
)
"""The mistakes, by their phrases."""

SHORTS = ("float16", "bfloat16")


class Table(NamedTuple):
    """What such a table is of."""

    function: str
    layout: str
    base: float

    @property
    def text(self) -> str:
        """As code."""
        return f"{self.function}(base={self.base:g}, layout={self.layout})"


def suspects(pair: Pair) -> Iterator[Suspect]:
    """At most one, where both sides are such tables."""
    if not pair.alike or pair.expected.ndim < 2 or np.abs(pair.expected).max() > 1.0 + 1e-5:
        return
    ours = _read(pair.expected)
    theirs = None if ours is None else _read(pair.actual)
    if ours is not None and (theirs is None or ours == theirs):
        yield from _rounded(pair, ours)
    if ours is None or theirs is None or ours == theirs:
        return
    left = distance(_made(theirs, _rows(pair.actual).shape), _rows(pair.actual))
    if left * 8.0 > pair.before:
        return
    port, reference = theirs.text, ours.text
    yield pair.suspect("angles-differ", left, 0.9, None, port_value=port, reference_value=reference)


def _rounded(pair: Pair, ours: Table) -> Iterator[Suspect]:
    """The same table, made in a shorter type from some stage on."""
    found = _rows(pair.actual)
    rounded = [
        (distance(_made(ours, found.shape, word, stages), found), word, told, stages)
        for word in SHORTS
        for told, stages in TURNS
    ]
    left, word, told, stages = min(rounded)
    if left <= CLOSE and left * 8.0 <= pair.before:
        facts: dict[str, Fact] = {"dtype": word, "setting": phrase(told), "reference_code": ours.text}
        facts["port_code"] = f"{word}({', '.join(stages)})"
        yield pair.suspect("rotary-precision", left, 0.9, None, **facts)


def _rows(table: Floats) -> Floats:
    """The places and the frequencies of a table that may stand several times in a batch."""
    return np.asarray(table.reshape(-1, *table.shape[-2:])[0], np.float64)


def _read(whole: Floats) -> Optional[Table]:
    table = _rows(whole)
    places, width = table.shape
    if places < 3 or width < 4 or width % 2:
        return None
    function = "cos" if np.abs(table[0] - 1.0).max() < 1e-6 else "sin" if np.abs(table[0]).max() < 1e-6 else ""
    if not function:
        return None
    layout = "halves" if np.abs(table[:, 0] - table[:, width // 2]).max() < 1e-6 else "pairs"
    second = float(table[1, 1 if layout == "halves" else 2])
    if not 0.0 < second < 1.0:
        return None
    frequency = float(np.arccos(second) if function == "cos" else np.arcsin(second))
    base = float(f"{frequency ** (-width / 2):.3g}")
    found = Table(function, layout, base)
    return found if distance(_made(found, table.shape), table) <= CLOSE else None


def cosines(
    places: int, size: int, base: float, short: str = "", stages: tuple[str, ...] = ()
) -> tuple[Floats, Floats]:
    """Cosines and sines of places times frequencies; those of STAGES that are asked for are rounded to `short`."""

    def rounded(stage: str, values: Floats) -> Floats:
        return np.asarray(grid(values, short), np.float64) if stage in stages else np.asarray(values)

    frequencies = rounded("frequencies", base ** (-np.arange(0, size, 2) / size))
    angles = rounded("angles", rounded("places", np.arange(places, dtype=np.float64))[:, None] * frequencies)
    return rounded("tables", np.cos(angles)), rounded("tables", np.sin(angles))


def _made(table: Table, shape: tuple[int, ...], short: str = "", stages: tuple[str, ...] = ()) -> Floats:
    values = cosines(shape[0], shape[1], table.base, short, stages)[table.function == "sin"]
    return np.asarray(np.tile(values, 2) if table.layout == "halves" else np.repeat(values, 2, axis=1))
