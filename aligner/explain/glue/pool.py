"""All that simple code makes of the values in hand, at a few positions: where formulas are searched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from itertools import chain, combinations
from typing import Any, Optional, TypeVar

import numpy as np

from aligner.explain.glue import joined, resizing, steered, views
from aligner.explain.glue.formula import Factor, Formula, Term, plain
from aligner.explain.glue.functions import FUNCTIONS
from aligner.explain.glue.hand import OTHERS, Hand, Piece
from aligner.explain.glue.meeting import AT_ONCE, Pairs, Rows, constant, multiples
from aligner.explain.glue.views import View
from aligner.explain.patterns.pair import Floats

Offered = TypeVar("Offered")

POSITIONS = 256
CHECKED = 24
"""Positions on which a search looks; what it finds is checked on all POSITIONS, then on the whole."""
MAX_VIEWS = 400
MAX_NORMED = 4
MAX_NORMED_SIZE = 1 << 20
LONGER = 6
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
        array = view.array
        at = self.at[len(self.shape) - array.ndim :]
        row = array[tuple(place if size > 1 else 0 for size, place in zip(array.shape, at))]
        return np.full(len(self.at[0]), row, np.float64) if row.ndim == 0 else row.astype(np.float64)

    def values(self, formula: Formula) -> Floats:
        """The formula's numbers at the positions."""
        total: Floats = np.zeros(len(self.at[0]))
        for term in formula.terms:
            product: Any = term.coefficient
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
    size = math.prod(shape)
    alike = list(hand.pieces(lambda s: bool(views.aligned(s, shape))))
    for piece in alike:
        yield from views.plain(piece, shape)
    larger = [p for p in hand.pieces(lambda s: math.prod(s) >= size) if p.rank != 2]
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
    for piece in hand.pieces(lambda s: len(s) == len(shape) and 0 < math.prod(s) < size):
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
    if math.prod(shape) > MAX_NORMED_SIZE:
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

    @cached_property
    def _all(self) -> Rows:
        return Rows(self.rows)

    @cached_property
    def _plain(self) -> Rows:
        return Rows(self.raw)

    @cached_property
    def _factors(self) -> Rows:
        return Rows(self.rows, (np.abs(self.rows) > 1e-20).all(axis=1))

    @cached_property
    def _added(self) -> Rows:
        return Rows(self.raw, self._whole[: len(self.raw)])

    @cached_property
    def _unpadded(self) -> Rows:
        return Rows(self.rows, self._whole)

    @cached_property
    def _whole(self) -> Floats:
        """Which rows are not padded: two padded values make a concatenation."""
        whole = np.ones(len(self.rows), bool)
        whole[[number for number, view in enumerate(self.pool.views) if view.how == "pad"]] = False
        return whole

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
            yield from self._sums(self._added, self.wanted)
            yield from self._multiplied(self._factors.products(self.wanted[None], self.noise[None])[0])
            yield from self._sums(self._unpadded, self.wanted)
            if not deep:
                return
            yield from self._mixed()
            yield from self._scaled_sums()
            yield from self._besides()
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
        factor, same = constant(self.wanted, self.rows, self.noise)
        for number in np.flatnonzero(same):
            yield (Term((self.pool.atoms[number],), float(factor[number])),)

    def _mixed(self) -> Iterator[tuple[Term, ...]]:
        """A value, or the first ones of a table, plus a number times another."""
        sliced = [(n, view) for n, view in enumerate(self.pool.views) if view.how == "slice"][:SLICED]
        offered = [*self._offered(), *sliced]
        rest = self.wanted - self.raw[[number for number, _ in offered]]
        for (number, view), found in zip(offered, multiples(rest, self.raw, self.noise)):
            for other, factor in found:
                if other != number and abs(factor) > 1e-6:
                    yield (plain(view), plain(self.pool.views[other], coefficient=factor))

    def _scaled_sums(self) -> Iterator[tuple[Term, ...]]:
        """A number times the sum or difference of two values."""
        pairs = list(combinations(self._offered(), 2))
        first, second = ([pair[side][0] for pair in pairs] for side in (0, 1))
        for sign in (1.0, -1.0):
            factor, same = constant(self.wanted, self.raw[first] + sign * self.raw[second], self.noise)
            for at in np.flatnonzero(same):
                c, ((_, view), (_, other)) = float(factor[at]), pairs[at]
                yield (plain(view, coefficient=c), plain(other, coefficient=sign * c))

    def _sums(self, rows: Rows, wanted: Floats) -> Iterator[tuple[Term, ...]]:
        for sign in (1.0, -1.0):
            yield from self._summed(rows.sums(wanted[None], self.noise[None], sign)[0], sign)

    def _summed(self, pairs: Pairs, sign: float) -> Iterator[tuple[Term, ...]]:
        atoms = self.pool.atoms
        for one, other in pairs:
            if one != other and not (sign > 0 and one > other):
                yield (Term((atoms[one],)), Term((atoms[other],), sign))

    def _multiplied(self, pairs: Pairs) -> Iterator[tuple[Term, ...]]:
        for one, other in pairs:
            if one <= other:
                yield (Term((self.pool.atoms[one], self.pool.atoms[other])),)

    def _besides(self) -> Iterator[tuple[Term, ...]]:
        """A value and the sum, difference or product of two."""
        for offered in _few(self._offered()):
            wanted = self.wanted - self.raw[[number for number, _ in offered]]
            noise = np.broadcast_to(self.noise, wanted.shape)
            sums = [self._added.sums(wanted, noise, sign) for sign in (1.0, -1.0)]
            products = self._factors.products(wanted, noise)
            for at, (_, view) in enumerate(offered):
                for terms in chain(
                    self._summed(sums[0][at], 1.0),
                    self._summed(sums[1][at], -1.0),
                    self._multiplied(products[at]),
                ):
                    yield (plain(view), *terms)

    def _distributed(self) -> Iterator[tuple[Term, ...]]:
        """One value, or one divided by it, times the sum or difference of two."""
        offered = [(number, Factor(word, view)) for number, view in self._offered() for word in ("", "1 /")]
        made = ((outer, FUNCTIONS[outer.function](self.raw[number])) for number, outer in offered)
        usable = [(outer, by) for outer, by in made if np.isfinite(by).all() and not (np.abs(by) < 1e-12).any()]
        for few in _few(usable):
            by = np.array([row for _, row in few])
            wanted, noise = self.wanted / by, self.noise / np.abs(by)
            sums = [self._plain.sums(wanted, noise, sign) for sign in (1.0, -1.0)]
            for at, (outer, _) in enumerate(few):
                for sign, pairs in ((1.0, sums[0][at]), (-1.0, sums[1][at])):
                    for one, other in pairs:
                        if one != other:
                            first, second = self.pool.atoms[one], self.pool.atoms[other]
                            yield (Term((outer, first)), Term((outer, second), sign))

    def _blended(self) -> Iterator[tuple[Term, ...]]:
        """Two values, or functions of them, weighted by a gate and by one minus it."""
        offered = self._offered()
        atoms = self.pool.atoms
        for gate, opposite in (("", "1 -"), ("Sigmoid", "1 - sigmoid")):
            for few in _few(offered):
                held = self.raw[[number for number, _ in few]]
                wanted, noise = (np.broadcast_to(row, held.shape) for row in (self.wanted, self.noise))
                found = self._all.blends(wanted, noise, FUNCTIONS[gate](held), FUNCTIONS[opposite](held))
                for (_, view), pairs in zip(few, found):
                    for one, other in pairs:
                        if view not in (atoms[one].view, atoms[other].view) and atoms[one] != atoms[other]:
                            yield (
                                Term((Factor(gate, view), atoms[one])),
                                Term((Factor(opposite, view), atoms[other])),
                            )


def _few(offered: list[Offered]) -> Iterator[list[Offered]]:
    return (offered[start : start + AT_ONCE] for start in range(0, len(offered), AT_ONCE))
