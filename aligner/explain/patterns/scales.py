"""Values that are the reference's times a number, plus a number, or both, everywhere or for each slice."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Optional

import numpy as np

from aligner.explain.patterns.pair import Floats, Pair, distinct, figure, thin
from aligner.explain.suspect import Suspect

FINE = 3e-6
"""A ratio near 1 must be met this closely to be told from its neighbours."""

FEW = 4
"""A slice with fewer elements than this fits any number of its own."""

PLAIN = 32
"""A ratio of two whole numbers up to this is one that people write."""

UNIT = 1e-4
"""So close to one are the lengths of what was normalised, and what is scaled on purpose is not: an eps takes off
little."""

ALIKE = 1e-6
"""So close must a lone number come to such a ratio: hardly any does by chance."""


def suspects(pair: Pair) -> Iterator[Suspect]:
    """The simplest of them that holds. Slices that are merely zero are told of elsewhere."""
    if not pair.alike or pair.before < UNIT:
        return
    for rule in (_ratio, _shift, _both, _sliced):
        found = rule(pair)
        if found is not None:
            yield found
            return


def _ratio(pair: Pair) -> Optional[Suspect]:
    wanted, found = pair.sample
    if not wanted.size or not found.any():
        return None
    ratio = slope(wanted, found)
    if ratio == 0.0 or not pair.near(ratio * wanted, found) or not (distinct(wanted) > 1 or _plain(ratio, pair)):
        return None
    left = pair.proved(pair.actual / ratio, pair.expected)
    if left is None:
        return None
    if abs(ratio + 1.0) < UNIT:
        return pair.suspect("sign-flipped", left, 0.8)
    told = name_of(ratio, pair.expected.shape)
    known = f" = {told}" if told else ""
    if math.isclose(ratio, _ddof(ratio), rel_tol=FINE):
        return pair.suspect("std-ddof", left, 0.8, ratio=figure(ratio) + known)
    return pair.suspect("constant-ratio", left, 0.8, ratio=figure(ratio) + known, inverse=figure(1.0 / ratio))


def _plain(ratio: float, pair: Pair) -> bool:
    """Whether it is a ratio of two small whole numbers, or that of n to n - 1: of one value alone any can be made."""
    root = _ddof(ratio)
    if root and math.isclose(ratio, root, rel_tol=FINE) and "-1)" in name_of(ratio, pair.expected.shape):
        return True
    return any(abs(abs(ratio) * n - round(abs(ratio) * n)) < ALIKE * n for n in range(1, PLAIN + 1)) and (
        1 / PLAIN <= abs(ratio) <= PLAIN and abs(ratio) != 1.0
    )


def slope(x: Floats, y: Floats) -> float:
    """The number k for which k * x is nearest to y."""
    square = float(np.dot(x, x))
    return float(np.dot(x, y)) / square if square else 0.0


def _ddof(ratio: float) -> float:
    """The nearest sqrt((n-1)/n) or its inverse, of an n from 3 to 256; 0 where there is none.

    Of two values it would be sqrt(2), which is far more often a gain that somebody forgot.
    """
    square = min(ratio, 1.0 / ratio) ** 2 if ratio > 0 else 0.0
    if not 0.6 < square < 0.997:
        return 0.0
    n = round(1.0 / (1.0 - square))
    root = math.sqrt((n - 1) / n)
    return root if ratio < 1.0 else 1.0 / root


def name_of(ratio: float, sizes: Sequence[int], close: float = 2e-5) -> str:
    """The ratio in words made of the sizes of axes, or of plain numbers; "" where none fits."""
    whole = {n for i in range(len(sizes)) for n in np.cumprod(np.asarray(sizes[i:], np.int64)).tolist()}
    parts = {size // d for size in sizes for d in range(2, 65) if size % d == 0}
    found: list[str] = []
    for n in _likely(ratio, [*sorted(whole), *sorted(parts - whole)], max(close, FINE)):
        words = {
            f"sqrt({n})": (math.sqrt(n), close),
            f"1/sqrt({n})": (1 / math.sqrt(n), close),
            f"1/{n}": (1 / n, close),
            f"sqrt(({n}-1)/{n})": (math.sqrt((n - 1) / n), FINE),
            f"sqrt({n}/({n}-1))": (math.sqrt(n / (n - 1)), FINE),
            f"{n}/({n}-1)": (n / (n - 1), FINE),
            f"({n}-1)/{n}": ((n - 1) / n, FINE),
        }
        found += [word for word, (number, near) in words.items() if math.isclose(ratio, number, rel_tol=near)]
    return " = ".join(sorted(found, key=lambda word: "sqrt" not in word)[:2])


def _likely(ratio: float, counts: Sequence[int], close: float) -> list[int]:
    """The counts from 2 on that, or one of whose words in `name_of`, may be the ratio."""
    counts = [count for count in counts if count >= 2]
    n = np.array(counts, np.float64)
    made = np.array(
        [np.sqrt(n), 1 / np.sqrt(n), 1 / n, np.sqrt((n - 1) / n), np.sqrt(n / (n - 1)), n / (n - 1), (n - 1) / n]
    )
    near = (np.abs(made - ratio) <= 1.01 * close * np.maximum(np.abs(made), abs(ratio))).any(axis=0)
    return [counts[at] for at in np.flatnonzero(near)]


def _shift(pair: Pair) -> Optional[Suspect]:
    wanted, found = pair.sample
    if wanted.size < FEW or distinct(wanted) < 2:
        return None
    shift = float(np.mean(found - wanted))
    if shift == 0.0 or not pair.near(found - shift, wanted):
        return None
    left = pair.proved(pair.actual - shift, pair.expected)
    return None if left is None else pair.suspect("constant-shift", left, 0.7, shift=figure(shift))


def _both(pair: Pair) -> Optional[Suspect]:
    wanted, found = pair.sample
    if wanted.size < 2 * FEW or distinct(wanted - wanted[0]) < 2:
        return None
    ratio = slope(wanted - wanted.mean(), found - found.mean())
    shift = float(found.mean() - ratio * wanted.mean())
    if ratio == 0.0 or not pair.near((found - shift) / ratio, wanted):
        return None
    left = pair.proved((pair.actual - shift) / ratio, pair.expected)
    if left is None:
        return None
    return pair.suspect("ratio-and-shift", left, 0.7, ratio=figure(ratio), shift=figure(shift))


def _groups(shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Sets of axes that may each have a number of their own: one axis, all but the last, all but the second, two."""
    count = len(shape)
    single = [(axis,) for axis in range(count)]
    rows = [tuple(range(count - 1)), tuple(a for a in range(count) if a != 1), (0, 1)] if count >= 3 else []
    seen: list[tuple[int, ...]] = []
    for keep in (*single, *rows):
        slices = int(np.prod([shape[axis] for axis in keep]))
        if keep not in seen and slices > 1 and slices * FEW <= np.prod(shape):
            seen.append(keep)
            yield keep


