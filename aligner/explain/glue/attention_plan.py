"""Attention as code writes it, with every choice that is made on the way, and what it gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Optional

import numpy as np

from aligner.explain.glue.hand import Piece
from aligner.explain.inquiry import Spent, spend
from aligner.explain.patterns.angles import cosines
from aligner.explain.patterns.functions import softmax
from aligner.explain.patterns.limits import grid
from aligner.explain.patterns.pair import Floats


@dataclass(frozen=True)
class Plan:
    """One way to write attention. `stage` is what it is asked for: "scores", "weights" or "mixed"."""

    sources: tuple[Piece, ...]
    """Query, key, value; or query and a value that holds key and value; or one that holds all three."""
    stage: str
    heads: int
    groups: int
    """Heads of key and value: fewer than `heads` where several share them."""
    scale: float
    order: tuple[int, ...] = (0, 1, 2)
    """Which source, or which part of the one source, is query, key and value."""
    layout: str = "parts"
    """How one source holds all three: "parts" one behind the other, "by head", "by channel"."""
    split: str = "transposed"
    """How channels become heads: "transposed" as it should be, "viewed" by a reshape alone, "channel first"."""
    repeat: str = "repeat"
    rope: str = ""
    """A name of ROTATIONS, or none."""
    rope_of: str = ""
    """"query" or "key" where only that is rotated."""
    rope_sign: float = 1.0
    theta: float = 1e4
    mask: Optional[Piece] = None
    sense: str = ""
    """What a value of the mask other than zero does: "keep", "drop", or it is to "add"."""
    causal: str = ""
    """"causal": no query sees a later key; "causal, not itself"; "causal, one ahead"; "causal, inverted"."""
    fill: float = -np.inf
    late: bool = False
    """Masked after the softmax."""
    axis: int = -1
    merge: str = "transposed"
    length_first: bool = False
    """The length is the first axis, the batch the second."""
    weighted: bool = True
    """The softmax is taken."""
    short: str = ""
    """A shorter float type, and at which of STAGES values are rounded to it."""
    rounded: tuple[str, ...] = ()
    dead: str = ""
    """What queries get that see no key: "zero", "mean" of all values, or what the softmax makes of it."""
    rope_short: str = ""
    rope_rounded: tuple[str, ...] = ()
    """The same of the rotary embedding's angles."""
    bias: Optional[Piece] = None
    """Numbers for each pair of places that are added beneath the mask."""
    cap: float = 0.0
    """The scores stay within it: cap * tanh(scores / cap)."""
    given: Optional[Piece] = None
    """Scores that were in hand already, or weights (`weighted` is False); the one source is the value then."""

    @property
    def rows_mixed(self) -> bool:
        """Whether a row of the result needs other rows of the query."""
        return self.split == "viewed" or self.layout == "viewed" or self.merge != "transposed" or self.axis != -1


ROTATIONS = {
    "half": ("half", "half"),
    "interleaved": ("interleaved", "interleaved"),
    "interleaved(angles=half)": ("half", "interleaved"),
    "half(angles=interleaved)": ("interleaved", "half"),
    "half(minus=False)": ("half", "plus"),
    "half(exchanged=False)": ("half", "kept"),
}
"""Rotary embeddings: how the angles are laid out over the channels, and which channels are paired how."""

STAGES = ("query_key", "product", "scores", "weights", "value", "result")
"""Where a shorter type may come in, in the order of computing. "scores" are scaled, and masked."""

DEAD = -1e4
"""What is added to a score that is not to be seen."""

Heads = tuple[Floats, Floats, Floats]
LARGEST = 1 << 23
"""More scores than this are not computed at once."""

SHARED = 1 << 22
"""Elements of scores and values that are kept for the plans to come."""


