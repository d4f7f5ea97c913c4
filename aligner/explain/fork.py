"""The line at which a port's own code leaves the reference's: where right values go in and another one comes out.

Both sides' values are known by fingerprints. From the wrong value on go back through the port's steps, and from the
right one through the reference's, until values that both sides have. What lies between is the mistake and what comes of
it. Its beginning on either side is the line, if there is one such beginning only, it starts from the same values, and
all else that lies between is the same; otherwise no more is said than between which lines it lies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Optional

import numpy as np

from aligner.explain import alike
from aligner.explain.line import ARGUMENT, BETWEEN, ELSEWHERE, EXTRA, GIVEN, HANDED, MISSING, OPERAND, OTHER, Fork, Spot
from aligner.explain.trail import Step, Trail
from aligner.fingerprint import Fingerprint, apart, distances
from aligner.words import plain

if TYPE_CHECKING:
    import numpy.typing as npt

FOUND = 1e-6
"""A value of a trail is this one itself."""

AGREE, LEAST = 1e-4, 3e-6
"""Values agree that are apart by less than the one, but never less than the other: kernels round in their own ways."""

SHARE = 0.05
"""What is off by less than this share of the mistake is no sign of it."""


def fork(
    reference: Trail, port: Trail, wanted: Optional[Fingerprint], found: Optional[Fingerprint], rounding: float
) -> Optional[Fork]:
    """Where the two part that end in these values; None where that cannot be told."""
    if wanted is None or found is None:
        return None
    error = apart(wanted, found) if wanted.size == found.size else 1.0
    limit = max(min(AGREE, SHARE * error), LEAST, 3.0 * rounding)
    mine, its = _place(reference, wanted), _place(port, found)
    if limit > 2.0 * SHARE * error:
        return None
    if its is None:
        return None
    if mine is None:  # a layer made it
        return _handed(reference, port, its, limit)
    strict = _Forking(reference, port, limit, turned=False).told(mine, its)
    if strict is None or strict.sure:
        return strict
    loose = _Forking(reference, port, limit, turned=True).told(mine, its)
    return loose if loose is not None and loose.sure else strict


def _place(trail: Trail, value: Fingerprint) -> Optional[int]:
    """The number of this value in the trail, the last in this form if there are several."""
    alike = [int(number) for number in np.nonzero(trail.known.apart(value) <= FOUND)[0]]
    formed = [number for number in alike if (known := trail.values[number]) and known.shape == value.shape]
    return formed[-1] if formed else next(iter(alike), None)


def _handed(reference: Trail, port: Trail, its: int, limit: float) -> Optional[Fork]:
    """Where a right value leaves the code in place of another: what came in, or what the reference makes as well."""
    right = its not in port.makers or bool((reference.known.apart(port.values[its]) <= limit).any())
    return _passing(HANDED, port.way(its), None) if right else None


def _passing(kind: str, way: Optional[tuple[Spot, Spot]], reference: Optional[Spot]) -> Optional[Fork]:
    """Something should have been done to a value that came in: where it comes, where it goes on, or in between."""
    if way is None:
        return None
    comes, goes = way
    one = (comes.file, comes.line) == (goes.file, goes.line)
    return Fork(kind, goes, reference) if one else Fork(BETWEEN, comes, reference, (goes, reference))


class _Side:
    """What lies between the values that agree and the end, in one trail."""

    def __init__(self, trail: Trail, end: int, agreed: Sequence[bool]) -> None:
        self.trail = trail
        self.end = end
        self.steps: list[int] = []
        self.leaves: set[int] = set()
        """Values that nobody made, and that the other side does not have."""
        self.unknown = False
        self._agreed = agreed
        self._walk()
        self.steps.sort()

    def _walk(self) -> None:
        left, seen = [self.end], {self.end}
        while left:
            value = left.pop()
            if self._agreed[value]:
                continue
            self.unknown |= self.trail.values[value] is None
            maker = self.trail.makers.get(value)
            if maker is None and self._tells(value):
                self.leaves.add(value)
            elif maker is None:
                continue  # a constant
            elif maker not in self.steps:
                self.steps.append(maker)
                new = set(self.trail.steps[maker].given) - seen
                seen |= new
                left += new

    @property
    def beginnings(self) -> list[int]:
        """Steps that start from values which agree, from constants, or from a value that nobody made.

        What makes numbers of nothing counts only where there is nothing else.
        """
        filled = {value for number in self.steps if self.word(number) == "fill" for value in self._made(number)}
        inside = {value for number in self.steps for value in self._made(number)} - filled
        found = [
            number
            for number in self.steps
            if not any(value in inside and not self._agreed[value] for value in self.trail.steps[number].given)
        ]
        return [number for number in found if self.telling([number]) or self.used(number)] or found

    def _made(self, number: int) -> tuple[int, ...]:
        return self.trail.steps[number].made

    def after(self, number: int) -> list[int]:
        """The steps to the end that come of this one."""
        made, found = set(self.trail.steps[number].made), []
        for other in self.steps:
            if other > number and made & set(self.trail.steps[other].given):
                made |= set(self.trail.steps[other].made)
                found.append(other)
        return found

    def used(self, number: int) -> set[int]:
        """Which of the leaves a step is given."""
        return self.leaves & set(self.trail.steps[number].given)

    def on_line(self, number: int) -> list[int]:
        """The steps that stand in the line of this one."""
        at = self.trail.steps[number].at
        return [other for other in self.steps if self.trail.steps[other].at == at]

    def closed(self, numbers: Sequence[int]) -> bool:
        """Whether these steps work on nothing wrong but what they made themselves."""
        made = {value for number in numbers for value in self._made(number)}
        given = {value for number in numbers for value in self.trail.steps[number].given}
        return all(self._agreed[value] or value in made or not self._tells(value) for value in given)

    def telling(self, numbers: Sequence[int]) -> list[int]:
        """Agreed values that these steps start from, constants left aside."""
        given = dict.fromkeys(value for number in numbers for value in self.trail.steps[number].given)
        return [value for value in given if self._agreed[value] and self._tells(value)]

    def _tells(self, value: int) -> bool:
        known = self.trail.values[value]
        return known is None or known.size > 1 or value in self.trail.makers

    def spot(self, number: int) -> Spot:
        """Where a step stands."""
        return self.trail.steps[number].spot

    def maker(self) -> Optional[Spot]:
        """Where the end was made."""
        number = self.trail.makers.get(self.end)
        return None if number is None else self.spot(number)

    def work(self, number: int) -> str:
        """What a step does, in still fewer words."""
        return alike.work(self.word(number))

    def coarse(self, number: int) -> str:
        """What a step does, whatever right ports write in its place."""
        return alike.coarse(self.word(number))

    def words(self, but: Collection[int] = ()) -> list[str]:
        """What is computed there, without these steps."""
        return self.words_of([number for number in self.steps if number not in but])

    def words_of(self, numbers: Sequence[int]) -> list[str]:
        """What these steps compute."""
        return [word for number in numbers if (word := plain.plain(self.trail.steps[number].name))]

    def form(self, number: int) -> Optional[tuple[int, ...]]:
        """The shape of what a step makes."""
        made = self.trail.values[self.trail.steps[number].made[0]]
        return None if made is None else made.shape

    def word(self, number: int) -> str:
        """What a step does."""
        name = self.trail.steps[number].name
        return plain.plain(name) or plain.moved(name)


@lru_cache(maxsize=2)
def _away(reference: Trail, port: Trail, turned: bool) -> npt.NDArray[np.float64]:
    """How far their values are apart, for all that is asked of the same code one after the other."""
    return distances(reference.values, port.values, turned)


class _Forking:
    def __init__(self, reference: Trail, port: Trail, limit: float, turned: bool) -> None:
        self.reference, self.port = reference, port
        self._same = _away(reference, port, turned=False) <= limit
        if turned:  # a layout of another shape; what has the same shape is another value
            self._same |= (_away(reference, port, turned=True) <= limit) & _reshaped(reference, port)

    def told(self, wanted: int, found: int) -> Optional[Fork]:
        if self._same[wanted, found]:
            return None  # nothing is wrong as far as can be seen
        self._same[:, found + 1 :] = False  # the forced pass may have put it right
        ours = _Side(self.reference, wanted, list(self._same.any(axis=1)))
        theirs = _Side(self.port, found, list(self._same.any(axis=0)))
        if ours.unknown or theirs.unknown:
            return None
        if not theirs.steps and theirs.leaves <= {found}:
            return self._missing(ours, theirs)
        if not ours.steps and not ours.leaves:
            return self._extra(theirs)
        if not ours.beginnings or not theirs.beginnings:
            return None
        return self._pair(ours, theirs) or self._between(ours, theirs)

    def _missing(self, ours: _Side, theirs: _Side) -> Optional[Fork]:
        """The wrong value is one that the reference has, too, or that came into the port's code."""
        first, spot, way = ours.beginnings, theirs.maker(), self.port.way(theirs.end)
        if not first:
            handed = spot is None and way is not None
            return _passing(HANDED, way, ours.maker()) if handed or ours.leaves else Fork(ELSEWHERE, spot, ours.maker())
        start, end = ours.spot(first[0]), ours.spot(ours.steps[-1])
        if set(ours.on_line(first[0])) != set(ours.steps):
            comes, goes = way if spot is None and way is not None else (spot, None)
            return Fork(BETWEEN, comes, start, (goes, end))
        return _passing(MISSING, way, start) if spot is None and way is not None else Fork(MISSING, spot, start)

    def _extra(self, theirs: _Side) -> Optional[Fork]:
        """The right value is one that the port has, too."""
        first = theirs.beginnings
        if not first:
            return None
        if set(theirs.on_line(first[0])) == set(theirs.steps):
            return Fork(EXTRA, theirs.spot(first[0]), None)
        return Fork(BETWEEN, theirs.spot(first[0]), None, (theirs.spot(theirs.steps[-1]), None))

    def _between(self, ours: _Side, theirs: _Side) -> Fork:
        """Two beginnings that work on the same values, if there are such."""
        until = theirs.spot(theirs.steps[-1]), ours.spot(ours.steps[-1])
        pairs = [(mine, its) for its in theirs.beginnings for mine in ours.beginnings]
        shared = (pair for pair in pairs if self._share(ours.telling([pair[0]]), theirs.telling([pair[1]])))
        mine, its = next(shared, pairs[0])
        return Fork(BETWEEN, theirs.spot(its), ours.spot(mine), until)

    def _pair(self, ours: _Side, theirs: _Side) -> Optional[Fork]:
        """The beginnings that are each other's counterparts, the surest kind first."""
        pairs = [(mine, its) for its in theirs.beginnings for mine in ours.beginnings]
        for mine, its in pairs:
            if self._is_same_work(ours, theirs, [mine], [its]):
                return self._fork(OTHER, ours, theirs, mine, its)
        for mine, its in pairs:
            lines = ours.on_line(mine), theirs.on_line(its)
            if ours.closed(lines[0]) and theirs.closed(lines[1]) and self._is_same_work(ours, theirs, *lines):
                return self._fork(OTHER, ours, theirs, mine, its)
        for its in theirs.beginnings:
            fed = self._fed(ours, theirs, its) if theirs.used(its) else None
            if fed is not None:
                return self._fork(GIVEN, ours, theirs, fed, its)
        twice = self._twice(ours, theirs)
        if twice is not None or theirs.leaves or not (_lone(ours) and _lone(theirs)):
            return twice
        for mine, its in pairs:
            kind = self._kind(ours, theirs, mine, its)
            if kind:
                return self._fork(kind, ours, theirs, mine, its)
        return None

    def _is_same_work(self, ours: _Side, theirs: _Side, mine: Sequence[int], its: Sequence[int]) -> bool:
        """The same work on the same values, with another result: whatever follows, here it is."""
        words = [sorted(map(side.work, steps)) for side, steps in ((ours, mine), (theirs, its))]
        if words[0] != words[1] or any(map(ours.used, mine)) or any(map(theirs.used, its)):
            return False
        given = ours.telling(mine), theirs.telling(its)
        if not ours.words_of(mine):  # nothing is computed: layouts may go other ways
            forms = ours.form(mine[-1]), theirs.form(its[-1])
            if None in forms or forms[0] != forms[1]:
                return False
        return bool(given[0]) and len(given[0]) == len(given[1]) and self._from_same(*given)

    def _fed(self, ours: _Side, theirs: _Side, its: int) -> Optional[int]:
        """The reference's step that does the same with what the port has from elsewhere."""
        for mine in ours.steps:
            given = ours.telling([mine]), theirs.telling([its])
            if ours.word(mine) != theirs.word(its) or not self._from_same(*given):
                continue
            rest = [side.words(set(side.steps) - set(side.after(step))) for side, step in ((ours, mine), (theirs, its))]
            if not any(alike.apart(*rest)) and theirs.leaves <= theirs.used(its):
                return mine
        return None

    def _kind(self, ours: _Side, theirs: _Side, mine: int, its: int) -> str:
        """What was done to the port's line, by what else there is on one side only; "" if that does not tell."""
        lines = ours.on_line(mine), theirs.on_line(its)
        lacking, more = alike.apart(ours.words(), theirs.words())
        words = ours.word(mine), theirs.word(its)
        equal = ours.work(mine) == theirs.work(its)
        alone = ours.telling([mine]), theirs.telling([its])
        given = ours.telling(lines[0]), theirs.telling(lines[1])
        counts = [Counter(map(side.word, side.steps)) for side in (ours, theirs)]
        coarse = ours.coarse(mine), theirs.coarse(its)
        gone = coarse[0] in lacking or alike.only(words[0], *counts)
        come = coarse[1] in more or alike.only(words[1], *reversed(counts))
        same = self._same[np.ix_(alone[0], given[1])], self._same[np.ix_(given[0], alone[1])]
        among = same[0].any(axis=1).all(), same[1].any(axis=0).all()
        if gone and not come and not equal and among[0] and coarse[1] in map(ours.coarse, ours.after(mine)):
            return MISSING
        if come and not gone and not equal and among[1] and coarse[0] in map(theirs.coarse, theirs.after(its)):
            return EXTRA
        rest = any(alike.apart(ours.words(lines[0]), theirs.words(lines[1])))
        if not (self._from_same(*given) or self._from_same(*alone)):
            return OPERAND if equal and self._share(*given) and not rest else ""
        return OTHER if not rest or (gone and come and not equal) else ""

    def _twice(self, ours: _Side, theirs: _Side) -> Optional[Fork]:
        """What the port computes twice, and the reference once, where it computes something else besides."""
        for mine in ours.beginnings:
            for value in range(theirs.end):
                its = self.port.making.get(value, ())
                known = [
                    number
                    for row in np.flatnonzero(self._same[:, value])
                    for number in self.reference.making.get(int(row), ())
                ]
                if len(its) < 2 or not known or len(its) != len(set(known)) + 1:
                    continue
                step = its[sorted({*known, mine}).index(mine)]
                if ours.word(mine) == theirs.word(step) and self._share(ours.telling([mine]), theirs.telling([step])):
                    same = self._from_same(ours.telling([mine]), theirs.telling([step]))
                    return self._fork(OTHER if same else OPERAND, ours, theirs, mine, step)
        return None

    def _fork(self, kind: str, ours: _Side, theirs: _Side, mine: int, its: int) -> Fork:
        if kind == MISSING:
            return Fork(kind, theirs.spot(self._lacking(mine, its)), ours.spot(mine))
        numbers = None
        if kind == OTHER and ours.word(mine) == theirs.word(its):
            numbers = self._differing(self.reference.steps[mine], self.port.steps[its])
        kind = kind if numbers is None else ARGUMENT
        return Fork(kind, theirs.spot(its), ours.spot(mine), arguments=numbers)

    def _lacking(self, mine: int, its: int) -> int:
        """The port's step in whose line the reference's belongs: in the line that makes what it works on, if it stands
        there in the reference, else in the line that works on that.
        """
        step = self.reference.steps[mine]
        for value in step.given:
            maker = self.reference.makers.get(value)
            if maker is not None and self.reference.steps[maker].at == step.at:
                makers = [self.port.makers.get(int(other)) for other in np.flatnonzero(self._same[value])]
                return next((known for known in makers if known is not None), its)
        return its

    def _from_same(self, ours: Sequence[int], theirs: Sequence[int]) -> bool:
        there = all(any(self._same[one, other] for other in theirs) for one in ours)
        return there and all(any(self._same[one, other] for one in ours) for other in theirs)

    def _share(self, ours: Sequence[int], theirs: Sequence[int]) -> bool:
        return any(self._same[one, other] for one in ours for other in theirs)

    def _differing(self, mine: Step, its: Step) -> Optional[tuple[str, str]]:
        """The one number in which two calls of an operation differ; an axis may be counted from either end."""
        one, other = self.reference.numbers(mine), self.port.numbers(its)
        shapes = [known.shape for number in mine.given if (known := self.reference.values[number]) is not None]
        rank = len(shapes[0]) if shapes else 0
        pairs = [(a, b) for a, b in zip(one, other) if abs(float(a) - float(b)) not in (0.0, float(rank))]
        return pairs[0] if len(one) == len(other) and len(pairs) == 1 else None


def _reshaped(reference: Trail, port: Trail) -> npt.NDArray[np.bool_]:
    known: dict[object, int] = {}
    forms = [
        [None if value is None else tuple(size for size in value.shape if size > 1) for value in trail.values]
        for trail in (reference, port)
    ]
    ours, theirs = (np.array([known.setdefault(form, len(known)) for form in each], np.int64) for each in forms)
    return np.asarray(ours[:, None] != theirs, np.bool_)


def _lone(side: _Side) -> bool:
    return len({side.trail.steps[number].at for number in side.beginnings}) == 1
