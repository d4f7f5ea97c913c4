"""Measures each pair of two checkpoints, one tensor at a time, and asks what a wrong one looks like."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Optional

import numpy as np

from aligner.compare.deviation import Deviation, Meter
from aligner.compare.layer_map import LayerMap, read_map
from aligner.compare.tolerance import Tolerance
from aligner.compare.views import squeezed
from aligner.dtypes import DTYPES, decode, encode
from aligner.errors import CheckpointError
from aligner.explain.inquiry import NET, Allowance
from aligner.explain.layouts import EXACT
from aligner.record import Array
from aligner.selection import matches
from aligner.weights.comparison import CLOSE, DIFFERENT, EQUAL, ROUNDING, Alone, Row, Side, WeightComparison
from aligner.weights.looks import Looks
from aligner.weights.opening import open_checkpoint
from aligner.weights.pairing import Pair, Pairing, pair
from aligner.weights.stored import Checkpoint, Weight

BLOCK = 1 << 20

SHORT = ("float16", "bfloat16")

Progress = Callable[[int, int], None]
"""Is told how many bytes of both sides have been read, of how many."""


def compare(
    reference: str,
    port: str,
    *,
    tolerance: float = EXACT,
    rule: str = "scaled",
    map: Optional[LayerMap] = None,
    allow_unmatched: Sequence[str] = (),
    progress: Optional[Progress] = None,
) -> WeightComparison:
    """Two files, folders or dumps.

    Raises:
        CheckpointError, DumpError: one of them cannot be read, or holds no parameters.
        UsageError, ReplayError: the map names what is not there.
    """
    limit = Tolerance(tolerance, rule)
    with ExitStack() as stack:
        sides: list[Checkpoint] = []
        for path in (reference, port):
            sides.append(open_checkpoint(path))
            stack.callback(sides[-1].close)
            if not sides[-1].weights:
                raise CheckpointError("checkpoint-none", path=path)
        ordered = all(side.ordered for side in sides)
        found = pair(sides[0].weights, sides[1].weights, read_map(map), ordered)
        rows = _rows(found, limit, progress)
        return WeightComparison(
            _side(sides[0]),
            _side(sides[1]),
            tuple(rows),
            (_alone(found, 0, allow_unmatched), _alone(found, 1, allow_unmatched)),
            found.counters,
            found.prefixes,
            tolerance,
            rule,
        )


def _side(checkpoint: Checkpoint) -> Side:
    facts = checkpoint.path, checkpoint.form, checkpoint.inside, len(checkpoint.weights), checkpoint.nbytes
    return Side(*facts, checkpoint.left)


def _alone(found: Pairing, side: int, allowed: Sequence[str]) -> tuple[Alone, ...]:
    return tuple(
        Alone(w.name, w.dtype, w.shape, (side, w.name) in found.required, matches(w.name, allowed))
        for w in found.left[side]
    )


def _rows(found: Pairing, tolerance: Tolerance, progress: Optional[Progress]) -> list[Row]:
    total = sum(one.reference.stored.nbytes + one.port.stored.nbytes for one in found.pairs)
    meter, done, rows = Meter(), 0, list[Row]()
    looks = Looks(found, Allowance(NET))
    for one in found.pairs:
        rows.append(_row(one, meter, tolerance, looks))
        done += one.reference.stored.nbytes + one.port.stored.nbytes
        if progress is not None:
            progress(done, total)
    return rows


def _row(one: Pair, meter: Meter, tolerance: Tolerance, looks: Looks) -> Row:
    if squeezed(one.reference.shape) != squeezed(one.port.shape):
        return Row(one, DIFFERENT, None, "", *looks.like(one))
    deviation = meter.measure(one.reference.stored, one.port.stored, tolerance)
    if deviation.max_abs == 0.0 and not deviation.nonfinite:
        return Row(one, EQUAL, deviation)
    word = _rounded(one.reference, one.port, deviation)
    if word:
        return Row(one, ROUNDING, deviation, word)
    if not tolerance.over(deviation):
        return Row(one, CLOSE, deviation)
    likeness = ("", {}) if deviation.nonfinite else looks.like(one)
    return Row(one, DIFFERENT, deviation, "", *likeness)


def _rounded(reference: Weight, port: Weight, deviation: Deviation) -> str:
    """The shorter type whose rounding makes one side's numbers of the other's; "" where none does."""
    kinds = [DTYPES[weight.dtype] for weight in (reference, port)]
    if deviation.nonfinite or any(kind.exact or kind.storage.kind == "c" for kind in kinds):
        return ""
    coarse = max(kinds, key=lambda kind: kind.eps or 0.0)
    for word in dict.fromkeys((coarse.name, *SHORT)):
        eps = DTYPES[word].eps or 0.0
        plain = not word.startswith("float8") and (reference.dtype, port.dtype) != (word, word)
        if plain and deviation.rel_l2 <= eps:
            for one, other in ((reference, port), (port, reference)):
                if _is_rounding(one, other, word):
                    return word
    return ""


def _is_rounding(one: Weight, other: Weight, word: str) -> bool:
    """Whether the second is the first rounded to this type."""
    buffers = [np.empty(BLOCK * DTYPES[w.dtype].storage.itemsize, np.uint8) for w in (one, other)]
    pieces = zip(one.stored.stream(buffers[0]), other.stored.stream(buffers[1]))
    return all(_same(decode(encode(decode(a, one.dtype), word), word), decode(b, other.dtype)) for a, b in pieces)


def _same(one: Array, other: Array) -> bool:
    return bool(np.array_equal(one, other, equal_nan=True))
