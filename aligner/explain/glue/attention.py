"""Attention written in a parent's code: how the reference does it, and the one choice that the port made otherwise."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import islice, permutations, product
from typing import Optional

import numpy as np

from aligner.explain.case import HUGE, Case, distance
from aligner.explain.glue import attention_covers as covers
from aligner.explain.glue.attention_edits import Edit, edits, head_size, spelled
from aligner.explain.glue.attention_plan import Kept, Plan, made
from aligner.explain.glue.attention_precision import shortened, unseeing
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.pair import DROP, Floats, Pair
from aligner.explain.suspect import Suspect

SEVERAL = 1 << 19
"""As many items of the batch are computed as have this many scores together."""

SOURCES, PROBES, MORE_PROBES = 64, 1200, 300
"""How many ways to find query, key and value, and how many plans in all, are tried; plans with the length first."""

USUAL = 8
"""The first so many of them are tried with rotary embeddings before the others are."""

ROUGH = 2e-3
"""What a guess at a shorter type may leave, where it explains most of the error."""

BORDER = 0.25
"""Of the numbers that overflow, so many may be others: a mask that is added makes NaN of more of them."""

THETAS = (1e4, 5e5, 1e6)


class Scene:
    """What attention should have made, and what it made: some items of the batch, and a few rows of them."""

    def __init__(self, pair: Pair, stage: str, length_first: bool = False) -> None:
        expected, actual = pair.expected, pair.actual
        if length_first:
            expected, actual = np.swapaxes(expected, 0, 1), np.swapaxes(actual, 0, 1)
        self.pair, self.stage, self.length_first = pair, stage, length_first
        self.shape = expected.shape
        self.expected, self.actual = expected, actual
        self.items, self.worst = np.zeros(1, np.int64), 0
        self.kept = Kept()

    def choose(self, scores: int) -> None:
        """Take the items of the batch that are furthest off, as many as can be computed."""
        count = max(1, min(self.shape[0], SEVERAL // max(scores, 1)))
        with np.errstate(invalid="ignore"):
            apart = (
                np.nan_to_num(np.abs(self.expected - self.actual), posinf=1.0).reshape(self.shape[0], -1).sum(axis=1)
            )
        items = np.sort(np.argsort(-apart, kind="stable")[:count])
        self.worst = int(apart[items].argmax())
        if not np.array_equal(items, self.items):
            self.items, self.kept = items, Kept()

    @cached_property
    def apart(self) -> Floats:
        """How far each item of the batch is off."""
        with np.errstate(invalid="ignore"):
            every = np.nan_to_num(np.abs(self.expected - self.actual), posinf=1.0)
        return np.asarray(every.reshape(self.shape[0], -1).sum(axis=1))

    def lost(self, found: Floats) -> Floats:
        """Where a value is not finite, but is in the reference; what both hide does not count."""
        wanted = self.expected[self.items]
        hidden = (found <= -HUGE) & (wanted <= -HUGE)
        return np.asarray(~np.isfinite(found) & np.isfinite(wanted) & ~hidden)

    def gives(self, plan: Plan, whole: Floats) -> bool:
        """Whether the plan gives this value: first asked of two rows of the item that is furthest off."""
        if not plan.rows_mixed:
            length = self.shape[2 if self.stage != "mixed" else 1]
            rows = np.unique([length // 2, length - 1])
            item = self.items[self.worst : self.worst + 1]
            few = whole[item][:, rows] if self.stage == "mixed" else whole[item][:, :, rows]
            found = made(plan, item, self.kept, rows)
            if found is None or distance(found, few) > 3.0 * self.pair.limit:
                return False
        return self.left(plan, whole) <= self.pair.limit

    def left(self, plan: Plan, whole: Floats) -> float:
        """Relative L2 between what the plan gives and a value."""
        found = made(plan, self.items, self.kept)
        return float("inf") if found is None else distance(found, whole[self.items])


def suspects(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """The choice that differs, where the reference's value is attention over values in hand, perhaps with a bias."""
    if not pair.alike or pair.expected.ndim not in (3, 4):
        return
    caps = covers.caps(case)
    found = _asked(pair, hand, caps)
    width = pair.expected.shape[-1:]
    if found is None and pair.expected.ndim == 3:
        for piece in islice((p for p in hand.pieces(lambda shape: shape == width) if p.rank == 2), 1):
            less = Pair(pair.expected - piece.array, pair.actual - piece.array, pair.limit, pair.facts)
            found = _asked(less, hand, caps, f" + [{piece.name}]")
    if found is not None:
        yield _named(case, found)


