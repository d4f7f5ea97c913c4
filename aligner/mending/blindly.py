"""Edits that nothing in the reference speaks for, but that people make such mistakes: a run tells which one does."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Optional

import numpy as np

from aligner.mending.added import added
from aligner.mending.anchor import Anchor
from aligner.mending.callers import forgotten, told
from aligner.mending.candidate import ARGUMENT, EXCHANGE, EXCHANGED, MISSING, OTHER, Candidate
from aligner.mending.columns import columns
from aligner.mending.constants import as_wanted, reordered, tabled
from aligner.mending.constructor import set_up
from aligner.mending.directions import backwards, turned_round
from aligner.mending.dropped import dropped
from aligner.mending.events import HELPER, Event, values_of
from aligner.mending.figures import counted, operated, raised, resized, rounded, sliced, valued
from aligner.mending.grouped import grouped
from aligner.mending.halves import paired, spread
from aligner.mending.kinds import alike, is_mask
from aligner.mending.lapses import (
    advanced,
    begun,
    carried,
    chosen,
    gathered,
    grown,
    handed_on,
    ignored,
    likewise,
    looped,
    reread,
    scaled,
    taken_on,
    unread,
)
from aligner.mending.masked import masked
from aligner.mending.matching import Matching
from aligner.mending.options import compared, decided, opposed, over_all, reduced, switched, untold
from aligner.mending.regrouped import moved_in, regrouped, unturned
from aligner.mending.results import kept
from aligner.mending.search import FAR, SHAPING, Search
from aligner.mending.sites import Sites
from aligner.mending.slips import accumulated, chained, of_each, offset, own_names
from aligner.mending.sources import Edit, Sources
from aligner.mending.spacing import by_turn, spaced
from aligner.mending.texts import Texts
from aligner.mending.unused import unused
from aligner.mending.variations import (
    drawn_in,
    drawn_out,
    exchanged,
    moved,
    renamed,
    renamed_own,
    repeated,
    statements,
    swapped,
    turned_out,
)
from aligner.mending.worked import worked
from aligner.source.written import walked
from aligner.words.spelling import bracketed

TURNED = 1.9
"""What it costs to exchange two arguments of a call, or to give it one more."""

STARTING = 1.2
"""What it costs to have the first wrong step along another axis, where all that it works on is right."""

COLUMNS = (2, 3)
"""So many columns may be taken the other way round."""

TURN = 3.0
"""What it costs to turn a value before it is reshaped, or where one with an axis of one meets another."""

TURNABLE = (3, 4, 5, 6)
"""Axes of what is turned before it is reshaped."""

ELEMENTWISE = ("add", "sub", "mul", "div")
"""Words of operations in which such an axis is repeated along the other's."""

LINES, SWAPPED = 4, 24
"""Lines in which things are exchanged, and how often."""

MOVED = 8
"""Pairs of statements, and of variables, that are exchanged."""

STEPS, EACH = 40, 5
"""Wrong steps that are given other variables, and how many of these for each."""

COUNTED, COUNT = 60, 3.0
"""Numbers of a function that are made one more or less, signs that are made others, and what it costs."""

UNREAD, CHAINED = 1.5, 4.5
"""What it costs to read a variable that nobody reads, and to take two steps in the other order."""

WORKED = 0.9
"""What it costs to work out a number otherwise, so that it is as wanted."""

SCALED = 96
"""Ways to take a number times another one that is a size."""

CONSTANTS = 60
"""Ways to write the constants of a file that a function uses."""

FUNCTIONS = 4
"""Functions that are written in other ways."""

_Way = Callable[[Sources, str, int], Iterator[tuple[Edit, ...]]]

OF_FIGURES: Sequence[_Way] = (counted, switched, reduced, resized, sliced, rounded, dropped, set_up, chosen, carried)
OF_FIGURES = (*OF_FIGURES, accumulated)
OF_SLIPS: Sequence[_Way] = (
    unread,
    reread,
    ignored,
    likewise,
    compared,
    advanced,
    offset,
    looped,
    handed_on,
    taken_on,
    grown,
    told,
    untold,
    of_each,
)
OF_SLIPS = (*OF_SLIPS, by_turn, spaced, backwards, turned_round, columns, raised, opposed, over_all)
"""Ways to write a function otherwise, told from its text alone."""

