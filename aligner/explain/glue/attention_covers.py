"""What may lie over the scores of attention: masks, numbers for each pair of places, and a bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from aligner.explain.case import Case
from aligner.explain.glue.attention_plan import Plan
from aligner.explain.glue.attention_precision import sees_nothing
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.pair import Floats

CAPS = (50.0, 30.0, 20.0, 10.0)
"""Bounds that nets have: a tanh of the scores divided by it, times it."""


def caps(case: Case) -> tuple[float, ...]:
    """Bounds of the scores that are tried: some where the reference takes a tanh, else none."""
    names = () if case.operations is None else case.operations[0]
    return CAPS if any(name.lower().strip("_") == "tanh" for name in names) else ()


def covered(plan: Plan, masks: Sequence[Piece], bounds: Sequence[float] = ()) -> Iterator[Plan]:
    """The plan bare and under masks; with bounds, under one of them first. A bias may lie beneath a mask."""
    for bound in (*bounds, 0.0):
        yield from _covered(replace(plan, cap=bound), masks)


def _covered(plan: Plan, masks: Sequence[Piece]) -> Iterator[Plan]:
    yield plan
    yield replace(plan, causal="causal")
    for mask in masks:
        for sense in _senses(mask):
            covered = replace(plan, mask=mask, sense=sense)
            yield covered
            if sees_nothing(covered):
                yield replace(covered, dead="zero")
                if sense == "add":  # float32 keeps nothing of a score beside -1e9
                    yield replace(covered, dead="mean")
            yield replace(plan, mask=mask, sense=sense, causal="causal")
            if sense != "add":
                yield replace(plan, mask=mask, sense=sense, fill=-1e9)
    biases = [mask for mask in masks if _senses(mask) == ("add",) and not _like_a_mask(mask.array)]
    for bias in biases[:1]:
        beneath = replace(plan, bias=bias)
        yield replace(beneath, causal="causal")
        for mask in masks:
            if mask is not bias:
                yield from (replace(beneath, mask=mask, sense=sense) for sense in _senses(mask))


def masks(hand: Hand, length: int) -> list[Piece]:
    """What may lie over the scores: masks, and numbers for each pair of places."""
    found = []
    for piece in hand.pieces(lambda s: 2 <= len(s) <= 4 and s[-1] > 1):
        array = piece.array
        table = array.ndim == 3 and array.shape[:2] == (length, length) != array.shape[1:]
        if table:  # of places, with the heads last
            piece = replace(piece, array=array.transpose(2, 0, 1)[None])
        pairs = array.ndim >= 2 and array.shape[-2] == array.shape[-1] == length
        if table or array.dtype.kind == "b" or (piece.rank in (0, 2, 4, 5) and (_like_a_mask(array) or pairs)):
            found.append(piece)
        if len(found) == 4:
            break
    return found


def _like_a_mask(array: Floats) -> bool:
    few = np.unique(np.asarray(array.reshape(-1)[:4096], np.float64))
    return len(few) == 2 or bool((few <= -1e4).any())


def _senses(mask: Piece) -> tuple[str, ...]:
    array = mask.array
    if array.dtype.kind == "b" or bool(np.isin(array.reshape(-1)[:4096], (0, 1)).all()):
        return ("keep", "drop")
    return ("keep", "add") if bool((array == 0).any() and (array >= 0).all()) else ("add",)