def _named(case: Case, found: Suspect) -> Suspect:
    """What is known of the port besides the numbers gives some mistakes a closer name.

    A fused attention reads a mask the other way round than others do: there True hides. A float16 has no -1e9.
    """
    infinite = found.cause == "attention-mask-fill-1e4" and found.facts.get("port_value") == "-inf"
    if infinite and case.actual is not None and case.actual.dtype == "float16":
        return replace(found, cause="attention-fill-fp16-overflow", facts={**found.facts, "dtype": "float16"})
    names = () if case.operations is None else case.operations[1]
    if found.cause == "mha-mask-inverted" and any("flash" in name.lower() for name in names):
        return replace(found, cause="flash-attention-mask-one-discards")
    return found


def _asked(pair: Pair, hand: Hand, caps: Sequence[float], added: str = "") -> Optional[Suspect]:
    for scene in _scenes(pair):
        count = (MORE_PROBES if scene.length_first or added else PROBES) * (1 + len(caps))
        plan = next((p for p in islice(_plans(scene, hand, caps), count) if scene.gives(p, scene.expected)), None)
        if plan is None:
            continue
        before = distance(scene.actual[scene.items], scene.expected[scene.items])
        for edit in (*unseeing(plan), *edits(plan, _others(plan, hand))):
            if not scene.gives(edit.plan, scene.actual):
                continue
            left = scene.left(edit.plan, scene.actual)
            if left * DROP <= before:
                return _told(pair, plan, edit, left, added)
        return _shorter(scene, plan, before, added)
    return None


def _told(pair: Pair, plan: Plan, edit: Edit, left: float, added: str) -> Suspect:
    codes = {"reference_code": spelled(plan) + added, "port_code": spelled(edit.plan) + added}
    return pair.suspect(edit.cause, left, 0.92, None, **{**edit.facts, **codes})


def _shorter(scene: Scene, plan: Plan, before: float, added: str) -> Optional[Suspect]:
    """The best guess at a shorter type: a sum in another order rounds a few of its numbers the other way.

    Numbers at the border of the type may overflow or not; a guess that loses others than the port is no proof.
    """
    best: Optional[tuple[float, float, Edit]] = None
    lost = scene.lost(scene.actual[scene.items])
    for edit in shortened(plan, before, bool(lost.any())):
        found = made(edit.plan, scene.items, scene.kept)
        if found is None:
            continue
        gone = scene.lost(found)
        other = float((gone != lost).sum()) / max(float(lost.sum()), 1.0)
        found, wanted = (np.where(gone | lost, 0.0, side) for side in (found, scene.actual[scene.items]))
        left = distance(found, wanted)
        if other <= BORDER and left * DROP <= before and left <= ROUGH and (best is None or (other, left) < best[:2]):
            best = other, left, edit
    if best is None:
        return None
    told = _told(scene.pair, plan, best[2], best[1], added)
    return replace(told, error=None, weight=0.85) if best[0] else told


def _others(plan: Plan, hand: Hand) -> list[Piece]:
    shapes = {piece.array.shape for piece in plan.sources}
    return [piece for piece in hand.pieces(lambda shape: shape in shapes) if piece.rank < 4][:8]


def _scenes(pair: Pair) -> Iterator[Scene]:
    if pair.expected.ndim == 3:
        yield Scene(pair, "mixed")
        yield Scene(pair, "mixed", length_first=True)
        return
    rows = pair.expected[~np.isnan(pair.expected).any(axis=-1)]  # what a softmax of nothing gives
    shares = bool(rows.size and (rows >= 0).all() and np.abs(rows.sum(axis=-1) - 1.0).max() < 1e-2)
    yield Scene(pair, "weights" if shares else "scores")


