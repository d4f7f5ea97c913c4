"""Edits that may put a wrong value right: other arguments, layers exchanged, a value in the place of an expression."""

from __future__ import annotations

import ast
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import Any, Optional

from aligner.mending import words
from aligner.mending.anchor import Anchor
from aligner.mending.callers import around, by_caller
from aligner.mending.candidate import ARGUMENT, EXCHANGE, EXCHANGED, MISSING, OPERAND, OTHER, Candidate
from aligner.mending.events import HELPER, KEPT, LAYER, RETURN, Event, is_idle, values_of
from aligner.mending.exchanging import exchanged_layers, forgotten_layers
from aligner.mending.handing import handed
from aligner.mending.joining import apart, each_others, everywhere
from aligner.mending.matching import EARLY, NEAREST, Matching, Step
from aligner.mending.measuring import counted_on
from aligner.mending.sources import Edit, Sources, change, edit_of, less
from aligner.mending.texts import Texts
from aligner.mending.upstream import other_steps, partings
from aligner.words.calls import Constant, Operand, equal
from aligner.words.operations import COMMUTING, arguments
from aligner.words.spelling import NAMES

_AT_MOST = {ARGUMENT: 1.5, EXCHANGED: EXCHANGE / 2}
"""What an edit costs however long it is."""

FAR = 20
"""Steps behind an expression that count against it."""

SPELLED = 9
"""Ways to name arguments that a call lacks."""

SHAPING = ("reshape", "expand", "cast")
"""Words of operations that leave all values as they are."""

OTHERS = 24
"""Values of another shape, the nearest, that are tried in the place of an expression."""

NAMED = 0.2
"""What it costs more to change what a name was given to."""

AGAIN = 6
"""Values that the first wrong turn of a loop is taken to have made."""

_NUMBER = re.compile(r"(?<![\w.])\d[\d.]*(?:e[-+]?\d+)?")


