"""Values in hand one behind the other along an axis: which ones, and in which order, on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.suspect import Suspect

MOST = 8
"""Parts of one concatenation."""


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """Both sides as concatenations that differ."""
    wanted = pair.expected.shape
    if pair.actual.ndim != len(wanted):
        return
    for axis in reversed(range(1 if len(wanted) > 1 else 0, len(wanted))):
        pieces = _offered(hand, wanted, axis)
        reference = joined(pair.expected, axis, pieces, pair.limit) if len(pieces) > 1 else None
        ported = reference and joined(pair.actual, axis, pieces, pair.limit)
        if not reference or not ported or len(reference) < 2 or [id(p) for p in reference] == [id(p) for p in ported]:
            continue
        left = distance(np.concatenate([piece.array for piece in ported], axis), pair.actual)
        yield _told(pair, axis, reference, ported, left)
        return


def _offered(hand: Hand, wanted: tuple[int, ...], axis: int) -> list[Piece]:
    rest = wanted[:axis] + wanted[axis + 1 :]
    fits = [
        piece
        for piece in hand.pieces(lambda s: len(s) == len(wanted) and s[:axis] + s[axis + 1 :] == rest)
        if piece.array.dtype.kind == "f"
    ]
    return [piece for piece in fits if piece.array.shape[axis] < wanted[axis] + 1]


def joined(whole: Floats, axis: int, pieces: Sequence[Piece], limit: float) -> Optional[list[Piece]]:
    """The pieces that make up the whole, the first that fits in each place."""
    found: list[Piece] = []
    start, size = 0, whole.shape[axis]
    while start < size and len(found) < MOST:
        piece = next((p for p in pieces if _stands(whole, axis, start, p, limit)), None)
        if piece is None:
            return None
        found.append(piece)
        start += piece.array.shape[axis]
    return found if start == size else None


def _stands(whole: Floats, axis: int, start: int, piece: Piece, limit: float) -> bool:
    end = start + piece.array.shape[axis]
    if end > whole.shape[axis]:
        return False
    part = whole[(slice(None),) * axis + (slice(start, end),)]
    few = (slice(None, 1),) * (part.ndim - 1)
    return distance(part[few], piece.array[few]) <= 10 * limit and distance(part, piece.array) <= limit


def _told(pair: Pair, axis: int, reference: list[Piece], ported: list[Piece], left: float) -> Suspect:
    codes = [f"concat({', '.join(f'[{piece.name}]' for piece in side)}, axis={axis})" for side in (reference, ported)]
    facts: dict[str, str] = {"reference_code": codes[0], "port_code": codes[1], "axis": str(axis)}
    if sorted(id(p) for p in reference) == sorted(id(p) for p in ported):
        facts["order"] = ", ".join(f"[{piece.name}]" for piece in ported)
        return pair.suspect("concat-order", left, 0.92, None, **facts)
    apart = [(a, b) for a, b in zip(reference, ported) if a is not b]
    one, other = apart[0] if apart else (reference[-1], ported[-1])
    facts.update(other=f"[{one.name}]", instead=f"[{other.name}]")
    return pair.suspect("wrong-tensor", left, 0.92, None, **facts)