def _plans(scene: Scene, hand: Hand, caps: Sequence[float]) -> Iterator[Plan]:
    """Ways to write attention that could give a value of this shape, the usual ones first."""
    masks = covers.masks(hand, scene.shape[1 if scene.stage == "mixed" else 2])
    bases = list(islice((base for base in _bases(scene, hand) if _fits(scene, base)), SOURCES))
    for base in bases:
        if base.given is not None:
            yield base
            if base.weighted:
                yield from islice(covers.covered(base, masks), 1, None)
    bases = [base for base in bases if base.given is None]
    for usual in (True, False):
        turns = list(_turns(usual))
        near, far = bases[:USUAL], bases[USUAL:]
        for turn, base in [*product(turns, near), *product(turns, far)]:
            scene.choose(base.heads * _length(base, 0) * _length(base, -1))
            for scale in _scales(base, usual):
                yield from covers.covered(replace(base, rope=turn.rope, theta=turn.theta, scale=scale), masks, caps)


def _fits(scene: Scene, base: Plan) -> bool:
    """Whether queries and keys are as many as the value has places for."""
    if scene.stage == "mixed":
        return base.given is not None or _length(base, 0) == scene.shape[1]
    return (_length(base, 0), _length(base, -1)) == scene.shape[2:]


def _scales(base: Plan, usual: bool) -> tuple[float, ...]:
    size = head_size(base)
    if usual:
        return (1 / math.sqrt(size), 1.0) if size > 1 else (1.0,)
    return (1 / math.sqrt(size * base.heads), 1 / size, math.sqrt(size))


def _turns(usual: bool) -> Iterator[Plan]:
    bare = Plan((), "", 1, 1, 1.0)
    yield bare
    for theta in THETAS[:1] if usual else THETAS[1:]:
        for kind in ("half", "interleaved"):
            yield replace(bare, rope=kind, theta=theta)


def _length(plan: Plan, source: int) -> int:
    array = plan.sources[source].array
    if array.ndim == 4:
        return int(array.shape[2] if array.shape[1] in (plan.heads, plan.groups) else array.shape[1])
    return int(array.shape[0 if plan.length_first else 1])


def _bases(scene: Scene, hand: Hand) -> Iterator[Plan]:
    """Where query, key and value may come from, and how many heads there may be."""
    held = [p for p in hand.pieces(lambda s: len(s) in (3, 4)) if p.rank in (0, 1, 3, 4) and p.array.dtype.kind == "f"]
    batch = scene.shape[0]
    flat = [p for p in held if p.array.ndim == 3 and p.array.shape[1 if scene.length_first else 0] == batch][:8]
    length = scene.shape[1] if scene.stage == "mixed" else scene.shape[2]
    along = [p for p in flat if p.array.shape[0 if scene.length_first else 1] == length]
    if scene.stage == "mixed":
        yield from _given(scene, held, flat)
    heads = _heads(scene)
    triples = list(_triples(scene, along, flat, held))
    for count in heads:
        for three in triples[:1]:
            yield from _separate(scene, three, count)
        for piece in along:
            yield from _fused(scene, piece, count)
    for three in triples[1:]:
        for count in heads:
            yield from _separate(scene, three, count)
    for count in heads:
        for piece in along:
            yield from _fused(scene, piece, count, list(permutations(range(3)))[1:])


