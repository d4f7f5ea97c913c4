"""All that simple code makes of the values in hand, at a few positions: where formulas are searched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import Optional

import numpy as np

from aligner.explain.glue import joined, resizing, steered, views
from aligner.explain.glue.formula import Factor, Formula, Term, plain
from aligner.explain.glue.functions import FUNCTIONS
from aligner.explain.glue.hand import OTHERS, Hand, Piece
from aligner.explain.glue.views import View
from aligner.explain.patterns.pair import Floats

POSITIONS = 256
CHECKED = 24
"""Positions on which a search looks; what it finds is checked on all POSITIONS, then on the whole."""
MAX_VIEWS = 400
MAX_NORMED = 4
MAX_NORMED_SIZE = 1 << 20
LONGER = 6
MAX_MATCHES = 100_000
SLICED = 8
"""Slices that something may have been added to, after it was scaled."""


class Pool:
    """Rows of numbers: functions of views of the values in hand, at fixed positions of the wanted shape."""

    def __init__(self, hand: Hand, shape: tuple[int, ...], positions: Floats) -> None:
        self.shape = shape
        self.at = np.unravel_index(positions, shape)
        self.views = self._distinct(_views(hand, shape))
        self.raw = np.array([self.row(view) for view in self.views]).reshape(len(self.views), len(positions))
        self.atoms, self.rows = self._functions()

    def row(self, view: View) -> Floats:
        """The view's numbers at the positions."""
        return np.broadcast_to(view.array, self.shape)[self.at].astype(np.float64)

    def values(self, formula: Formula) -> Floats:
        """The formula's numbers at the positions."""
        total = np.zeros(len(self.at[0]))
        for term in formula.terms:
            product = np.full(len(total), term.coefficient)
            for factor in term.factors:
                product = product * FUNCTIONS[factor.function](self._known(factor.view))
            total = total + product
        return np.asarray(FUNCTIONS[formula.outer](total))

    def _known(self, view: View) -> Floats:
        number = self._numbers.get(id(view))
        return self.raw[number] if number is not None else self.row(view)

    def _distinct(self, found: Iterable[View]) -> list[View]:
        seen: set[bytes] = set()
        kept: list[View] = []
        for view in found:
            row = self.row(view)
            if not np.isfinite(row).all() or not row.any() or (mark := row.tobytes()) in seen:
                continue
            seen.add(mark)
            kept.append(view)
            if len(kept) == MAX_VIEWS:
                break
        self._numbers = {id(view): number for number, view in enumerate(kept)}
        return kept

    def _functions(self) -> tuple[list[Factor], Floats]:
        atoms = [Factor("", view) for view in self.views]
        blocks = [self.raw]
        simple = [n for n, view in enumerate(self.views) if view.how in ("", "chunk", "every", "transpose")][:40]
        if simple:
            for name, function in FUNCTIONS.items():
                if name:
                    atoms += [Factor(name, self.views[n]) for n in simple]
                    with np.errstate(all="ignore"):
                        blocks.append(function(self.raw[simple]))
        return atoms, np.concatenate(blocks) if blocks else np.zeros((0, len(self.at[0])))


def _views(hand: Hand, shape: tuple[int, ...]) -> Iterator[View]:
    """All views of the wanted shape, the likeliest first: of others' values the simple ones come last."""
    size = int(np.prod(shape))
    alike = list(hand.pieces(lambda s: any(True for _ in views.aligned(s, shape))))
    for piece in alike:
        yield from views.plain(piece, shape)
    larger = [p for p in hand.pieces(lambda s: int(np.prod(s)) >= size) if p.rank != 2]
    for piece in hand.pieces(lambda s: views.divisible(s, shape)):
        yield from views.parts(piece, shape)
    for piece in _added(hand, shape):
        yield from views.parts(piece, shape)
    for piece in larger:
        yield from views.turned(piece, shape)
    yield from joined.views(hand, shape)
    longer = [piece for piece in larger if piece.array.size > size]
    floats = [piece for piece in longer if piece.array.dtype.kind == "f"]
    for piece in floats:
        if piece.rank < OTHERS:
            yield from views.reduced(piece, shape)
    yield from _same(hand, [views.squeezed(piece, shape) for piece in alike], shape)
    for piece in hand.pieces(lambda s: len(s) == len(shape) and 0 < int(np.prod(s)) < size):
        if piece.rank < 2:
            yield from resizing.views(piece, shape)
        if piece.rank != 2:
            yield from steered.padded(piece, shape)
    if longer:
        yield from _steered(hand, [piece for piece in longer if piece.rank < OTHERS][:LONGER], shape)
    for piece in floats:
        if piece.rank >= OTHERS:
            yield from views.reduced(piece, shape)


def _same(hand: Hand, alike: list[Piece], shape: tuple[int, ...]) -> Iterator[View]:
    """Norms and softmax of values that have the wanted shape already."""
    if int(np.prod(shape)) > MAX_NORMED_SIZE:
        return
    own = [piece for piece in alike if piece.array.shape == shape and piece.rank in (0, 1, 3)]
    for piece in own[:MAX_NORMED]:
        yield from views.normed(piece, shape)
    if len(shape) >= 2:
        for mask in steered.masks(hand):
            for piece in [piece for piece in own if piece.rank][:2]:
                yield from steered.hidden(piece, mask, shape)


