"""Only a part of the value is wrong, or what lies beneath something that was added: the same questions of that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Optional

import numpy as np

from aligner.explain.case import Case, distance
from aligner.explain.glue import as_layer, differences, elementwise, formulas, scalars, spread, views
from aligner.explain.glue.hand import Hand
from aligner.explain.glue.place import Place
from aligner.explain.glue.views import View
from aligner.explain.inquiry import spend
from aligner.explain.patterns import composed, rearranged, runs, scales, slices
from aligner.explain.patterns.pair import Floats, Pair
from aligner.explain.patterns.places import off
from aligner.explain.phrase import Fact
from aligner.explain.suspect import Suspect

PEELED = 5
"""Values in hand that are taken off before what is left is looked at."""

STEPS = 4
"""Every so many slices, at most, may be wrong: what was interleaved."""

SHIFTS = {"constant-shift", "channel-shift"}
"""What a value taken off both sides changes nothing of: if it held, it held before."""

MADE = {"channel-ratio", "constant-ratio"}
"""What taking a multiple of a value off makes, where one side is that value and the other is zero."""


def suspects(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """The mistake in the wrong part alone, or in each of a few equal parts."""
    found = cut(pair)
    if found is not None:
        told = lost_write(next(_alone(case, pair, hand, *found), None), pair, hand, found[2])
        if told is not None:
            yield told
            return
    rank = pair.expected.ndim
    for axis in range(rank - 1, 0, -1):
        known = {size for value in case.known for size in value.shape}
        for count in (2, 3, 4):
            size, rest = divmod(pair.expected.shape[axis], count)
            if rest or size < 2 or size not in known:
                continue
            found_here = _each(case, pair, hand, axis, size)
            if found_here is not None:
                yield found_here
                return


def lost_write(told: Optional[Suspect], pair: Pair, hand: Hand, part: str) -> Optional[Suspect]:
    """What is told of a wrong part, where the port hands a value on as it was and the reference wrote into it."""
    if told is not None and told.cause != "expression-differs":
        return told
    for view in _whole(hand, pair.actual.shape):
        if view.array.shape == pair.actual.shape and np.array_equal(view.array, pair.actual):
            facts: dict[str, Fact] = {"part": part, "value": view.text, "written": f"y{part} = ..."}
            if told is None:
                return pair.suspect("view-aliasing-inplace", None, 0.5, None, **facts)
            facts["written"] = told.facts["reference_code"]
            return replace(told, cause="view-aliasing-inplace", facts={**told.facts, **facts})
    return told


def _each(case: Case, pair: Pair, hand: Hand, axis: int, size: int) -> Optional[Suspect]:
    """The first mistake, where each part is right or has one that is proved."""
    first: Optional[Suspect] = None
    for start in range(0, pair.expected.shape[axis], size):
        part = slice(start, start + size)
        index = (slice(None),) * axis + (part,)
        if distance(pair.actual[index], pair.expected[index]) <= pair.limit:
            continue
        found = next(_alone(case, pair, hand, axis, part, _text(axis, part)), None)
        if found is None:
            return None
        first = first or found
    return first


def narrowed(pair: Pair) -> Pair:
    """The pair with one element left of each axis along which both sides are the same: something was spread there."""
    index = tuple(
        slice(0, 1) if size > 1 and all(_spread(side, axis) for side in (pair.expected, pair.actual)) else slice(None)
        for axis, size in enumerate(pair.expected.shape)
    )
    if all(part == slice(None) for part in index):
        return pair
    return Pair(pair.expected[index], pair.actual[index], pair.limit, pair.facts)


def _spread(side: Floats, axis: int) -> bool:
    first = side.take([0], axis)
    few = np.array_equal(side.take([-1], axis), first)
    return few and bool((side == first).all()) and bool(np.ptp(side) > 0)


def _text(axis: int, part: slice) -> str:
    step = f":{part.step}" if part.step else ""
    return f"[{':, ' * axis}{part.start}:{part.stop}{step}]"


def _alone(case: Case, pair: Pair, hand: Hand, axis: int, part: slice, text: str) -> Iterator[Suspect]:
    index = (slice(None),) * axis + (part,)
    spend(20 * pair.expected[index].size)
    small = Pair(pair.expected[index], pair.actual[index], pair.limit, pair.facts)
    held = hand.cut(axis - pair.expected.ndim, part, pair.expected.shape[axis])
    narrow = narrowed(small)
    if narrow is not small:
        yield from (_told(suspect, text) for suspect in elementwise.suspects(case, narrow, held))
        yield from (_told(suspect, text) for suspect in formulas.suspects(Place.of(case, narrow, held)))
    yield from (_told(suspect, text) for suspect in elementwise.suspects(case, small, held))
    place = Place.of(case, small, held)
    yield from (_told(suspect, text) for suspect in scalars.suspects(small, held))
    yield from (_told(suspect, text) for suspect in formulas.suspects(place))
    yield from (_told(suspect, text) for suspect in as_layer.suspects(case, small, held))
    yield from (_told(suspect, text) for suspect in differences.suspects(place))
    yield from (_told(suspect, text) for suspect in spread.suspects(case, small, held))
    for rule in (runs.suspects, scales.suspects, slices.suspects, composed.suspects, rearranged.suspects):
        yield from (_told(suspect, text) for suspect in rule(small) if suspect.error is not None)


def cut(pair: Pair) -> Optional[tuple[int, slice, str]]:
    """The axis along which the fewest slices in a row are wrong, and those."""
    wrong = off(pair)
    best: Optional[tuple[float, int, slice]] = None
    for axis, size in enumerate(wrong.shape):
        slices_ = np.flatnonzero(wrong.any(axis=tuple(a for a in range(wrong.ndim) if a != axis)))
        if not slices_.size:
            return None
        first, last = int(slices_[0]), int(slices_[-1]) + 1
        apart = np.unique(np.diff(slices_))
        step = int(apart[0]) if len(apart) == 1 and 1 < apart[0] <= STEPS else None
        share = slices_.size / size if step else (last - first) / size
        if share < 1.0 and (best is None or share < best[0]):
            best = share, axis, slice(first, last, step)
    if best is None:
        return None
    return best[1], best[2], _text(best[1], best[2])


def _whole(hand: Hand, shape: tuple[int, ...]) -> Iterator[View]:
    for piece in hand.pieces(lambda s: bool(views.aligned(s, shape))):
        yield from views.plain(piece, shape)


def _told(suspect: Suspect, text: str) -> Suspect:
    facts = dict(suspect.facts)
    for side in ("reference_code", "port_code"):
        if side in facts:
            facts[side] = f"y{text} = {facts[side]}"
    return replace(suspect, facts={**facts, "part": text})


def peeled(case: Case, pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """What the two differ in once a value that both have added, or multiplied by, is taken off."""
    if not (np.isfinite(pair.expected).all() and np.isfinite(pair.actual).all()):
        return
    offered = [view for view in _whole(hand, pair.expected.shape) if view.array.dtype.kind == "f"][:PEELED]
    root = float(np.sqrt(pair.expected.shape[-1]))
    for view, scale in [*((view, 1.0) for view in offered), *((view, root) for view in offered[:2])]:
        under = _under(pair, scale * np.asarray(view.array, np.float64))
        if under is None:
            continue
        for found in _beneath(case, under, hand):
            for suspect in found:
                if suspect.cause in (SHIFTS if scale == 1.0 else SHIFTS | MADE):
                    continue
                if suspect.error is not None and _back(pair, suspect.error):
                    cause = "concat-order" if suspect.cause == "axis-rolled" else suspect.cause
                    facts = {**suspect.facts, "beneath": view.text}
                    yield replace(suspect, cause=cause, facts=facts, weight=max(0.6, suspect.weight - 0.1))
                    return


def _beneath(case: Case, under: Pair, hand: Hand) -> Iterator[Iterable[Suspect]]:
    yield scales.suspects(under)
    yield slices.suspects(under)
    yield rearranged.suspects(under)
    yield as_layer.resized(case, under, hand)


def _under(pair: Pair, value: Floats) -> Optional[Pair]:
    spend(20 * pair.expected.size)
    one, other = pair.expected - value, pair.actual - value
    noise = 1e-6 * float(np.sqrt(np.square(value).mean()))
    if float(np.sqrt(np.square(one).mean())) < 100.0 * noise or distance(one, other) < 1e-4:
        return None
    return Pair(one, other, pair.limit, pair.facts)


def _back(pair: Pair, left: float) -> bool:
    return left * 8.0 <= pair.before
