"""Which values of the port are which of the reference's, and what lies between those that agree and a wrong one."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cached_property
from typing import Optional

from aligner.fingerprint import Prints, apart
from aligner.mending.at_once import at_once
from aligner.mending.differing_numbers import Figure, figures
from aligner.mending.events import KEPT, LAYER, RETURN, WIDENED, Event, Story, is_idle, makers
from aligner.words.calls import Constant, Operand, equal
from aligner.words.spelling import number_text

AGREE, LEAST, SHARE = 1e-4, 3e-6, 0.05
"""Values agree that are apart by less than the first, by less than this share of the error, never less than LEAST."""

NEAREST = 128
"""Values that are looked for of all that the port lacks."""

EARLY = 4
"""Of these the first, with which it begins: what its first wrong step may be made of, or what is lost in a list."""

AGAIN, CHAIN, WAYS = 32, 4, 2
"""Values that lacking ones are made of once more; steps between a number and the value that it is worked out of; other
steps that make a lacking value."""

ORDERING = ("sort", "topk", "argsort")
"""What tells the places of values in their order: which of those that are equal comes first, each kernel has its way.
"""

SMALL = 16
"""Whole numbers below this stand in many places."""


Step = tuple[int, Optional[Event]]
"""A value and what made it."""


class Matching:
    """Both sides' values up to a wrong one. `held` are values of the port that only the run made right."""

    def __init__(
        self, ours: Story, theirs: Story, heard: Sequence[Event], wanted: int, found: int, error: float
    ) -> None:
        self.ours, self.theirs, self.heard = ours, theirs, heard
        self.wanted, self.found = wanted, found
        self.limit = max(min(AGREE, SHARE * error if math.isfinite(error) else AGREE), LEAST)
        self.makers = makers(ours.events), makers([event for event in heard if event.word not in (RETURN, KEPT)])
        known = self._known(ours.events, wanted), self._known(heard, found)
        forms = [(value, form) for value in known[1] for form in theirs.forms(value)]
        prints = Prints([ours.values[value] for value in known[0]]), Prints([form for _, form in forms])
        alike = {value: prints[0].near(ours.values[value], self.limit) for value in known[0]}
        self.classes = {value: min([value, *(known[0][at] for at in same)]) for value, same in alike.items()}
        """Of the reference's values that are equal but for their shape, the first."""
        self.twins: dict[int, list[int]] = {
            value: [*dict.fromkeys(forms[at][0] for at in prints[1].near(ours.values[value], self.limit))]
            for value in known[0]
        }
        """The port's values that are one of the reference's."""
        if found in self.twins[wanted] and theirs.shapes[found] == ours.shapes[wanted]:
            self.twins[wanted].remove(found)  # too near for a fingerprint
        self._order(heard)
        right = {value for twins in self.twins.values() for value in twins}
        had = {v for v, twins in self.twins.items() if twins}
        places = _places(ours, ours.events), _places(theirs, heard)
        odd = [{v for v, n in one.items() if n not in {*other.values()}} for one, other in (places, places[::-1])]
        self.wrong = _behind(found, self.makers[1], right - {found}, odd[1], self._remade(right))
        self.missing = _behind(wanted, self.makers[0], had - {wanted}, odd[0])
        nowhere = {value for value, _ in self.wrong} - right
        self.held = {
            result for event in heard if event.word == LAYER and nowhere & {*event.operands} for result in event.results
        }

    def _order(self, heard: Sequence[Event]) -> None:
        """Places in the order of a value that both sides have: they are others only where what is ordered is equal."""
        of_word: dict[str, list[Event]] = {}
        for made in self.ours.events:
            if made.word in ORDERING:
                of_word.setdefault(made.word, []).append(made)
        for event in heard if of_word else ():
            for made in of_word.get(event.word, ()):
                if (
                    made.arguments == event.arguments
                    and len(made.results) == len(event.results)
                    and self._sorts(made, event)
                ):
                    for ours, theirs in zip(made.results[-1:], event.results[-1:]):
                        more = theirs not in self.twins.get(ours, (theirs,)) and theirs != self.found
                        self.twins[ours] += [theirs] * more

    def _sorts(self, ours: Event, theirs: Event) -> bool:
        """Whether both order the same, and have it in the same order."""
        given = zip(ours.operands, theirs.operands)
        return all(self.match(*pair) for pair in (*given, *zip(ours.results[:-1], theirs.results[:-1])))

    @staticmethod
    def _known(events: Iterable[Event], end: int) -> list[int]:
        found = {v for event in events for v in (*event.results, *event.operands) if isinstance(v, int) and v >= 0}
        return sorted(found | {end})

    def _remade(self, right: Set[int]) -> dict[int, list[int]]:
        """What a right value is made of where it is made once more: a place that is found again, in what is wrong."""
        found: dict[int, list[int]] = {}
        for event in self.heard:
            for value in right & {*event.results} if event.word not in (LAYER, RETURN, KEPT) else ():
                if self.makers[1].get(value) is not event:
                    found.setdefault(value, []).extend(one for one in event.operands if isinstance(one, int))
        return found

    @cached_property
    def again(self) -> Optional[Event]:
        """What makes the wrong value last, where it is made more than once: an earlier turn had it rightly."""
        found = (event for event in reversed(self.heard) if self.found in event.results)
        last = next((event for event in found if event.word not in (RETURN, KEPT)), None)
        return None if last is self.makers[1].get(self.found) else last

    def early(self, most: int) -> Iterator[tuple[int, int]]:
        """The port's first wrong steps, and the reference's first that it lacks, of one shape: each with each, those
        that do the same first.
        """
        pairs = [
            ((theirs is None or ours is None or theirs.word != ours.word, i + j), (found, wanted))
            for i, (found, theirs) in enumerate(self.wrong[:most])
            for j, (wanted, ours) in enumerate(self.missing[:most])
            if self.ours.shapes[wanted] == self.theirs.shapes[found]
        ]
        yield from (pair for _, pair in sorted(pairs, key=lambda pair: pair[0]))

    @cached_property
    def near(self) -> Sequence[Step]:
        """Of what the port lacks, what is made first: there it went wrong. Then what else it may be made of."""
        return [*self.missing, *self._otherwise][:NEAREST]

    @cached_property
    def _otherwise(self) -> Sequence[Step]:
        """What lies behind values that lack where the reference makes them once more, of other values."""
        lacking = {value for value, _ in self.missing}
        others = (one for one in self.ours.events if lacking & {*one.results} and one.word != LAYER)
        second = [one for one in others if all(self.makers[0].get(value) is not one for value in one.results)]
        starts = [value for one in second for value in one.operands if isinstance(value, int)]
        had = {value for value, twins in self.twins.items() if twins}
        ways = [dict(_behind(start, self.makers[0], had, ())) for start in [*dict.fromkeys(starts)][:AGAIN]]
        return [step for way in ways if not lacking & {*way} for step in way.items()]  # else it is taken out of them

    @cached_property
    def at_once(self) -> Sequence[Step]:
        """What the port lacks and the reference reduces in several steps, in one."""
        makers, shapes = self.makers[0], self.ours.shapes
        return [(value, one) for value, made in self.near if (one := at_once(made, makers, shapes)) is not None]

    @cached_property
    def once_more(self) -> Mapping[int, Sequence[Event]]:
        """What else the reference makes lacking values of, where the port has all of that."""
        found: dict[int, list[Event]] = {}
        lacking = {value for value, _ in self.missing}
        for event in self.ours.events:
            for value in lacking & {*event.results} if event.word not in (LAYER, RETURN, KEPT) else ():
                if self.makers[0].get(value) is not event and not is_idle(event) and self.has(event):
                    found.setdefault(value, []).append(event)
        return {value: some[:WAYS] for value, some in found.items()}

    @cached_property
    def idle(self) -> Mapping[int, Sequence[Event]]:
        """By value, what the reference does to it in vain."""
        found: dict[int, list[Event]] = {}
        for event in self.ours.events:
            value, *others = event.operands or (None,)
            plain = all(isinstance(one, Constant) for one in others) and event.word not in ("reshape", "expand")
            if isinstance(value, int) and is_idle(event) and event.results == (value,) and plain:
                found.setdefault(value, []).append(event)
        return found

    @cached_property
    def idle_lines(self) -> Set[str]:
        """Those of the reference that do something in vain."""
        return {event.text for events in self.idle.values() for event in events}

    @cached_property
    def starts(self) -> Sequence[int]:
        """Values of both sides that what lacks starts from."""
        operands = (v for _, event in self.near if event is not None for v in event.operands if isinstance(v, int))
        return [*dict.fromkeys(value for value in operands if self.twins.get(value))]

    @cached_property
    def worked_out(self) -> Set[str]:
        """Single numbers that the reference works out of its input, as they are written."""
        found = set[str]()
        for event in self.ours.events:
            if any(isinstance(one, int) and math.prod(self.ours.shapes[one]) > 1 for one in event.operands):
                numbers = (self.ours.number(value) for value in event.results)
                found |= {number_text(abs(one)) for one in numbers if one is not None and one != round(one, 2)}
        return found

    @cached_property
    def tables(self) -> Sequence[Sequence[float]]:
        """The numbers of tables that the reference writes out and the port lacks."""
        missing = (event for _, event in self.missing if event is not None and event.word == "table")
        return [one for event in missing if len(one := event.arguments.get("numbers", ())) > 1]

    @cached_property
    def figures(self) -> Sequence[Figure]:
        """Numbers that wrong steps are given and the reference's are not."""
        return figures(self.wrong, self.missing, EARLY, (self.heard, self.ours.events))

    @property
    def others(self) -> Sequence[tuple[float, float]]:
        """These numbers alone, but for small whole ones, which may be anything."""
        pairs = dict.fromkeys((found, wanted) for _, _, found, wanted in self.figures)
        return [pair for pair in pairs if pair[0] != int(pair[0]) or abs(pair[0]) >= SMALL]

    @cached_property
    def numbers(self) -> Sequence[float]:
        """What the reference's code computes with and is no whole number, or a large one."""
        given = (value for event in self.ours.events for value in (*event.arguments.values(), *event.operands))
        alone = (value[0] if isinstance(value, tuple) and len(value) == 1 else value for value in given)
        found = (value.value if isinstance(value, Constant) else value for value in alone)
        plain = (one for one in found if isinstance(one, float) and math.isfinite(one) and one > 0)
        return [*dict.fromkeys(one for one in plain if not one.is_integer() or one > SMALL)]

    def match(self, ours: Operand, theirs: Operand) -> bool:
        """Whether an operand of the reference's is one of the port's."""
        if isinstance(ours, Constant) and isinstance(theirs, Constant):
            return equal(float(f"{ours.value:.6g}"), float(f"{theirs.value:.6g}"))
        if isinstance(ours, int) and isinstance(theirs, int):
            return theirs in self.twins.get(ours, ())
        if isinstance(ours, int) and isinstance(theirs, Constant):  # a tensor of one number is as good as the number
            number = self.ours.number(ours)
            return number is not None and self.match(Constant(number), theirs)
        if isinstance(ours, Constant) and isinstance(theirs, int):
            number = self.theirs.number(theirs)
            return number is not None and self.match(ours, Constant(number))
        return ours is theirs is None

    def made_of(self, number: Constant) -> Optional[int]:
        """The value that the reference makes of others of its own, where it is this number: of others it is another."""
        made = None if number.made is None else self.makers[0].get(number.made)
        return number.made if made is not None and self._is_worked_out(made, CHAIN) else None

    def _is_worked_out(self, made: Event, left: int) -> bool:
        """Whether a step works on a value, or on a number that was made so, few steps before."""
        if any(isinstance(one, int) for one in made.operands):
            return True
        numbers = (
            self.makers[0].get(one.made) for one in made.operands if isinstance(one, Constant) and one.made is not None
        )
        return left > 0 and any(self._is_worked_out(one, left - 1) for one in numbers if one is not None)

    def has(self, made: Event) -> bool:
        """Whether the port has all that a step of the reference's works on."""
        return all(not isinstance(one, int) or bool(self.twins.get(one)) for one in made.operands)

    def values_of(self, number: int) -> Collection[int]:
        """The reference's values that any value of the port's is, heard before or not."""
        if number not in self._values_of:
            self._values_of[number] = {
                value
                for value, one in itertools.product(self.twins, self.theirs.forms(number))
                if (other := self.ours.values[value]) is not None and one is not None and one.size == other.size
                if number != self.found and apart(one, other) <= self.limit
            }
        return self._values_of[number]

    @cached_property
    def _values_of(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {number: set() for number in self._known(self.heard, self.found)}
        for value, some in self.twins.items():
            for number in some:
                found[number].add(value)
        return found


def _places(story: Story, events: Iterable[Event]) -> Mapping[int, Optional[float]]:
    """Values that are one place alone, as of a step that decodes one word."""
    found: dict[int, Optional[float]] = {}
    for event in events:
        first = event.operands[0] if event.operands else None
        formed = event.word in WIDENED and isinstance(first, Constant) and first.made in found
        if event.word == "arange" or formed:
            found.update((one, story.number(one)) for one in event.results if story.number(one) is not None)
    return found


def _behind(
    end: int,
    made: Mapping[int, Event],
    right: Collection[int],
    odd: Collection[int],
    remade: Optional[dict[int, list[int]]] = None,
) -> list[Step]:
    """Values on the way to the end that are not known to be right, and what made them; the first first. The `odd` ones
    are known not to be, though they are single numbers.
    """
    found: dict[int, Optional[Event]] = {}
    plain: set[int] = set()  # as right as any number is; wrong if nothing else is that a step works on
    left = [end]
    while left:
        value = left.pop()
        if value in right and remade:
            left += remade.pop(value, ())
        if value in found or (value in right and value not in odd and value not in plain):
            continue
        found[value] = event = made.get(value)
        if event is not None and event.word != LAYER:
            values = [one for one in event.operands if isinstance(one, int)]
            made_alone = (one.made for one in event.operands if isinstance(one, Constant))
            alone = [one for one in made_alone if one is not None]
            plain |= {*alone} if all(one in right for one in values) else {*odd}.intersection(alone)
            left += (*values, *(one for one in alone if one in plain))
    return sorted(found.items())