def _heads(scene: Scene) -> list[int]:
    if scene.stage != "mixed":
        return [scene.shape[1]]
    width = scene.shape[2]
    divisors = [n for n in range(1, min(width, 64) + 1) if width % n == 0 and (width // n) % 2 == 0 and width // n >= 4]
    usual = [n for n in divisors if n > 1 and width // n in (64, 32, 16, 8, 128)]
    return (usual + [n for n in divisors if n not in usual])[:8]


def _given(scene: Scene, held: list[Piece], flat: list[Piece]) -> Iterator[Plan]:
    """Weights were in hand: only the value is mixed by them."""
    batch, length, width = scene.shape
    for weights in [p for p in held if p.array.ndim == 4 and p.array.shape[0] == batch and p.array.shape[2] == length][
        :2
    ]:
        heads, keys = weights.array.shape[1], weights.array.shape[3]
        scene.choose(heads * length * keys)
        if width % heads:
            continue
        for value in flat:
            groups = value.array.shape[2] // (width // heads)
            along = value.array.shape[0 if scene.length_first else 1]
            shared = 0 < groups <= heads and heads % groups == 0
            if along == keys and shared and groups * (width // heads) == value.array.shape[2]:
                yield _plan(scene, (value,), heads, groups, given=weights)


def _plan(
    scene: Scene,
    sources: tuple[Piece, ...],
    heads: int,
    groups: int,
    order: tuple[int, ...] = (0, 1, 2),
    layout: str = "parts",
    given: Optional[Piece] = None,
) -> Plan:
    plan = Plan(sources, scene.stage, heads, groups, 1.0, order, layout, length_first=scene.length_first, given=given)
    return plan if given is None else replace(plan, weighted=not _sums_to_one(given.array))


def _sums_to_one(array: Floats) -> bool:
    few = np.asarray(array[:1], np.float64)
    return bool((few >= 0).all() and np.abs(few.sum(axis=-1) - 1.0).max() < 1e-2)


def _fused(scene: Scene, piece: Piece, heads: int, orders: Sequence[tuple[int, ...]] = ()) -> Iterator[Plan]:
    """Query, key and value in one: in the usual order, or in those asked for."""
    whole = piece.array.shape[2]
    for groups in [heads] + [g for g in range(1, heads) if heads % g == 0]:
        size, rest = divmod(whole, heads + 2 * groups)
        if rest or not size or (scene.stage == "mixed" and size * heads != scene.shape[2]):
            continue
        if orders:
            yield from (_plan(scene, (piece,), heads, groups, order) for order in orders)
            continue
        yield _plan(scene, (piece,), heads, groups)
        if groups == heads:
            yield _plan(scene, (piece,), heads, groups, layout="by head")
            yield _plan(scene, (piece,), heads, groups, layout="by channel")


def _triples(
    scene: Scene, along: list[Piece], flat: list[Piece], held: list[Piece]
) -> Iterator[tuple[tuple[Piece, ...], tuple[int, ...]]]:
    """Query, key and value apart; key and value in one; or in heads already. In the order in which they were made."""
    made_last = list(reversed([p for p in flat if p.rank == 1][:4])) or list(reversed(flat[:4]))
    queries = [p for p in made_last if p in along]
    for query in queries:
        for key in made_last:
            for value in made_last if scene.stage == "mixed" else [key]:
                if len({id(query), id(key), id(value)}) >= (3 if scene.stage == "mixed" else 2):
                    yield (query, key, value), (0, 1, 2)
    for query in queries:
        for both in made_last:
            if both is not query and both.array.shape[2] % 2 == 0:
                yield (query, both), (0, 1, 2)
                yield (query, both), (0, 2, 1)
    split = list(reversed([p for p in held if p.array.ndim == 4 and p.rank == 1][:3]))
    if len(split) >= 2:
        for query, key in permutations(split, 2):
            for value in [v for v in (*split, *made_last) if v is not query and v is not key] or [key]:
                yield (query, key, value), (0, 1, 2)


def _separate(scene: Scene, three: tuple[tuple[Piece, ...], tuple[int, ...]], heads: int) -> Iterator[Plan]:
    sources, order = three
    query = sources[0].array
    size, rest = (query.shape[3], 0) if query.ndim == 4 else divmod(query.shape[2], heads)
    if rest or not size or (len(sources) == 2 and sources[1].array.shape[2] % (2 * size)):
        return
    key = sources[1].array
    if key.ndim == 4:
        shared = [n for n in key.shape[1:3] if heads % n == 0] if query.ndim == 4 and heads in query.shape[1:3] else []
        groups = heads if heads in key.shape[1:3] else max(shared, default=0)
    else:
        groups = key.shape[2] // (size * (2 if len(sources) == 2 else 1))
    if groups and groups <= heads and heads % groups == 0:
        yield _plan(scene, sources, heads, groups, order)