def _sliced(pair: Pair) -> Optional[Suspect]:
    """A ratio or a shift for each slice along some axes; the fewest slices that do it."""
    shape = pair.expected.shape
    if not (np.isfinite(pair.actual).all() and np.isfinite(pair.expected).all()):
        return None
    for keep in sorted(_groups(shape), key=lambda keep: np.prod([shape[a] for a in keep])):
        others = tuple(axis for axis in range(len(shape)) if axis not in keep)
        small = thin(shape, keep)
        found = _fit(pair, keep, others, small)
        if found is not None:
            return found
    return None


def _fit(pair: Pair, keep: tuple[int, ...], others: tuple[int, ...], small: tuple[Floats, ...]) -> Optional[Suspect]:
    wanted = np.asarray(pair.expected[small], np.float64)
    found = np.asarray(pair.actual[small], np.float64)
    each = int(np.prod([wanted.shape[a] for a in others]))
    if each < FEW or not _varied(wanted, found, others, 2):
        return None
    shifts = _shifts(wanted, found, others)
    if pair.near(found - shifts, wanted):
        shifts = _shifts(pair.expected, pair.actual, others)
        left = pair.proved(pair.actual - shifts, pair.expected)
        if left is not None:
            return _told(pair, "channel-shift", left, shifts, 0.0, keep)
    if np.count_nonzero(wanted) < 3 * (wanted.size // each):
        return None
    ratios = _ratios(wanted, found, others)
    if pair.near(ratios * wanted, found):
        ratios = _ratios(pair.expected, pair.actual, others)
        left = pair.proved(ratios * pair.expected, pair.actual)
        if left is not None and not np.isin(np.round(ratios, 4), (0.0, 1.0)).all():
            return _told(pair, "channel-ratio", left, ratios, 1.0, keep)
    affine = len(keep) == 1 and each >= 4 * FEW and _varied(wanted, found, others, 4)
    return _affine(pair, keep, others, small) if affine else None


def _varied(wanted: Floats, found: Floats, others: tuple[int, ...], count: int) -> bool:
    """Whether most wrong slices hold numbers that are not alike: one that was spread over a slice fits any number."""
    each = int(np.prod([wanted.shape[a] for a in others]))
    one, other = (np.moveaxis(side, others, range(-len(others), 0)).reshape(-1, each) for side in (wanted, found))
    wrong = one[(np.abs(one - other) > 1e-6 * np.abs(other)).any(axis=1)][:64]
    return not len(wrong) or sum(distinct(line - line[0]) >= count - 1 for line in wrong) * 2 >= len(wrong)


def _shifts(wanted: Floats, found: Floats, others: tuple[int, ...]) -> Floats:
    return np.asarray((found - wanted).mean(axis=others, keepdims=True, dtype=np.float64))


def _ratios(wanted: Floats, found: Floats, others: tuple[int, ...]) -> Floats:
    square = np.square(wanted, dtype=np.float64).sum(axis=others, keepdims=True)
    both = np.multiply(wanted, found, dtype=np.float64).sum(axis=others, keepdims=True)
    return np.asarray(np.divide(both, square, out=np.ones_like(both), where=square > 0))


def _affine(pair: Pair, keep: tuple[int, ...], others: tuple[int, ...], small: tuple[Floats, ...]) -> Optional[Suspect]:
    """A ratio and a shift for each slice of one axis."""
    few = _lines(np.asarray(pair.expected[small], np.float64), np.asarray(pair.actual[small], np.float64), others)
    if not pair.near(few[0] * pair.expected[small] + few[1], np.asarray(pair.actual[small], np.float64)):
        return None
    ratios, shifts = _lines(pair.expected, pair.actual, others)
    left = pair.proved(ratios * pair.expected + shifts, pair.actual)
    if left is None or (np.abs(ratios) < 1e-6).any():
        return None
    bounds = {"least": figure(float(shifts.min())), "most": figure(float(shifts.max()))}
    return _told(pair, "channel-ratio-and-shift", left, ratios, 1.0, keep, **bounds)


def _lines(wanted: Floats, found: Floats, others: tuple[int, ...]) -> tuple[Floats, Floats]:
    """The line through each slice's elements."""
    middle = wanted.mean(axis=others, keepdims=True, dtype=np.float64)
    height = found.mean(axis=others, keepdims=True, dtype=np.float64)
    ratios = _ratios(wanted - middle, found - height, others)
    return ratios, height - ratios * middle


def _told(
    pair: Pair, cause: str, left: float, each: Floats, idle: float, keep: tuple[int, ...], **bounds: str
) -> Suspect:
    scale = float(np.abs(each).max()) or 1.0
    off = np.argwhere(np.abs(each - idle).reshape([n for n in each.shape if n > 1] or [1]) > 1e-5 * scale)
    which = listed(off[:, 0]) if off.shape[1] == 1 else str(len(off))
    return pair.suspect(
        cause,
        left,
        0.65 if len(keep) == 1 else 0.5,
        None,
        axis=", ".join(str(axis) for axis in keep),
        slices=int(each.size),
        off=len(off),
        which=which,
        lowest=figure(float(each.min())),
        highest=figure(float(each.max())),
        **bounds,
    )


def listed(indices: Iterable[int]) -> str:
    """A few indices as people write them: "3, 7, 8-12 ..."."""
    runs: list[list[int]] = []
    for index in indices:
        if runs and index == runs[-1][1] + 1:
            runs[-1][1] = int(index)
        else:
            runs.append([int(index), int(index)])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in runs[:6]]
    return ", ".join(words) + (" ..." if len(runs) > 6 else "")