class Search:
    """Edits for one wrong value. `end` is the event that uses it: the layer that gets it, or the return."""

    def __init__(self, matching: Matching, texts: Texts, sources: Sources, end: Optional[Event]) -> None:
        self._matching, self._texts, self._sources, self._end = matching, texts, sources, end

    def candidates(self) -> list[Candidate]:
        """By what they change, the smallest first."""
        found: dict[tuple[Edit, ...], Candidate] = {}
        for one in self._all():
            edits = tuple(sorted(set(one.edits)))
            if any(self._matching.worked_out & {*_NUMBER.findall(edit.new)} for edit in edits):
                continue  # right for this input alone
            if edits and apart(edits) and (edits not in found or found[edits].cost > one.cost):
                one.edits, one.old = edits, self._sources.words_at(edits[0])
                found[edits] = one
        plain = [*found.values()]
        given = [two for one in plain for two in by_caller(one, self._matching.theirs.events, self._sources)]
        return sorted([*plain, *given, *each_others(plain), *everywhere(plain)], key=lambda one: one.cost)

    def _all(self) -> Iterator[Candidate]:
        for anchor in self.anchors():
            whole = anchor.node is anchor.event.node and bool(anchor.event.results)
            yield from self._as_theirs(anchor) if whole else ()
            yield from self._replaced(anchor, whole)
        for event in (one for _, one in self._matching.wrong if one is not None):
            node, several = event.node, len(event.results) > 1 and not event.part  # the best and where they are
            if (isinstance(node, ast.expr) and several) or isinstance(node, ast.AugAssign):
                yield from self._as_theirs(Anchor(node, event.results[0], event, 0, event.inputs))
        yield from exchanged_layers(self._matching, self._sources)
        yield from forgotten_layers(self._matching, self._texts, self._sources)
        yield from self._again()
        yield from self._upstream()

    def _as_theirs(self, anchor: Anchor) -> Iterator[Candidate]:
        """A call of the port's as the reference calls the same operation."""
        event = anchor.event
        for value, model in (*self._matching.near, *self._formed(anchor), *self._matching.at_once):
            if model is not None and model.word == event.word and event.word not in (LAYER, HELPER):
                for edits, why, fed in (*self._adjusted(anchor, model), *counted_on(event, model, self._sources)):
                    weights = [min(self._cost(edit), _AT_MOST.get(why, 99.0)) for edit in edits]
                    yield Candidate(sum(weights), tuple(edits), why, ((event, None, value, fed),))

    def _upstream(self) -> Iterator[Candidate]:
        """What a wrong step works on, mended where it was made."""
        for anchor, value in partings(self._matching):
            with suppress(LookupError):
                edit = self.edit(anchor.event, anchor.node, self._texts.text(value, anchor))
                if edit is not None:
                    cost = self._cost(edit) + 0.3 + 0.05 * min(anchor.late, FAR)
                    yield Candidate(cost, (edit,), OTHER, ((anchor.event, None, value, None),))

    def _formed(self, anchor: Anchor) -> Iterator[Step]:
        """What the reference has for a right value of another shape: with others it may do something else."""
        shapes = self._matching.ours.shapes
        if not isinstance(anchor.value, int):
            return
        for value in self._matching.starts:
            alike = anchor.value in self._matching.twins[value]
            if alike and shapes[value] != self._matching.theirs.shapes[anchor.value]:
                yield value, self._matching.makers[0].get(value)

    def _again(self) -> Iterator[Candidate]:
        """In a loop the first turn that goes wrong may have little to tell apart. With what it should have made, the
        next turn says how that is made.
        """
        first = next(((value, event) for value, event in self._matching.wrong if event is not None), None)
        if first is None or first[1].site is None or len(first[1].results) != 1:
            return
        wrong, event = first
        turns = [one for one in self._matching.heard if (one.site, one.word) == (event.site, event.word)]
        later = next((one for one in turns[turns.index(event) + 1 :] if isinstance(one.node, ast.expr)), None)
        shape = self._matching.theirs.shapes[wrong]
        near = [step for step in self._matching.near if self._matching.ours.shapes[step[0]] == shape]
        for value, made in near[:AGAIN] if later is not None else ():
            following = self._next_turn(value, made)
            if later is None or later.node is None or following is None:
                continue
            self._texts.assumed = {wrong: value}
            try:
                anchor = Anchor(later.node, later.results[0], later, 0, later.inputs)
                edit = self.edit(later, later.node, self._texts.text(following, anchor))
            except LookupError:
                edit = None
            finally:
                self._texts.assumed = {}
            if edit is not None:
                yield Candidate(self._cost(edit) + 0.3, (edit,), OTHER, ((event, None, value, None),))

    def _next_turn(self, value: int, made: Optional[Event]) -> Optional[int]:
        """What the reference's line makes the next time that it runs."""
        same = [one for one in self._matching.ours.events if made and (one.text, one.word) == (made.text, made.word)]
        return next((one.results[0] for one in same if one.results and one.results[0] > value), None)

    def _replaced(self, anchor: Anchor, whole: bool) -> Iterator[Candidate]:
        event, shapes = anchor.event, self._matching.theirs.shapes
        form = shapes[anchor.value] if isinstance(anchor.value, int) else None
        own = self._matching.ours.shapes
        found = dict.fromkeys([*(value for value, _ in self._matching.near), *self._matching.starts])
        values = [v for number, v in enumerate(found) if number < OTHERS or form is None or own[v] == form]
        kept = [*enumerate((anchor, *self._named(anchor)))]
        again = self._times[event.site, event.word] > 1  # in a first turn a name may have what stands there
        named = [(late, replace(place, named=True, said={}, unsaid={})) for late, place in kept if again]
        for (late, place), value in itertools.product((*kept, *named), values):
            for text in self._texts.ways(value, place):
                edit = self.edit(place.event, place.node, text)
                if edit is None:
                    continue
                why = MISSING if self._texts.source(place.event, place.node) in text else OTHER
                other = own[value] != form
                cost = self._cost(edit) + 0.3 + 0.05 * min(anchor.late, FAR) + other + NAMED * late
                yield Candidate(cost, (edit,), why, ((event, None if whole else anchor.node, value, None),))

    def _is_name(self, event: Event) -> bool:
        """Whether a variable is given what another one is, and no list or object is."""
        return event.site is not None and self._sources.name(event.site.file, event.node) is not None

    def _named(self, anchor: Anchor) -> Iterator[Anchor]:
        """Where what stands there was given its name: `kept = x`."""
        site = anchor.event.site
        if not isinstance(anchor.node, ast.Name) or site is None:
            return
        known = self._names.get((*self._sources.function(site.file, site.line), anchor.node.id), [])
        end = self._places.get(anchor.event, len(self._places))
        event = next((one for one in reversed(known) if self._places[one] < end), None)
        if event is not None:
            yield Anchor(*event.inputs[0], event, anchor.late, event.inputs)

    @cached_property
    def _times(self) -> Counter[object]:
        return Counter((event.site, event.word) for event in self._matching.heard)

    @cached_property
    def _places(self) -> Mapping[Event, int]:
        return {event: number for number, event in enumerate(self._matching.theirs.events)}

    @cached_property
    def _names(self) -> Mapping[tuple[str, int, str], list[Event]]:
        """By function and name, where that name is given to what another name or an item is, as it was run."""
        found: dict[tuple[str, int, str], list[Event]] = {}
        for event in self._matching.theirs.events:
            plain = event.word == KEPT and isinstance(event.node, (ast.Name, ast.Subscript)) and bool(event.inputs)
            name = self._sources.name(event.site.file, event.node) if plain and event.site is not None else None
            if name is not None and event.site is not None:
                key = (*self._sources.function(event.site.file, event.site.line), name)
                found.setdefault(key, []).append(event)
        return found

    def anchors(self) -> list[Anchor]:
        """Expressions on the way to the wrong value, the first ones first."""
        wrong = {value for value, _ in self._matching.wrong}
        makers = self._matching.makers[1]
        fed = {v for value in wrong for v in values_of(makers.get(value))}
        shaped = {
            v for value in fed if value in makers and makers[value].word in SHAPING for v in values_of(makers[value])
        }
        steps = [one for one in self._matching.heard if one.word != RETURN and {*one.results} & (wrong | fed)]
        near = (v for _, made in self._matching.near[:EARLY] for v in values_of(made))
        due = {one for v in near for one in self._matching.twins.get(v, ())}  # what comes of it may be missing
        kept = [one for one in self._matching.heard if one.word == KEPT]
        kept = [one for one in kept if {*one.operands} & (wrong if self._is_name(one) else wrong | due)]
        steps += kept
        steps += [one for one in self._matching.heard if is_idle(one) and {*one.results} & shaped and one not in steps]
        making = makers.get(self._matching.found), (last := self._matching.again)
        steps = [*dict.fromkeys([*steps[:NEAREST], *filter(None, making)])]
        found: dict[Any, Anchor] = {}

        def add(anchor: Anchor) -> None:
            node: Any = anchor.node
            place = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
            found.setdefault((anchor.event.site.file if anchor.event.site else "", place), anchor)

        ends = [] if self._end is None else [self._end]
        for event in kept:
            for node, value in event.inputs if {*event.operands} & due else ():
                add(Anchor(node, value, event, 0, event.inputs))
        for event in other_steps(self._matching):
            if isinstance(event.node, ast.expr):
                add(Anchor(event.node, event.results[0], event, 0, event.inputs))
        order = sorted(enumerate([*steps, *ends]), key=lambda at: (at[1] is not last, not {*at[1].results} & wrong))
        for number, event in order:  # in a loop, the turn that goes wrong knows what there is to put it right
            late = len(steps) - number
            if event not in ends and isinstance(event.node, ast.expr) and not event.part and len(event.results) == 1:
                add(Anchor(event.node, event.results[0], event, late, event.inputs))
        for number, event in order:
            for node, value in event.inputs:
                if event.node is not None and (event in ends or event.word != LAYER) and isinstance(value, int):
                    inputs = event.inputs if isinstance(node, ast.Name) else ()
                    add(Anchor(node, value, event, len(steps) - number, inputs))
        given = [*around(self._end, self._matching.theirs.events)] if self._end is not None else []
        for event in [*given, *(one for one in self._matching.heard if one.word == RETURN)]:
            for node, value in event.inputs:  # what a function that is under way was given, or one gave back
                if value in wrong:
                    add(Anchor(node, value, event, 0, event.inputs))
        return [*found.values()]

    def _adjusted(self, anchor: Anchor, model: Event) -> Iterator[tuple[list[Edit], str, Optional[Event]]]:
        """The port's own call with other arguments or operands, as the reference has them; and the reference's, where
        it makes the same only if its other operands are right.
        """
        event = anchor.event
        if len(model.operands) != len(event.operands):
            yield from self._more(event, model)
            return
        if model.word in COMMUTING and len(model.operands) == 2 and not self._fits(model, event):
            turned = replace(model, operands=model.operands[::-1])
            model = turned if self._fits(turned, event) else model
        fits = [self._matching.match(one, other) for one, other in zip(model.operands, event.operands)]
        others = [
            (key, value)
            for key, value in model.arguments.items()
            if key not in ("dtype", "numbers") and not equal(value, event.arguments.get(key))
        ]
        for changed in self._changed(event, model, others):
            if others:
                yield changed, ARGUMENT, model
                if len(changed) > 1:
                    yield from (([one], ARGUMENT, model) for one in changed)
            if not all(fits) and model.operands:
                given = self._given(anchor, model, fits)
                if given is not None:
                    plain = all(isinstance(one, Constant) for one, fit in zip(model.operands, fits) if not fit)
                    yield [*given, *changed], ARGUMENT if plain else OPERAND, model if plain else None
                pairs = [*zip(model.operands, event.operands, fits)]
                numbers = [fit or not isinstance(a, Constant) or not isinstance(b, Constant) for a, b, fit in pairs]
                figures = self._given(anchor, model, numbers) if not all(numbers) and numbers != fits else None
                yield from [(figures, ARGUMENT, model)] if figures is not None else []
                coming = [self._comes(*pair) or fit for *pair, fit in zip(model.operands, event.operands, fits)]
                rest = self._given(anchor, model, coming) if coming != fits and not all(coming) else None
                yield from [([*rest, *changed], OPERAND, model)] if rest is not None else []
            elif len(fits) == 2 and model.word not in COMMUTING and not others:
                both = map(self._matching.match, model.operands, event.operands[::-1])
                yield from [(self._turned(anchor), EXCHANGED, None)] if all(both) else []  # they differ in their axes

    def _more(self, event: Event, model: Event) -> Iterator[tuple[list[Edit], str, Optional[Event]]]:
        """The call with the operand that it lacks, by the name that the reference gives it by."""
        node, known = event.node, model.operands[:-1]
        alike = len(known) == len(event.operands) and all(map(self._matching.match, known, event.operands))
        if not alike or not isinstance(node, ast.Call):
            return
        for name in words.named(model.text, model.name):
            with suppress(LookupError):
                text = self._texts.text(model.operands[-1], Anchor(node, None, event, 0, event.inputs))
                if name not in {*model.places.values()}:
                    yield [one.edits[0] for one in handed(self._sources, event, name, text, 0.0)], MISSING, None

    def _comes(self, ours: Operand, theirs: Operand) -> bool:
        """Whether both are wrong by then: one comes to be the other by what is mended before."""
        return ours in self._lacking and theirs in self._wrong

    @cached_property
    def _lacking(self) -> set[Operand]:
        return {value for value, _ in self._matching.missing}

    @cached_property
    def _wrong(self) -> set[Operand]:
        return {value for value, _ in self._matching.wrong}

    def _turned(self, anchor: Anchor) -> list[Edit]:
        """Both operands in each other's places."""
        (one, _), (other, _) = anchor.inputs[:2] if len(anchor.inputs) > 1 else ((anchor.node, None),) * 2
        texts = self._texts.source(anchor.event, other), self._texts.source(anchor.event, one)
        edits = [self.edit(anchor.event, node, text) for node, text in zip((one, other), texts)]
        return [edit for edit in edits if edit is not None]

    def _fits(self, model: Event, event: Event) -> bool:
        return any(self._matching.match(one, other) for one, other in zip(model.operands, event.operands))

    def _changed(self, event: Event, model: Event, others: Sequence[tuple[str, Any]]) -> Iterator[list[Edit]]:
        """Edits of these arguments; of one that the call lacks, under each name that it may have."""
        ways = [[*self.argument(event, model, key, value)] for key, value in others]
        for way in itertools.islice(itertools.product(*ways), SPELLED):
            places: dict[tuple[str, int, int], str] = {}
            for one in way:  # a call that lacks several is given them at one place
                where = one.file, one.start, one.end
                places[where] = places.get(where, "") + one.new
            yield [Edit(*where, new) for where, new in places.items()]

    def argument(self, event: Event, model: Event, key: str, value: Any, said: str = "") -> Iterator[Edit]:
        """The port's call with another argument."""
        node, site = event.node, event.site
        if site is None:
            return
        text = said or self._texts.argument(event, model, key, value)
        if isinstance(node, ast.Subscript):
            edit = self.edit(event, node.slice, text) if key == "index" else None
            yield from [edit] if edit is not None else ()
            return
        if not isinstance(node, ast.Call) or any(isinstance(one, ast.Starred) for one in node.args):
            return
        method = len(event.inputs) > 0 and event.inputs[0][0] not in node.args and isinstance(node.func, ast.Attribute)
        if key in ("shape", "perm"):
            yield from self._all_of(event, node, text) if method else ()
            return
        where = event.places.get(key)
        at: Optional[ast.AST] = next((one.value for one in node.keywords if one.arg == where), None)
        if isinstance(where, int):
            place = where - method
            at = node.args[place] if 0 <= place < len(node.args) else None
        if at is not None:
            edit = self.edit(event, at, text)
            yield from [edit] if edit is not None else ()
            if isinstance(where, str) and equal(value, arguments(event.word).get(key)):
                yield less(self._sources, site.file, node, at)
        elif where is None:
            mode = next((one.value for one in node.keywords if (key, one.arg) == ("pad", "pad_mode")), None)
            edit = None if mode is None else self.edit(event, mode, f'"pad", padding={text}')
            yield from [edit] if edit is not None else ()
            end = self._sources.span(site.file, node)[1] - 1
            comma = ", " if node.args or node.keywords else ""
            for name in NAMES.get(key, (key,)):
                yield Edit(site.file, end, end, f"{comma}{name}={text}")

    def _all_of(self, event: Event, node: ast.Call, text: str) -> Iterator[Edit]:
        if node.args and event.site is not None:
            (start, _), (_, end) = (self._sources.span(event.site.file, node.args[at]) for at in (0, -1))
            yield Edit(event.site.file, start, end, text.strip("()").rstrip(","))

    def _given(self, anchor: Anchor, model: Event, fits: Sequence[bool]) -> Optional[list[Edit]]:
        """Other operands."""
        event, found, used = anchor.event, list[Edit](), list[ast.AST]()
        for fit, mine, its in zip(fits, model.operands, event.operands):
            if fit:
                continue
            where = next((node for node, value in anchor.inputs if value == its and node not in used), None)
            if where is None:
                return None
            used.append(where)
            try:
                text = self._texts.text(mine, Anchor(where, None, event, 0, event.inputs), 0, model.text)
            except LookupError:
                return None
            edit = self.edit(event, where, text)
            found += [edit] if edit is not None else []
        return found or None

    def edit(self, event: Event, node: ast.AST, text: str) -> Optional[Edit]:
        return None if event.site is None else edit_of(self._sources, event.site.file, node, text)

    def _cost(self, edit: Edit) -> float:
        return change(self._sources.text(edit.file)[edit.start : edit.end], edit.new)
