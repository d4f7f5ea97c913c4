"""Which edits should do, by what is known before any is run.

The edited expression gets the reference's value, and the same operation on the same values has the reference's result.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections import ChainMap, Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Optional

from aligner.mending.candidate import EXCHANGED, MISSING, Candidate, Move
from aligner.mending.events import HELPER, KEPT, Event
from aligner.mending.joining import apart
from aligner.mending.matching import EARLY, Matching
from aligner.mending.roles import LAYING, Roles
from aligner.mending.steps import place_of, step_of
from aligner.words.calls import Constant, Operand

TRIALS = 40
"""Edits for one wrong value that are run, at most."""

LONG = 800
"""Of more events it is not worked out what an edit makes of each."""

INSIDE = 6
"""Edits that take one step more, the smallest, which are run though what comes of them is not known, for it is done in
other steps than in the reference.
"""

IDLE = {"clamp": 0, "abs": 0, "relu": 0, "floor": 0, "round": 0, "where": -1}
"""Words of operations that often leave a value as it is, and which of their operands that is."""

NEXT = 6.0
"""What an edit costs at most, and little more the longer it is, that does what the reference does next."""

GAINED = 4
"""So many values that the port lacks, and has after an edit, speak for it."""

HELPING = 28
"""Edits that may be joined, each with each."""


class _Moved(NamedTuple):
    """What edits give: whole events by their place, and expressions in others, each with the event of the edit."""

    whole: Mapping[Any, tuple[Event, Optional[int], Optional[Event]]]
    parts: Mapping[Any, tuple[Event, int]]
    inside: dict[Any, Optional[int]]
    """By event and operand, where that goes into a function of the user's."""