def _added(hand: Hand, shape: tuple[int, ...]) -> Iterator[Piece]:
    """Sums of two values that are twice as wide: what a gate is split from."""
    wide = [p for p in hand.pieces(lambda s: len(s) == len(shape)) if p.rank < 4 and p.array.dtype.kind == "f"]
    for one, other in combinations([p for p in wide if _doubled(p.array.shape, shape)][:4], 2):
        if all(n == m or 1 in (n, m) for n, m in zip(one.array.shape, other.array.shape)):
            yield replace(one, array=one.array + other.array, added=other.value)


def _doubled(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return sum(n == 2 * m for n, m in zip(found, wanted)) == 1 and all(
        n in (m, 2 * m) or n == 1 for n, m in zip(found, wanted)
    )


def _steered(hand: Hand, longer: list[Piece], shape: tuple[int, ...]) -> Iterator[View]:
    for piece in longer:
        yield from steered.indexed(piece, shape)
    masks = steered.masks(hand)
    for piece in longer:
        for mask in masks:
            yield from steered.weighted(piece, mask, shape)
    scores = [p for p in hand.pieces(lambda s: 1 < len(s) <= 4) if p.rank in (1, 3) and p.array.dtype.kind == "f"]
    for piece in longer:
        for score in scores[:6]:
            if score is not piece and score.array.size < piece.array.size:
                yield from steered.pooled(piece, score, masks, shape)


class Search:
    """Looks for formulas whose numbers are `wanted` at the pool's positions; NaN where that does not matter."""

    def __init__(self, pool: Pool, wanted: Floats, noise: Floats) -> None:
        self.pool = pool
        clear = np.flatnonzero(np.isfinite(wanted) & (np.abs(wanted) > 10 * noise))
        chosen = clear[:CHECKED]
        self.hopeless = len(chosen) < min(6, len(wanted))
        self.wanted, self.noise = wanted[chosen], noise[chosen]
        self.raw, self.rows = pool.raw[:, chosen], pool.rows[:, chosen]
        padded = [number for number, view in enumerate(pool.views) if view.how == "pad"]
        self.added, self.summed = self.raw.copy(), self.rows.copy()
        self.added[padded], self.summed[padded] = np.nan, np.nan  # two padded values make a concatenation

    def close(self, found: Floats, wanted: Optional[Floats] = None) -> Floats:
        """Which rows are the wanted numbers."""
        target = self.wanted if wanted is None else wanted
        return np.asarray((np.abs(found - target) <= self.noise + 1e-9 * np.abs(target)).all(axis=-1))

    def terms(self, deep: bool = True) -> Iterator[tuple[Term, ...]]:
        """Sums of products that give the wanted numbers, the simplest first; `deep`: of more than two factors too."""
        if self.hopeless or not len(self.raw):
            return
        with np.errstate(all="ignore"):
            yield from self.single()
            yield from self._scaled()
            yield from self._sums(self.added, self.pool.atoms[: len(self.raw)], self.wanted, ())
            yield from self._products(self.wanted, self.noise, ())
            yield from self._sums(self.summed, self.pool.atoms, self.wanted, ())
            if not deep:
                return
            yield from self._mixed()
            yield from self._scaled_sums()
            for number, view in self._offered():
                rest = (plain(view),)
                yield from self._sums(
                    self.added, self.pool.atoms[: len(self.raw)], self.wanted - self.raw[number], rest
                )
                yield from self._products(self.wanted - self.raw[number], self.noise, rest)
            yield from self._distributed()
            yield from self._blended()

    def single(self) -> Iterator[tuple[Term, ...]]:
        """Values as they are, or a function of one: what a few numbers are enough to know."""
        if self.hopeless or not len(self.raw):
            return
        with np.errstate(all="ignore"):
            for number in np.flatnonzero(self.close(self.rows)):
                yield (Term((self.pool.atoms[number],)),)

    def _offered(self) -> list[tuple[int, View]]:
        return [(n, view) for n, view in enumerate(self.pool.views) if view.how in ("", "chunk", "every")][:24]

    def _scaled(self) -> Iterator[tuple[Term, ...]]:
        factor, same = _constant(self.wanted, self.rows, self.noise)
        for number in np.flatnonzero(same):
            yield (Term((self.pool.atoms[number],), float(factor[number])),)

    def _mixed(self) -> Iterator[tuple[Term, ...]]:
        """A value, or the first ones of a table, plus a number times another."""
        sliced = [(n, view) for n, view in enumerate(self.pool.views) if view.how == "slice"][:SLICED]
        for number, view in (*self._offered(), *sliced):
            factor, same = _constant(self.wanted - self.raw[number], self.raw, self.noise)
            for other in np.flatnonzero(same):
                if other != number and abs(factor[other]) > 1e-6:
                    yield (plain(view), plain(self.pool.views[other], coefficient=float(factor[other])))

    def _scaled_sums(self) -> Iterator[tuple[Term, ...]]:
        """A number times the sum or difference of two values."""
        offered = self._offered()
        numbers = [number for number, _ in offered]
        for sign in (1.0, -1.0):
            for first, (number, view) in enumerate(offered):
                others = numbers[first + 1 :]
                if not others:
                    continue
                factor, same = _constant(self.wanted, self.raw[number] + sign * self.raw[others], self.noise)
                for at in np.flatnonzero(same):
                    c = float(factor[at])
                    yield (plain(view, coefficient=c), plain(self.pool.views[others[at]], coefficient=sign * c))

    def _sums(
        self, rows: Floats, atoms: list[Factor], wanted: Floats, rest: tuple[Term, ...]
    ) -> Iterator[tuple[Term, ...]]:
        for sign in (1.0, -1.0):
            for one, other in _pairs(wanted - rows, sign * rows, self.noise):
                if one != other and not (sign > 0 and one > other):
                    yield (*rest, Term((atoms[one],)), Term((atoms[other],), sign))

    def _products(self, wanted: Floats, noise: Floats, rest: tuple[Term, ...]) -> Iterator[tuple[Term, ...]]:
        rows, atoms = self.rows, self.pool.atoms
        usable = np.flatnonzero((np.abs(rows) > 1e-20).all(axis=1) & np.isfinite(rows).all(axis=1))
        if not len(usable):
            return
        held = rows[usable]
        near = _pairs(wanted / held, held, noise / np.abs(held), 1e-9 * np.abs(wanted / held))
        for one, other in near:
            if one <= other:
                yield (*rest, Term((atoms[usable[one]], atoms[usable[other]])))

    def _distributed(self) -> Iterator[tuple[Term, ...]]:
        """One value, or one divided by it, times the sum or difference of two."""
        for number, view in self._offered():
            for function in ("", "1 /"):
                by = FUNCTIONS[function](self.raw[number])
                if not np.isfinite(by).all() or (np.abs(by) < 1e-12).any():
                    continue
                wanted, noise = self.wanted / by, self.noise / np.abs(by)
                outer = Factor(function, view)
                for sign in (1.0, -1.0):
                    for one, other in _pairs(wanted - self.raw, sign * self.raw, noise):
                        if one != other:
                            first, second = self.pool.atoms[one], self.pool.atoms[other]
                            yield (Term((outer, first)), Term((outer, second), sign))

    def _blended(self) -> Iterator[tuple[Term, ...]]:
        """Two values, or functions of them, weighted by a gate and by one minus it."""
        offered = self._offered()
        rows, atoms = self.rows, self.pool.atoms
        for gate, opposite in (("", "1 -"), ("Sigmoid", "1 - sigmoid")):
            for number, view in offered:
                open_, closed = FUNCTIONS[gate](self.raw[number]), FUNCTIONS[opposite](self.raw[number])
                for one, other in _pairs(self.wanted - open_ * rows, closed * rows, self.noise):
                    if view not in (atoms[one].view, atoms[other].view) and atoms[one] != atoms[other]:
                        yield (Term((Factor(gate, view), atoms[one])), Term((Factor(opposite, view), atoms[other])))


def _constant(wanted: Floats, rows: Floats, noise: Floats) -> tuple[Floats, Floats]:
    """For each row the number that makes it the wanted one, and whether it does."""
    weight = np.square(rows).sum(axis=1)
    factor = (rows * wanted).sum(axis=1) / np.where(weight == 0, np.inf, weight)
    varied = rows.max(axis=1) - rows.min(axis=1) > 1e-6 * np.abs(rows).max(axis=1)
    same = (np.abs(factor[:, None] * rows - wanted) <= noise).all(axis=1) & varied & (factor != 0)
    return factor, same


def _pairs(needed: Floats, offered: Floats, noise: Floats, more: Optional[Floats] = None) -> list[tuple[int, int]]:
    """Pairs (i, j) with needed[i] equal to offered[j]: sorted by the first position, then checked on all."""
    margin = np.broadcast_to(noise, needed.shape) + (0.0 if more is None else more)
    good = np.flatnonzero(np.isfinite(offered).all(axis=1))
    order = good[np.argsort(offered[good, 0], kind="stable")]
    first = offered[order, 0]
    asked = np.flatnonzero(np.isfinite(needed).all(axis=1) & np.isfinite(margin).all(axis=1))
    low = np.searchsorted(first, needed[asked, 0] - margin[asked, 0])
    high = np.searchsorted(first, needed[asked, 0] + margin[asked, 0], side="right")
    counts = np.minimum(high - low, 400)
    if counts.sum() > MAX_MATCHES:
        counts = np.where(np.cumsum(counts) <= MAX_MATCHES, counts, 0)
    one = np.repeat(asked, counts)
    offset = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    other = order[np.repeat(low, counts) + offset] if len(one) else one
    right = (np.abs(needed[one] - offered[other]) <= margin[one]).all(axis=1)
    return [(int(a), int(b)) for a, b in zip(one[right], other[right])][:50]