BLIND = ("relu", "gelu", "sigmoid", "tanh", "silu", "sqrt", "exp", "abs", "log", "square")
"""What is tried around a wrong value where the reference does several steps in one."""


class Blindly:
    """Such edits for one wrong value; `end` is the event that uses it."""

    def __init__(
        self, search: Search, matching: Matching, texts: Texts, sources: Sources, end: Optional[Event]
    ) -> None:
        self._search = search
        self._matching, self._texts, self._sources, self._end = matching, texts, sources, end
        self._sites = Sites(matching, sources, end)

    def candidates(self) -> Iterator[Candidate]:
        """What the reference's steps do not tell, where it does in one what the port does in several."""
        yield from self._of_helpers()
        yield from self._of_steps()
        yield from added(self._search, self._matching, self._texts)
        yield from masked(self._search, self._matching, self._texts)
        yield from self._varied()
        start = self._start()
        for anchor in self._search.anchors():
            event = anchor.event
            axis = event.arguments.get("axis")
            first = event.operands[0] if event.operands else None
            if anchor.node is event.node and isinstance(axis, int) and isinstance(first, int):
                rank = len(self._matching.theirs.shapes[first])
                for other in (one for one in range(rank) if one != axis):
                    cost = STARTING if event is start else 4.0 + 0.1 * min(anchor.late, FAR)
                    for edit in self._along(event, other, other - rank if rank - 1 in (axis, other) else other):
                        yield Candidate(cost, (edit,), ARGUMENT, (), 9)
            if anchor.node is event.node and event.word == "reshape" and isinstance(event.node, ast.Call):
                for edit in (*self._turned(event), *self._turned_after(event, event.node)):
                    yield Candidate(TURN + 0.1 * min(anchor.late, FAR), (edit,), MISSING, (), 9)
            for edit in self._mirrored(anchor):  # what is short stands before scales, which need not be square
                yield Candidate(TURN + 0.01 * len(edit.new), (edit,), MISSING, (), 9)
            if anchor.node is event.node and event.word in ELEMENTWISE:
                for edit in self._across(event):
                    yield Candidate(TURN + 0.1 * min(anchor.late, FAR), (edit,), MISSING, (), 9)
            if anchor.node is event.node and event.word in BLIND and isinstance(event.node, ast.Call):
                inside = [node for node, value in event.inputs if value in event.operands][:1]
                for edit in self._under_other_words(event, anchor.node, inside[0]) if inside else ():
                    yield Candidate(4.5, (edit,), OTHER, (), 9)
            if anchor.value == self._matching.found:
                for edit in self._exchanged(anchor):
                    yield Candidate(TURN, (edit,), MISSING, (), 9)
                for edit in self._under_other_words(event, anchor.node, anchor.node):
                    yield Candidate(5.0, (edit,), MISSING, (), 9)

    def _start(self) -> Optional[Event]:
        """The first wrong step, if all that it works on is right."""
        wrong = {value for value, _ in self._matching.wrong}
        event = next((event for _, event in self._matching.wrong if event is not None and event.operands), None)
        return event if event is not None and not wrong & {*event.operands} else None

    def _along(self, event: Event, axis: int, said: int) -> Iterator[Edit]:
        """The same along another axis: what a layer of the framework's does along one, a function does along others."""
        if event.name.islower() or not isinstance(event.node, ast.Call):
            yield from self._search.argument(event, event, "axis", axis, str(said))
            return
        for node, _ in event.inputs[:1]:
            with suppress(LookupError):
                given, inside = {**event.arguments, "axis": said}, self._texts.source(event, node)
                edit = self._search.edit(
                    event, event.node, self._texts.operation(event, event.word, inside, event.node, given)
                )
                yield from [edit] if edit is not None else []

    def _turned(self, event: Event) -> Iterator[Edit]:
        """What is reshaped, with two of its axes in each other's places before."""
        for node, value in event.inputs[:1]:
            rank = len(self._matching.theirs.shapes[value]) if isinstance(value, int) else 0
            pairs = dict.fromkeys(((1, 2), (2, 3), (rank - 2, rank - 1), (0, 1), (1, 3), (3, 4)))
            yield from self._with_axes(event, node, rank, (pair for pair in pairs if pair[1] < rank))

    def _exchanged(self, anchor: Anchor) -> Iterator[Edit]:
        """Two axes of one size in each other's places."""
        shape = self._matching.theirs.shapes[self._matching.found]
        pairs = itertools.combinations(range(len(shape)), 2)
        equal = (pair for pair in pairs if shape[pair[0]] == shape[pair[1]] > 1)
        yield from self._with_axes(anchor.event, anchor.node, len(shape), equal)

    def _with_axes(self, event: Event, node: ast.AST, rank: int, pairs: Iterable[tuple[int, int]]) -> Iterator[Edit]:
        for one, other in pairs if rank in TURNABLE else ():
            perm = [*range(rank)]
            perm[one], perm[other] = other, one
            with suppress(LookupError):
                edit = self._search.edit(
                    event, node, self._texts.transposed(event, self._texts.source(event, node), perm)
                )
                yield from [edit] if edit is not None else []

    def _turned_after(self, event: Event, call: ast.Call) -> Iterator[Edit]:
        """What is reshaped to channels in front, which are behind, and turned after."""
        for sizes, order in moved_in(self._sources, event.site.file, call) if event.site is not None else ():
            start, end = self._sources.span(sizes.file, call)
            said = self._sources.words(sizes.file, call)
            inside = said[: sizes.start - start] + sizes.new + said[sizes.end - start :]
            with suppress(LookupError):
                yield Edit(sizes.file, start, end, self._texts.transposed(event, inside, order))

    def _mirrored(self, anchor: Anchor) -> Iterator[Edit]:
        """Columns the other way round: x and y, or colours."""
        shape = self._matching.theirs.shapes[anchor.value] if isinstance(anchor.value, int) else ()
        if len(shape) > 1 and shape[-1] in COLUMNS and not anchor.is_array:
            text = f"{bracketed(self._texts.source(anchor.event, anchor.node))}.flip((-1,))"
            edit = self._search.edit(anchor.event, anchor.node, text)
            yield from [edit] if edit is not None else []

    def _across(self, event: Event) -> Iterator[Edit]:
        """One side of a sum or a product along the other one of the last two axes: rows for columns."""
        shapes = self._matching.theirs.shapes
        sides = [(node, shapes[value]) for node, value in event.inputs if isinstance(value, int)]
        for (node, shape), (_, other) in (sides, sides[::-1]) if len(sides) == 2 and event.results else ():
            if min(len(shape), len(other)) > 1 and shape[-2:].count(1) == 1:
                turned = (*shape[:-2], shape[-1], shape[-2])
                with suppress(LookupError, ValueError):
                    if np.broadcast_shapes(turned, other) == tuple(shapes[event.results[0]]):
                        perm = [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
                        text = self._texts.transposed(event, self._texts.source(event, node), perm)
                        edit = self._search.edit(event, node, text)
                        yield from [edit] if edit is not None else []

    def _of_helpers(self) -> Iterator[Candidate]:
        """Calls of functions of the user's, the last ones first: two arguments in each other's places, another value of
        the code's; one that has a default and is called as something that the code has.
        """
        wrong = {value for value, _ in self._matching.wrong}
        begun = [one for _, one in self._matching.wrong if one is not None and not wrong & {*one.operands}]
        given = [value for event in begun[:STEPS] for value in values_of(event)]  # may be right, and stand for another
        for value in given:
            made = self._matching.makers[1].get(value)
            given += values_of(made) if made is not None and made.word in SHAPING else ()
        calls = [one for one in self._matching.heard if one.word == HELPER and {*one.results} & {*wrong, *given}]
        seen: set[tuple[Edit, ...]] = set()
        for late, event in enumerate(reversed(calls)):
            if not isinstance(event.node, ast.Call):
                continue
            for edit in forgotten(event, event.node, self._matching, self._texts, self._sources):
                yield Candidate(TURNED + 0.1 * late, (edit,), MISSING, (), 9)
            for number, edit in enumerate(itertools.islice(self._others(event), SWAPPED)):
                yield Candidate(TURNED + 0.1 * late + 0.02 * number, (edit,), OTHER, (), 9)
            for edit in self._narrowed(event):
                yield Candidate(COUNT + 0.1 * late, (edit,), MISSING, (), 9)
            arguments = [one for one in event.node.args if not isinstance(one, ast.Starred)]
            arguments += [one.value for one in event.node.keywords if one.arg]
            for one, other in itertools.combinations(arguments, 2):
                texts = self._texts.source(event, other), self._texts.source(event, one)
                edits = [self._search.edit(event, node, text) for node, text in zip((one, other), texts)]
                found = tuple(edit for edit in edits if edit is not None)
                if len(found) == 2 and found not in seen:
                    seen.add(found)
                    yield Candidate(TURNED + 0.1 * late, found, EXCHANGED, (), 9)

    def _of_steps(self) -> Iterator[Candidate]:
        """Variables that the first wrong steps are given, and others of that shape in their place."""
        events = dict.fromkeys(event for _, event in self._matching.wrong if event is not None and event.word != HELPER)
        for late, event in enumerate(itertools.islice(events, STEPS)):
            for number, edit in enumerate(itertools.islice(self._others(event), EACH)):
                yield Candidate(EXCHANGE + 0.04 * late + 0.05 * number, (edit,), OTHER, (), 9)

    def _others(self, event: Event) -> Iterator[Edit]:
        """Values that such a call is given, or that what it is given is made of there, and others of that shape that
        its code has a name for.
        """
        shapes = self._matching.theirs.shapes
        names = {name: value for name, value in self._texts.names(event) if name.isidentifier()}
        known = {node: value for node, value in event.inputs if isinstance(node, ast.Name)}
        inside = (node for given, _ in event.inputs for node in walked(given) if isinstance(node, ast.Name))
        known.update({node: names[node.id] for node in inside if node.id in names and node not in known})
        ways = [
            [name for name, other in reversed([*names.items()]) if other != value and shapes[other] == shapes[value]]
            for value in known.values()
            if isinstance(value, int)
        ]
        nodes = [node for node, value in known.items() if isinstance(value, int)]
        for turn in itertools.zip_longest(*ways):  # each is given another before one is given a second
            edits = (self._search.edit(event, node, name) for node, name in zip(nodes, turn) if name is not None)
            yield from (edit for edit in edits if edit is not None)

    def _narrowed(self, event: Event) -> Iterator[Edit]:
        """Masks that such a call is given, where another mask of that shape holds as well."""
        shapes, values = self._matching.theirs.shapes, self._matching.theirs.values
        masks = {name: value for name, value in self._texts.names(event) if is_mask(values[value])}
        for node, value in event.inputs:
            if isinstance(value, int) and is_mask(values[value]):
                said = bracketed(self._texts.source(event, node))
                alike = (name for name, one in masks.items() if one != value and shapes[one] == shapes[value])
                edits = (self._search.edit(event, node, f"{said} & {name}") for name in alike)
                yield from (edit for edit in edits if edit is not None)

    def _varied(self) -> Iterator[Candidate]:
        """The functions that the wrong value comes of, written in other ways."""
        lines: dict[str, list[int]] = {}
        for anchor in self._search.anchors():
            if anchor.event.site is not None:
                lines.setdefault(anchor.event.site.file, []).append(anchor.event.site.line)
        turned = (edits for file, some in lines.items() for edits in exchanged(self._sources, file, {*some}))
        yield from _tried(turned, MOVED, EXCHANGE, 0.1, EXCHANGED)
        places = [*dict.fromkeys((file, line) for file, some in lines.items() for line in some)][:LINES]
        words = (edits for file, line in places for edits in swapped(self._sources, file, line))
        yield from _tried(words, SWAPPED, EXCHANGE, 0.05, EXCHANGED)
        for way in (drawn_out, drawn_in, gathered, turned_out, moved):
            found = (edits for file, line in places for edits in way(self._sources, file, line))
            yield from _tried(found, MOVED, EXCHANGE, 0.05, MISSING)
        yield from _tried(worked(self._sources, self._matching.figures), SWAPPED, WORKED, 0.05, ARGUMENT)
        for site in self._sites.all()[:FUNCTIONS]:
            at = self._sources, site.file, site.line
            around = statements(self._sources.text(site.file), site.line)
            near = [one.lineno for one in around if (site.file, one.lineno) not in places]
            words = (edits for line in near for edits in swapped(self._sources, site.file, line))
            yield from _tried(words, COUNTED, COUNT, 0.05, EXCHANGED)
            yield from _tried(renamed(*at), MOVED, EXCHANGE, 0.1, EXCHANGED)
            yield from _tried(repeated(*at), MOVED, EXCHANGE, 0.1, MISSING)
            for split in (unturned, spread, paired, regrouped, grouped):
                yield from _tried(split(*at), SWAPPED, EXCHANGE, 0.05, EXCHANGED)
            yield from _tried(kept(*at), SWAPPED, EXCHANGE, 0.05, OTHER)
            yield from _tried(renamed_own(*at, alike(self._sites.owner(site))), MOVED, EXCHANGE, 0.1, OTHER)
            for write in OF_FIGURES:
                yield from _tried(write(*at), COUNTED, COUNT, 0.05, ARGUMENT)
            for write in OF_SLIPS:
                yield from _tried(write(*at), COUNTED, UNREAD, 0.05, OTHER)
            for way in (chained, decided):
                yield from _tried(way(*at), COUNTED, CHAINED, 0.05, OTHER)
            yield from _tried(own_names(*at, self._sites.of_both(site)), COUNTED, UNREAD, 0.05, OTHER)
            yield from _tried(unused(*at, self._sites.local(site)), COUNTED, UNREAD, 0.02, MISSING)
            whole = [name for name, one in self._sites.local(site).items() if type(one) is int]
            yield from _tried(begun(*at, whole, self._sites.whole(site)), COUNTED, COUNT, 0.05, ARGUMENT)
            yield from _tried(scaled(*at, self._sites.whole(site)), SCALED, COUNT, 0.02, ARGUMENT)
            own = self._sites.own(site)
            yield from _tried(valued(*at, self._matching.numbers, own), 2 * MOVED, COUNT, 0.1, ARGUMENT)
            yield from _tried(tabled(*at, self._matching.tables), MOVED, UNREAD, 0.05, ARGUMENT)
            yield from _tried(as_wanted(*at[:2], self._matching.others), MOVED, UNREAD, 0.05, ARGUMENT)
            yield from _tried(reordered(*at, self._matching.numbers), CONSTANTS, EXCHANGE, 0.05, ARGUMENT)
            yield from _tried(operated(*at), COUNTED, COUNT, 0.05, OTHER)

    def _under_other_words(self, event: Event, node: ast.AST, inside: ast.AST) -> Iterator[Edit]:
        """An operation of one operand on what stands inside, in the place of `node`."""
        for word in BLIND:
            with suppress(LookupError):
                text = self._texts.operation(event, word, self._texts.source(event, inside), node)
                edit = self._search.edit(event, node, text)
                if edit is not None:
                    yield edit


def _tried(found: Iterable[tuple[Edit, ...]], most: int, cost: float, more: float, why: str) -> Iterator[Candidate]:
    """So many of these, each a little dearer than the one before."""
    for late, edits in enumerate(itertools.islice(found, most)):
        yield Candidate(cost + more * late, edits, why, (), 9)