class Ranking:
    """Orders the candidates for one wrong value."""

    def __init__(self, matching: Matching, end: Optional[Event]) -> None:
        self._matching = matching
        self._events = [*matching.heard, *([end] if end is not None else [])]
        self._end = end
        self._lines: dict[tuple[str, str], list[Event]] = {}
        self._odd: set[Event] = set()
        """What makes something else of the reference's values: they have other shapes, or it does something else."""
        self._steps = {
            step_of(event, [self._class(one) for one in event.operands]): [
                matching.classes.get(r) for r in event.results
            ]
            for event in matching.ours.events
            if event.results
        }

    def ranked(self, found: Sequence[Candidate]) -> list[Candidate]:
        """Those that should do first, pairs and triples among them; then the smallest."""
        if len(self._events) > LONG:
            return [*found[:TRIALS]]
        start = self._left(())
        for one in found:
            one.left, one.gained = self._after(one.moves)
        sure = [one for one in found if not one.left]
        if not sure or sure[0].cost >= 8:
            helping = sorted(
                (one for one in found if one.left < start or _is_call(one)), key=lambda one: one.cost + 0.5 * one.left
            )
            roles = Roles(self._matching, self._events)
            dearer = [one for one in helping[HELPING:] if roles.fits(one)][:HELPING]  # several steps in each's place
            helping = helping[:HELPING]
            pairs = (pair for some in (helping, dearer) for pair in itertools.combinations(some, 2))
            joined = [two for pair in pairs if (two := self._joined(*pair, start))]
            sure += [one for one in joined if not one.left]
            if not sure:
                better = sorted(joined, key=lambda one: one.cost + 0.5 * one.left)[:12]
                triples = [three for two in better for one in helping if (three := self._joined(two, one, two.left))]
                sure += [one for one in triples if not one.left]
        forward = [one for one in found if one.left and one.left < start]
        forward = [one for one in forward if one.gained >= GAINED or self._is_first(one)]
        forward.sort(key=lambda one: not self._is_as_large(one))
        early = sorted(
            forward,
            key=lambda one: (not self._is_as_large(one), self._when(one), not self._is_same(one), one.cost),
        )
        most = sorted(forward, key=lambda one: (not self._is_as_large(one), -one.gained, one.cost))
        forward = [*dict.fromkeys(one for three in zip(forward, early, most) for one in three)]
        inside = [one for one in found if one.why == MISSING and one.left >= start][:INSIDE]
        following = [one for one in found if one not in inside and one.left >= start and self._is_next(one)][:INSIDE]
        for one in following:
            one.cost = min(one.cost, NEXT + 0.01 * one.cost)
        inside += following
        first = sorted(sure, key=lambda one: one.cost)[: TRIALS // 2]
        first += [one for one in (*forward[: TRIALS // 3], *inside) if one not in first]
        first += [one for one in found if one.why == EXCHANGED and one not in first][: TRIALS // 4]
        return first + [one for one in found if one not in first][: TRIALS // 2]

    def _is_as_large(self, one: Candidate) -> bool:
        """Whether it gives as many numbers as there were: what follows takes no others, as a rule."""
        for event, node, value, _ in one.moves:
            own = event.results[:1] if node is None else [its for other, its in event.inputs if other is node]
            shapes = [self._matching.theirs.shapes[its] for its in own if isinstance(its, int)]
            if value is not None and any(math.prod(shape) != self._size(value) for shape in shapes):
                return False
        return True

    def _size(self, value: int) -> int:
        return math.prod(self._matching.ours.shapes[value])

    def _when(self, one: Candidate) -> int:
        """Which of the wrong values it gives another."""
        return self._matching.found if not one.moves else min(one.moves[0][0].results, default=self._matching.found)

    def _is_same(self, one: Candidate) -> bool:
        """Whether it makes of right values what the reference makes by the same operation."""
        event, _, value, _ = one.moves[0]
        made = self._matching.makers[0].get(value)
        return made is not None and made.word == event.word and self._matching.has(made)

    def _is_next(self, one: Candidate) -> bool:
        """Whether it does to a right value what the reference does to it next, or lays it out as the reference does."""
        event, node, value, _ = one.moves[0] if one.moves else (None, None, None, None)
        made = self._matching.makers[0].get(value) if value in self._early else None
        if made is None or event is None:
            return False
        given = {its for other, its in event.inputs if other is node} if node is not None else {*event.results}
        values = [v for v in made.operands if isinstance(v, int)] if self._matching.has(made) else []
        form = None if value is None else self._matching.ours.shapes[value]
        if not any(isinstance(its, int) and self._matching.theirs.shapes[its] == form for its in given):
            made = None
        while made is not None and made.word in LAYING and isinstance(made.operands[0], int):
            values.append(made.operands[0])
            made = self._matching.makers[0].get(made.operands[0])
        return any(given & {*self._matching.twins.get(v, ())} for v in values)

    def _is_first(self, one: Candidate) -> bool:
        """Whether it gives the first wrong step what the reference's first lacking step makes, or comes of that."""
        event, _, value, _ = one.moves[0] if one.moves else (None, None, None, None)
        made = self._matching.makers[0].get(value) if value is not None else None
        if made is None or event is None:
            return False
        if self._matching.has(made):
            return True
        early = event.word == made.word or value in self._early
        return early and not {*event.operands} & self._wrong

    @cached_property
    def _early(self) -> set[int]:
        """The first that the port lacks, in whichever shape."""
        missing = [(value, self._matching.classes.get(value, value)) for value, _ in self._matching.missing]
        first = {known for _, known in missing[:EARLY]}
        return {value for value, known in missing if known in first}

    @cached_property
    def _wrong(self) -> set[int]:
        return {value for value, _ in self._matching.wrong}

    def _joined(self, one: Candidate, other: Candidate, start: int) -> Optional[Candidate]:
        edits = tuple(sorted({*one.edits, *other.edits}))
        if not apart(edits) or len(edits) == max(len(one.edits), len(other.edits)):
            return None
        moves = (*one.moves, *other.moves)
        left = self._left(moves)
        if left >= min(start, one.left, other.left):
            return None
        return Candidate(one.cost + other.cost + 1.0, edits, one.why, moves, left)

    def _left(self, moves: Sequence[Move]) -> int:
        return self._after(moves)[0]

    def _after(self, moves: Sequence[Move]) -> tuple[int, int]:
        """How many values are wrong still, as far as the same steps of the same values have the same results, and how
        many of those that the port lacks it has then."""
        matching = self._matching
        moved = _Moved(
            {place_of(event): (event, value, model) for event, node, value, model in moves if node is None},
            {id(node): (event, value) for event, node, value, _ in moves if node is not None},
            {},
        )
        known, setter, fresh = ChainMap({}, self._plain[0]), self._plain[1], set[int]()
        left = {number for place in moved.whole for number in self._at.get(place, ())}
        for node in moved.parts:
            for number in self._holding.get(node, ()):
                left |= {number, *self._into(number, node, moved)}
        queue = sorted(left)
        while queue:
            number = heapq.heappop(queue)
            event = self._events[number]
            for value, found in self._made(event, known, moved, fresh):
                given = place_of(event) in moved.whole
                sure = given or value == matching.found or self._is_fresh(event, moved, fresh)
                if (sure or setter.get(value, number) >= number) and (given or known.get(value) != found):
                    known[value] = found
                    fresh.add(value)
                    for user in self._users.get(value, ()):
                        if user > number and user not in left:
                            left.add(user)
                            heapq.heappush(queue, user)
        gained = len({known.get(value) for value in fresh} & self._lacking)
        if known.get(matching.found) == matching.classes.get(matching.wanted):
            return 0, gained
        return self._open(known) + 1, gained

    @cached_property
    def _lacking(self) -> set[int]:
        return {self._matching.classes[value] for value, _ in self._matching.missing if value in self._matching.classes}

    def _into(self, number: int, node: int, moved: _Moved) -> Iterator[int]:
        """The events inside a function of the user's that is given something else, and that use it."""
        event = self._events[number]
        if event.word != HELPER:
            return
        first, value = moved.parts[node]
        taken = next((one for inner, one in event.inputs if id(inner) == node), None)
        for user in self._users.get(taken, ()) if isinstance(taken, int) else ():
            if event.began <= user < number:
                moved.inside[self._events[user], taken] = self._turn(value, event, first)
                yield user

    @cached_property
    def _plain(self) -> tuple[dict[int, Any], dict[int, int]]:
        """What each of the port's values is without an edit, and the event that tells so."""
        known: dict[int, Any] = {
            p: self._matching.classes[v] for v, twins in self._matching.twins.items() for p in twins
        }
        setter = dict.fromkeys(known, -1)
        for number, event in enumerate(self._events):
            for value, found in self._made(event, known, _Moved({}, {}, {}), ()):
                if value in self._heard:
                    self._odd.add(event)
                elif value not in known:
                    known[value], setter[value] = found, number
        return known, setter

    @cached_property
    def _heard(self) -> set[int]:
        """Values whose numbers are none of the reference's."""
        values = self._matching.theirs.values
        return {one for one, _ in self._matching.wrong if values[one] is not None and one not in self._right}

    @cached_property
    def _at(self) -> Mapping[Any, list[int]]:
        """The events of each place."""
        return _grouped((place_of(event), number) for number, event in enumerate(self._events))

    @cached_property
    def _holding(self) -> Mapping[int, list[int]]:
        """The events that an expression is in."""
        return _grouped((id(node), number) for number, event in enumerate(self._events) for node, _ in event.inputs)

    @cached_property
    def _users(self) -> Mapping[int, list[int]]:
        """The events that are given a value."""
        events = enumerate(self._events)
        return _grouped((one, number) for number, event in events for one in event.operands if isinstance(one, int))

    def _made(
        self, event: Event, known: Mapping[int, Any], moved: _Moved, fresh: Collection[int]
    ) -> Iterator[tuple[int, Any]]:
        """What the event's values are, so far as that follows; `fresh` are values that come of the edits."""
        first, value, model = moved.whole.get(place_of(event), (event, None, None))
        if value is not None and event.results and (model is None or self._is_fed(event, model, known)):
            made = self._matching.makers[0].get(value)
            alike = made is not None and len(made.results) == len(event.results)
            values = made.results if made is not None and alike and model is not None else (value,)
            yield from zip(event.results, (self._turn(one, event, first) for one in values))
            return
        taken = []
        for operand in event.operands:
            node = next((id(one) for one, value in event.inputs if value == operand), None) if moved.parts else None
            if (event, operand) in moved.inside:
                taken.append(moved.inside[event, operand])
            elif node in moved.parts:
                first, value = moved.parts[node]
                taken.append(self._turn(value, event, first))
                if isinstance(operand, int) and (event.word == KEPT or self._is_end(event, operand)):
                    yield operand, taken[-1]
            else:
                taken.append(self._class(operand, known))
        if event.word in ("reshape", "cast", HELPER) and taken:
            if event.word != "cast" or not self._is_spoiled(event, taken[0]):
                yield from ((result, taken[0]) for result in event.results)
            return
        results = self._steps.get(step_of(event, taken))
        if results is None and event.word in IDLE and taken[IDLE[event.word]] is not None:
            results = [taken[IDLE[event.word]]]  # nothing is heard of what the reference does in vain
        if results is None or (event in self._odd and not self._is_fresh(event, moved, fresh)):
            return
        yield from zip(event.results, results)

    def _is_end(self, event: Event, operand: int) -> bool:
        return event is self._end and operand == self._matching.found

    def _is_fresh(self, event: Event, moved: _Moved, fresh: Collection[int]) -> bool:
        """Whether it works on something else than what it has made of the reference's values, in their own shapes."""
        return (
            any(isinstance(one, int) and one in fresh for one in event.operands)
            or any(id(node) in moved.parts for node, _ in event.inputs)
            or any((event, one) in moved.inside for one in event.operands)
        )

    def _is_spoiled(self, event: Event, taken: Any) -> bool:
        """Whether a type is so short that what was right before is wrong in it."""
        operand = event.operands[0]
        known = self._right.get(operand) if isinstance(operand, int) else None
        return known is not None and known == taken and bool({*event.results} & self._wrong)

    @cached_property
    def _right(self) -> Mapping[int, int]:
        """The port's values that are the reference's."""
        classes, twins = self._matching.classes, self._matching.twins
        return {p: classes[v] for v, some in twins.items() for p in some}

    def _is_fed(self, event: Event, model: Event, known: Mapping[int, Any]) -> bool:
        """Whether a call is given what the reference's is, but for plain numbers."""
        pairs = zip(event.operands, model.operands)
        return all(
            known.get(its) == self._matching.classes.get(mine)
            for its, mine in pairs
            if isinstance(its, int) and isinstance(mine, int)
        )

    def _open(self, known: Mapping[int, Any]) -> int:
        left, seen = [self._matching.found], set[int]()
        while left:
            value = left.pop()
            if value in seen or known.get(value) is not None:
                continue
            seen.add(value)
            made = self._matching.makers[1].get(value)
            left += [one for one in made.operands if isinstance(one, int)] if made is not None else []
        return len(seen)

    @cached_property
    def _turns(self) -> Mapping[Event, int]:
        """How often the place of each event had run with it."""
        count: Counter[Any] = Counter()
        found = {}
        for event in self._events:
            count[place_of(event)] += event.is_over
            found[event] = count[place_of(event)]
        return found

    def _turn(self, value: int, event: Event, moved: Event) -> Optional[int]:
        """The reference's value of the turn of `event`, if `value` is that of the turn of `moved`, which stands at the
        same place.
        """
        made = self._matching.makers[0].get(value)
        turns = self._turns[event] - self._turns.get(moved, self._turns[event])  # a call that is under way has no end
        if not turns or made is None:
            return self._matching.classes.get(value)
        again = self._again(made.text, made.word)
        count = sum(self._events[number].is_over for number in self._at[place_of(moved)])
        alike = len(again) // count if count and len(again) % count == 0 else 1  # of these in one line
        place = again.index(made) + turns * alike if made in again else len(again)
        return self._matching.classes.get(again[place].results[0]) if 0 <= place < len(again) else None

    def _again(self, text: str, word: str) -> Sequence[Event]:
        """All that the reference's line makes by this operation."""
        known = self._lines.setdefault((text, word), [])
        if not known:
            known += [one for one in self._matching.ours.events if (one.text, one.word) == (text, word) and one.results]
        return known

    def _class(self, operand: Operand, known: Optional[Mapping[int, Any]] = None) -> Any:
        if isinstance(operand, Constant):
            return "number", f"{operand.value:.6g}"
        if isinstance(operand, int):
            return self._matching.classes.get(operand) if known is None else known.get(operand)
        return None


def _grouped(pairs: Iterable[tuple[Any, int]]) -> dict[Any, list[int]]:
    found: dict[Any, list[int]] = {}
    for key, number in pairs:
        found.setdefault(key, []).append(number)
    return found


def _is_call(one: Candidate) -> bool:
    """Whether it gives a call other arguments: that alone may help nothing before what it is given is right."""
    return any(model is not None for *_, model in one.moves)