class Kept:
    """Scores before mask and scale, and values: what plans share. Those that were not asked for lately are dropped."""

    def __init__(self) -> None:
        self._held: dict[object, tuple[Floats, Floats]] = {}
        self._elements = 0

    def get(self, known: object, make: Callable[[], tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
        """What is held under this name, or is made now."""
        found = self._held.pop(known, None)
        if found is None:
            found = make()
            self._elements += _size(found)
            while self._held and self._elements > SHARED:
                self._elements -= _size(self._held.pop(next(iter(self._held))))
        self._held[known] = found
        return found


def _size(held: tuple[Floats, Floats]) -> int:
    return held[0].size + held[1].size


def made(plan: Plan, items: Floats, kept: Kept, rows: Optional[Floats] = None) -> Optional[Floats]:
    """What the plan gives for some items of the batch; of some rows of the query only, where rows are not mixed."""
    try:
        scores, value = _scores(plan, items, kept, rows)
    except ValueError:
        return None
    spend(10 * scores.size)
    covered = _covered(plan, scores.shape, items, rows)
    if covered is None:
        return None
    hidden, added = covered
    with np.errstate(all="ignore"):
        bare = _bounded(plan, scores * plan.scale, items, rows)
        if bare is None:
            return None
        scores = _short(plan, "scores", _short(plan, "scores", bare) + added)
        if plan.late:
            weights = np.where(hidden, 0.0, softmax(scores, plan.axis))
        else:
            scores = np.where(hidden, plan.fill, scores)
            if plan.stage == "scores":
                return scores
            weights = softmax(scores, plan.axis) if plan.weighted else scores
        weights = _short(plan, "weights", _alive(plan, weights, hidden | (added <= DEAD)))
        mixed = weights if plan.stage == "weights" else np.asarray(weights @ _short(plan, "value", value))
        return weights if plan.stage == "weights" else _merged(plan, _short(plan, "result", mixed))


def _bounded(plan: Plan, scores: Floats, items: Floats, rows: Optional[Floats]) -> Optional[Floats]:
    """The scores with their bias, and within their bound; None where the bias cannot lie over them."""
    if plan.bias is not None:
        cover = _covered(replace(plan, mask=plan.bias, sense="add", causal=""), scores.shape, items, rows)
        if cover is None:
            return None
        scores = scores + cover[1]
    return np.asarray(plan.cap * np.tanh(scores / plan.cap) if plan.cap else scores)


def _short(plan: Plan, stage: str, values: Floats) -> Floats:
    return np.asarray(grid(values, plan.short), np.float64) if stage in plan.rounded else values


def _alive(plan: Plan, weights: Floats, hidden: Floats) -> Floats:
    """The weights with those of queries that see nothing put in their place."""
    if not plan.dead:
        return weights
    dead = np.broadcast_to(hidden, weights.shape).all(axis=-1, keepdims=True)
    return np.where(dead, 1.0 / weights.shape[-1] if plan.dead == "mean" else 0.0, weights)


def _scores(plan: Plan, items: Floats, kept: Kept, rows: Optional[Floats]) -> tuple[Floats, Floats]:
    if plan.given is not None:
        return _given(plan, items, rows)
    some = items.tobytes(), None if rows is None else rows.tobytes()
    ids = tuple(id(piece) for piece in plan.sources)
    mark = (ids, plan.order, plan.layout, plan.heads, plan.groups, plan.split, plan.repeat)
    turn = (plan.rope, plan.rope_of, plan.rope_sign, plan.theta, plan.rope_short, plan.rope_rounded)
    short = (plan.short, "query_key" in plan.rounded, "product" in plan.rounded)
    known = (mark, turn, short, some, plan.length_first)
    return kept.get(known, partial(_product, plan, items, rows))


def _product(plan: Plan, items: Floats, rows: Optional[Floats]) -> tuple[Floats, Floats]:
    spend(sum(piece.array.size for piece in plan.sources))
    query, key, value = _heads(plan, items)
    query, key = _turned(plan, query, key)
    if plan.groups != plan.heads:
        key, value = (_repeated(plan, x) for x in (key, value))
    if rows is not None and rows.max() < query.shape[2]:
        query = query[:, :, rows]
    if key.shape[3] != query.shape[3] or key.shape[1] != query.shape[1] or value.shape[:3] != key.shape[:3]:
        raise ValueError("heads do not fit")
    if query[..., 0].size * key.shape[2] > LARGEST:
        raise Spent
    query, key = (_short(plan, "query_key", x) for x in (query, key))
    product = np.asarray(query @ key.transpose(0, 1, 3, 2))
    return _short(plan, "product", product), value


def _given(plan: Plan, items: Floats, rows: Optional[Floats]) -> tuple[Floats, Floats]:
    assert plan.given is not None
    scores = plan.given.array[items].astype(np.float64)
    value = _split(plan, _taken(plan, plan.sources[0], items), plan.groups)
    value = _repeated(plan, value) if plan.groups != plan.heads else value
    if scores.shape[1] != value.shape[1] or scores.shape[3] != value.shape[2]:
        raise ValueError("heads do not fit")
    return (scores if rows is None else scores[:, :, rows]), value


def _heads(plan: Plan, items: Floats) -> Heads:
    held = [_taken(plan, piece, items) for piece in plan.sources]
    if len(held) == 3:
        query, key, value = (held[i] for i in plan.order)
        return _split(plan, query, plan.heads), _split(plan, key, plan.groups), _split(plan, value, plan.groups)
    if len(held) == 2:
        first, second = plan.order[1] - 1, plan.order[2] - 1
        parts = _parts(plan, held[1], (plan.groups, plan.groups))
        return _split(plan, held[0], plan.heads), parts[first], parts[second]
    parts = _parts(plan, held[0], (plan.heads, plan.groups, plan.groups))
    query, key, value = (parts[i] for i in plan.order)
    return query, key, value


def _taken(plan: Plan, piece: Piece, items: Floats) -> Floats:
    """Some items of a source, as numbers to compute with."""
    array = _batched(plan, piece)
    if array.shape[0] <= items.max(initial=0):
        raise ValueError("batches do not fit")
    return np.asarray(array[items], np.float64)


def _batched(plan: Plan, piece: Piece) -> Floats:
    array = piece.array
    return np.swapaxes(array, 0, 1) if plan.length_first and array.ndim == 3 else array


def _split(plan: Plan, x: Floats, heads: int) -> Floats:
    if x.ndim == 4:
        return x if x.shape[1] == heads else x.transpose(0, 2, 1, 3)
    batch, length, width = x.shape
    size = width // heads
    if plan.split == "viewed":
        return x.reshape(batch, heads, length, size)
    if plan.split == "channel first":
        return x.reshape(batch, length, size, heads).transpose(0, 3, 1, 2)
    return x.reshape(batch, length, heads, size).transpose(0, 2, 1, 3)


def _parts(plan: Plan, x: Floats, counts: tuple[int, ...]) -> list[Floats]:
    """Query, key and value of one source, split into heads."""
    batch, length, width = x.shape
    size, heads, number = width // sum(counts), counts[0], len(counts)
    if plan.layout == "by head":
        whole = x.reshape(batch, length, heads, number, size).transpose(3, 0, 2, 1, 4)
        return list(whole)
    if plan.layout == "by channel":
        whole = x.reshape(batch, length, heads, size, number).transpose(4, 0, 2, 1, 3)
        return list(whole)
    if plan.layout == "viewed":
        whole = x.reshape(batch, number, heads, length, size).transpose(1, 0, 2, 3, 4)
        return list(whole)
    ends = np.cumsum([count * size for count in counts])[:-1]
    return [_split(plan, part, count) for part, count in zip(np.split(x, ends, axis=2), counts)]


def _turned(plan: Plan, query: Floats, key: Floats) -> tuple[Floats, Floats]:
    if plan.rope and plan.rope_of != "key":
        query = rotated(query, plan.rope, plan.theta, plan.rope_sign, plan.rope_short, plan.rope_rounded)
    if plan.rope and plan.rope_of != "query":
        key = rotated(key, plan.rope, plan.theta, plan.rope_sign, plan.rope_short, plan.rope_rounded)
    return query, key


def rotated(
    x: Floats, kind: str, theta: float, sign: float = 1.0, short: str = "", stages: tuple[str, ...] = ()
) -> Floats:
    """Rotary position embedding of heads (batch, head, length, channel); `stages` of it rounded to a short type."""
    length, size = x.shape[2], x.shape[3]
    if size % 2:
        return x
    layout, pairing = ROTATIONS[kind]
    cos, sin = cosines(length, size, theta, short, stages)
    cos, sin = (
        np.concatenate([table, table], axis=-1) if layout == "half" else np.repeat(table, 2, axis=-1)
        for table in (cos, sign * sin)
    )
    return np.asarray(x * cos + _paired(x, pairing) * sin)


def _paired(x: Floats, pairing: str) -> Floats:
    if pairing == "interleaved":
        return np.asarray(np.stack([-x[..., 1::2], x[..., ::2]], axis=-1)).reshape(x.shape)
    one, other = np.split(x, 2, axis=-1)
    parts = {"half": [-other, one], "plus": [other, one], "kept": [-one, other]}
    return np.concatenate(parts[pairing], axis=-1)


def _repeated(plan: Plan, x: Floats) -> Floats:
    times = plan.heads // plan.groups
    return np.repeat(x, times, axis=1) if plan.repeat == "repeat" else np.tile(x, (1, times, 1, 1))


def _covered(
    plan: Plan, shape: tuple[int, ...], items: Floats, rows: Optional[Floats]
) -> Optional[tuple[Floats, Floats]]:
    """Which scores are hidden, and what is added to the others."""
    source = _batched(plan, plan.sources[0])
    heads_first = source.ndim == 4 and source.shape[1] == plan.heads
    length, keys = source.shape[2 if heads_first else 1], shape[3]
    length = plan.given.array.shape[2] if plan.given is not None else length
    hidden, added = np.zeros((), bool), np.zeros(())
    if plan.causal:
        at = np.arange(length) if rows is None else rows
        ahead = {"causal, not itself": -1, "causal, one ahead": 1}.get(plan.causal, 0)
        hidden = np.arange(keys)[None] > at[:, None] + (keys - length) + ahead
        hidden = ~hidden if plan.causal == "causal, inverted" else hidden
    if plan.mask is None:
        return hidden, added
    mask = over_scores(plan, (source.shape[0], shape[1], length, keys))
    if mask is None:
        return None
    mask = mask[items] if mask.shape[0] > 1 else mask
    mask = mask[:, :, rows] if rows is not None and mask.shape[2] > 1 else mask
    if plan.sense == "add":
        return hidden, np.asarray(mask, np.float64)
    return np.asarray(hidden | (mask == 0 if plan.sense == "keep" else mask != 0)), added


def over_scores(plan: Plan, wanted: tuple[int, int, int, int]) -> Optional[Floats]:
    """The mask with four axes (batch, heads, length, keys), or None where it cannot lie over the scores."""
    assert plan.mask is not None
    mask = plan.mask.array
    batch, heads, length, keys = wanted
    if mask.ndim == 2 and mask.shape == (batch, keys) and not batch == length == keys:
        mask = mask[:, None, None, :]
    elif mask.ndim == 2:
        mask = mask[None, None]
    elif mask.ndim == 3:
        mask = mask[None] if mask.shape[0] == heads != batch else mask[:, None]
    if mask.ndim != 4 or mask.shape[3] < keys:
        return None
    mask = mask[:, :, :length, :keys]
    return np.asarray(mask) if all(a in (1, b) for a, b in zip(mask.shape, wanted)) else None


def _merged(plan: Plan, mixed: Floats) -> Floats:
    batch, heads, length, size = mixed.shape
    if plan.merge == "viewed":
        return mixed.reshape(batch, length, heads * size)
    if plan.merge == "channel first":
        return mixed.transpose(0, 2, 3, 1).reshape(batch, length, heads * size)
    return np.asarray(mixed.transpose(0, 2, 1, 3)).reshape(batch, length, heads * size)


def as_code(short: str, stages: tuple[str, ...]) -> str:
    """What is rounded to a short type, as code."""
    return f"{short}({', '.join(stages)})"
