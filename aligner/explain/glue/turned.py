"""Query or key of rotary embeddings, handed to a child: with the angles made otherwise, or in a shorter type."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple, Optional

import numpy as np

from aligner.explain.case import distance
from aligner.explain.glue.attention_plan import ROTATIONS, as_code, rotated
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.angles import SHORTS, TURNS
from aligner.explain.patterns.pair import DROP, Floats, Pair
from aligner.explain.phrase import Fact, phrase
from aligner.explain.suspect import Suspect

THETAS = (1e4, 5e5, 1e6)

CLOSE = 2e-4
"""Sines and cosines of far places are not exact in float32."""

FEW = 8
"""Values in hand that may have been turned."""

PLACES = 48
"""The last so many places of one item are looked at first."""


class Turn(NamedTuple):
    """How a value is turned; `kind` "" is not at all."""

    kind: str
    theta: float
    sign: float = 1.0
    short: str = ""
    stages: tuple[str, ...] = ()

    def __call__(self, x: Floats) -> Floats:
        """Of heads (batch, head, length, channel)."""
        return rotated(x, self.kind, self.theta, self.sign, self.short, self.stages) if self.kind else x

    @property
    def text(self) -> str:
        """As code."""
        words = [self.kind, f"base={self.theta:g}"] if self.kind else ["identity"]
        words += ["sign=-1"] if self.sign < 0 else []
        return ", ".join([*words, *([as_code(self.short, self.stages)] if self.short else [])])


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one, where the reference's value is a value in hand that was turned."""
    if not pair.alike or pair.expected.ndim not in (3, 4) or pair.expected.shape[-1] % 2:
        return
    size = pair.expected.size
    given = [p for p in hand.pieces(lambda s: len(s) in (3, 4) and int(np.prod(s)) == size) if p.rank < 4]
    for piece in [p for p in given if p.array.dtype.kind == "f"][:FEW]:
        for order in ((0, 1, 2, 3), (0, 2, 1, 3)):
            found = _asked(pair, piece, order)
            if found is not None:
                yield found
                return


def _asked(pair: Pair, piece: Piece, order: tuple[int, ...]) -> Optional[Suspect]:
    """With the axes of the value brought to (batch, head, length, channel)."""
    expected, actual = (_heads(side, order) for side in (pair.expected, pair.actual))
    x = _as_heads(piece.array, expected.shape)
    if x is None:
        return None
    ours = next((turn for turn in _turns() if _is(turn, x, expected, CLOSE)), None)
    if ours is None:
        return None
    best: Optional[tuple[float, str, Turn]] = None
    for cause, turn in _others(ours):
        left = distance(turn(x), actual)
        if left <= CLOSE and left * DROP <= pair.before and (best is None or left < best[0]):
            best = left, cause, turn
    return None if best is None else _told(pair, piece, ours, best)


def _heads(array: Floats, order: tuple[int, ...]) -> Floats:
    """Four axes: a value without heads has one."""
    return np.asarray(array[:, None] if array.ndim == 3 else array.transpose(order))


def _as_heads(array: Floats, wanted: tuple[int, ...]) -> Optional[Floats]:
    batch, heads, length, size = wanted
    if array.shape == (batch, length, heads * size):
        return np.asarray(array.reshape(batch, length, heads, size).transpose(0, 2, 1, 3))
    for way in ((0, 1, 2, 3), (0, 2, 1, 3)):
        if array.ndim == 4 and array.transpose(way).shape == wanted:
            return np.asarray(array.transpose(way))
    return None


def _turns() -> Iterator[Turn]:
    for theta in THETAS:
        for kind in ("half", "interleaved"):
            yield Turn(kind, theta)


def _is(turn: Turn, x: Floats, wanted: Floats, limit: float) -> bool:
    few = slice(None, None if x.shape[2] <= PLACES else PLACES)
    return (
        distance(turn(x[:1, :1, few]), wanted[:1, :1, few]) <= limit and distance(turn(x[:1]), wanted[:1]) <= 5 * limit
    )


def _others(ours: Turn) -> Iterator[tuple[str, Turn]]:
    yield "rope-missing", Turn("", ours.theta)
    yield "rope-sign", ours._replace(sign=-1.0)
    for kind in ROTATIONS:
        if kind != ours.kind:
            yield "rope-interleaved-vs-half", ours._replace(kind=kind)
    for theta in (1e4, 1e3, 1e5, 5e5, 1e6):
        if theta != ours.theta:
            yield "rope-theta", ours._replace(theta=theta)
    for word in SHORTS:
        for _, stages in TURNS:
            yield "rotary-precision", ours._replace(short=word, stages=stages)


def _told(pair: Pair, piece: Piece, ours: Turn, best: tuple[float, str, Turn]) -> Suspect:
    left, cause, theirs = best
    told = next((words for words, stages in TURNS if stages == theirs.stages), "")
    known: dict[str, tuple[Fact, Fact]] = {
        "rope-missing": (f"[{piece.name}]", phrase("nothing")),
        "rope-sign": (phrase("forwards"), phrase("backwards")),
        "rope-theta": (f"{ours.theta:g}", f"{theirs.theta:g}"),
        "rotary-precision": ("float32", theirs.short),
    }
    values = known.get(cause, (ours.text, theirs.text))
    whole = phrase("rotary-base" if cause == "rope-theta" else told or "rotary")
    facts: dict[str, Fact] = {"setting": whole, "dtype": theirs.short, "other": f"[{piece.name}]"}
    facts.update(reference_value=values[0], port_value=values[1])
    codes = {
        f"{side}_code": f"rotary([{piece.name}], {turn.text})" for side, turn in (("reference", ours), ("port", theirs))
    }
    found = pair.suspect(cause, left, 0.9, None, **facts, **codes)
    return found if left <= pair.limit or cause != "rotary-precision" else replace(found, weight=0.8)
