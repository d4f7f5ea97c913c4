"""Whole numbers made otherwise: a quotient cut off or rounded down, the sign of a remainder, the order of a set."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

import numpy as np

from aligner.explain.case import HUGE
from aligner.explain.glue.hand import Hand, Piece
from aligner.explain.patterns.pair import Floats, Pair, figure
from aligner.explain.suspect import Suspect
from aligner.record import Scalar

NEAR = 6
"""Values in hand that may have been divided."""

DIVISORS = 65
QUOTIENTS = 3
"""Fewer different ones come of many divisions."""

MOST = 4096
"""Different values of a dividend that are looked at."""


def suspects(pair: Pair, hand: Hand) -> Iterator[Suspect]:
    """At most one."""
    if not (np.isfinite(pair.expected).all() and np.isfinite(pair.actual).all()):
        return
    found = _wrapped(pair)
    if found is None and _whole(pair.expected) and _whole(pair.actual):
        found = _unsorted(pair, hand) or _quotient(pair, hand)
    if found is not None:
        yield found


def _whole(values: Floats) -> bool:
    return bool((values == np.round(values)).all())


def _wrapped(pair: Pair) -> Optional[Suspect]:
    """The port's values below the reference's lowest are one number too low, and all others are right."""
    if not pair.alike:
        return None
    apart = pair.expected - pair.actual
    off = np.abs(apart) > 1e-5 * (np.abs(pair.expected) + np.abs(pair.actual))
    if off.sum() < 2 or off.all():
        return None
    one, other = (np.asarray(side, np.float64) for side in (pair.expected, pair.actual))
    number = float(np.median(apart[off]))
    back = number < 0  # then it is the reference that takes the dividend's sign
    high, low = (other, one) if back else (one, other)
    number = abs(number)
    least, span = float(high.min()), float(np.ptp(high))
    if not 0.5 * number <= span < number < HUGE or not np.allclose(np.abs(apart[off]), number, rtol=1e-4):
        return None
    if (low[~off] < least).any() or (low[off] >= least).any() or (apart[off] < 0).any() != back:
        return None
    if high[off].min() > high[~off].max() or high[off].max() < high[~off].min():
        return None  # angles from -pi to pi against those from 0 to 2 pi: where it was cut, and no sign
    start = least if _whole(high) else 0.0
    if not _whole(high) and (least < 0 or high.max() > number):
        return None
    mended = np.mod(low - start, number) + start
    left = pair.proved(mended, high)
    if left is None:
        return None
    codes = (f"remainder(a, {figure(number)})", f"fmod(a, {figure(number)})")
    ours, theirs = codes[::-1] if back else codes
    facts: dict[str, Scalar] = {"number": figure(number), "count": int(off.sum())}
    facts.update(reference_code=ours, port_code=theirs)
    return pair.suspect("remainder-vs-fmod", left, 0.9, None, **facts)


def _unsorted(pair: Pair, hand: Hand) -> Optional[Suspect]:
    """The different values of something in hand, sorted on one side and as they come first on the other; or which
    of them each element is."""
    if not pair.alike:
        return None
    for piece in hand.pieces(lambda s: 2 <= int(np.prod(s)) <= 1 << 20):
        flat = np.asarray(piece.array).reshape(-1)
        kept, first, where = np.unique(flat, return_index=True, return_inverse=True)
        if kept.size < 2:
            continue
        order = np.argsort(first, kind="stable")
        places = np.empty_like(order)
        places[order] = np.arange(order.size)
        for ours, theirs in (((kept, kept[order])), (where.reshape(-1), places[where.reshape(-1)])):
            if ours.size != pair.expected.size or np.array_equal(ours, theirs):
                continue
            for one, other, sorted_ in ((ours, theirs, True), (theirs, ours, False)):
                if np.array_equal(one, pair.expected.reshape(-1)) and np.array_equal(other, pair.actual.reshape(-1)):
                    codes = (f"unique([{piece.name}], sorted=True)", f"unique([{piece.name}], sorted=False)")
                    facts = dict(zip(("reference_code", "port_code"), codes if sorted_ else codes[::-1]))
                    return pair.suspect("unique-sorted", 0.0, 0.92, None, **facts)
    return None


def _quotient(pair: Pair, hand: Hand) -> Optional[Suspect]:
    """A quotient that is cut off on one side and rounded down on the other, one apart where it is negative."""
    apart = np.asarray(pair.expected - pair.actual) if pair.alike else np.zeros(0)
    values = np.unique(apart) if apart.size else apart
    if len(values) != 2 or 0 not in values or abs(values[0] + values[1]) != 1:
        return None
    cut_off = values[1] == 1  # the reference is higher: it cuts off, and the port rounds down
    high, low = (pair.expected, pair.actual) if cut_off else (pair.actual, pair.expected)
    if len(np.unique(high)) < QUOTIENTS:
        return None
    found = _divided(high, low, hand)
    if found is None:
        return None
    dividend, divisor = found
    codes = (f"trunc({dividend} / {divisor})", f"floor({dividend} / {divisor})")
    ours, theirs = codes if cut_off else codes[::-1]
    facts: dict[str, Scalar] = {"count": int((apart != 0).sum()), "reference_code": ours, "port_code": theirs}
    return pair.suspect("int-floor-div-negative", 0.0, 0.9, None, **facts)


def _divided(high: Floats, low: Floats, hand: Hand) -> Optional[tuple[str, str]]:
    """What was divided by what: a value in hand, perhaps moved by a whole number, by a number or another value."""
    alike = list(hand.pieces(lambda s: s == high.shape))[:NEAR]
    for piece in alike:
        found = _by_number(piece, high, low) if _whole(piece.array) else _by_factor(piece, high, low)
        if found is not None:
            return found
    for piece in alike:
        for other in hand.pieces(lambda s: len(s) <= high.ndim):
            if other is not piece and np.all(other.array != 0) and _spreads(other.array.shape, high.shape):
                exact = np.asarray(piece.array, np.float64) / other.array
                if np.array_equal(np.trunc(exact), high) and np.array_equal(np.floor(exact), low):
                    return f"[{piece.name}]", f"[{other.name}]"
    return None


def _spreads(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return all(n in (1, m) for n, m in zip(shape[::-1], wanted[::-1]))


def _by_number(piece: Piece, high: Floats, low: Floats) -> Optional[tuple[str, str]]:
    """A whole number before the division, and one after it, besides the divisor."""
    given, first = np.unique(np.asarray(piece.array, np.int64), return_index=True)
    if not 2 <= given.size <= MOST:
        return None
    up, down = (np.asarray(side, np.float64).reshape(-1)[first] for side in (high, low))
    reach = int(min(np.abs(given).max() + 1, 512))
    for shift in sorted(range(-reach, reach + 1), key=abs):
        moved = given + shift
        if not (moved < 0).any():
            continue
        for divisor in range(2, DIVISORS):
            exact = moved / divisor
            added = up - np.trunc(exact)
            if (added != added[0]).any() or not np.array_equal(np.floor(exact) + added[0], down):
                continue
            if np.array_equal(high != low, np.isin(piece.array, given[up != down])):
                return f"([{piece.name}]{shift:+d})" if shift else f"[{piece.name}]", str(divisor)
    return None


def _by_factor(piece: Piece, high: Floats, low: Floats) -> Optional[tuple[str, str]]:
    """A number that each element may have been multiplied by, between the bounds that all elements set."""
    x = np.asarray(piece.array, np.float64)
    positive, negative = (x > 0) & (high >= 0), (x < 0) & (high <= 0)
    if (positive | negative | (x == 0)).mean() < 1.0 or not negative.any():
        return None
    size, made = np.abs(x[x != 0]), np.abs(high[x != 0])
    least, most = float((made / size).max()), float(((made + 1) / size).min())
    if not 0 < least < most:
        return None
    factor = 0.5 * (least + most)
    if np.array_equal(np.trunc(factor * x), high) and np.array_equal(np.floor(factor * x), low):
        return f"[{piece.name}]", figure(1.0 / factor)
    return None
