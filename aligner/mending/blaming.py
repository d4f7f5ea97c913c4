"""Which line of the port's is wrong, as far as it is known without an edit.

Of the steps that make something wrong of what is right the first is meant that computes, with these in mind:

    handed      a right value in the place of another one is the mistake of whoever takes it
    loosely     a value in another order of axes, or one that says by true what the reference says by false, is no
                mistake before something else is made of it
    arguments   what a function was given is the mistake of whoever calls it
    numbers     a number that has a name was worked out where the name was given
"""

from __future__ import annotations

import ast
import linecache
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import NamedTuple, Optional

from aligner.explain.line import Spot
from aligner.fingerprint import Fingerprint
from aligner.mending.events import HELPER, KEPT, LAYER, RETURN, Event, values_of
from aligner.mending.matching import Matching
from aligner.source.written import definition, parsed, source, walked
from aligner.words.calls import Constant, Operand

WIDE = 200
"""Characters of a line that are told."""

FEW = 8
"""Values of fewer elements are like others in any order by chance."""

NEAR = 1e-4
"""Sums over all elements agree within this part."""

REARRANGING = {
    *("reshape", "expand", "transpose", "cast", "cat", "stack", "getitem", "setitem", "gather", "index_select", "roll"),
    *("flip", "tile", "pad", "split", "repeat_interleave", "scatter", LAYER),
}
"""Steps after which the same numbers stand elsewhere: others of the same value come first."""

UNTOLD = (HELPER, RETURN, KEPT)


class _Place(NamedTuple):
    file: str
    line: int
    name: str


class Blaming:
    """One wrong value; `end` is the step that uses it."""

    def __init__(self, matching: Matching, end: Optional[Event]) -> None:
        self._matching, self._end = matching, end
        self._places = {id(event): at for at, event in enumerate(matching.heard)}
        self._wrong = [event for _, event in matching.wrong if event and event.word not in UNTOLD and event.site]

    def spot(self) -> Optional[Spot]:
        """The likeliest line."""
        place = self._handed() or self._made()
        if place is None:
            return None
        text = " ".join(linecache.getline(place.file, place.line).split())[:WIDE]
        return Spot(place.file, place.line, text, place.name)

    def _handed(self) -> Optional[_Place]:
        """Where a right value stands for another one: in the step that takes it, or where it got another name."""
        end, found = self._end, self._matching.found
        if end is None or end.site is None or not self._matching.values_of(found):
            return None
        names = [node.id for node, value in end.inputs if value == found and isinstance(node, ast.Name)]
        alias = next((line for name in names if (line := _renamed(end, name))), None)
        return _Place(end.site.file, alias or end.site.line, end.name or end.word)

    def _made(self) -> Optional[_Place]:
        first = self._first(self._loosely)
        computing = (one for one in first if one.word not in REARRANGING or any(not odd for odd in self._alike(one)))
        event = next(chain(computing, self._first(frozenset()), first), None)
        if event is None:
            return None
        call = self._caller(event)
        line = None if call is not None else self._number(event) or self._name(event)
        event = call or event
        assert event.site is not None
        return _Place(event.site.file, line or event.site.line, event.name or event.word)

    def _first(self, right: frozenset[int]) -> Sequence[Event]:
        """Steps that make something wrong of what is right. One that makes numbers of nothing is such a step only if
        there is no other, for the reference may begin with other numbers; so is a call of a layer. Where there is none,
        what works on values that were made elsewhere; or what makes another order of right ones.
        """
        shapes, makers = self._matching.theirs.shapes, self._matching.makers[1]
        steps = [one for one in self._wrong if any(math.prod(shapes[value]) for value in one.results)]
        bad = [one for one in steps if not right.issuperset(one.results)]
        nothing = [one for one in bad if not values_of(one)]
        made = {value for one in nothing for value in one.results}.union(right)
        others = [one for one in bad if one not in nothing]
        some = [one for one in others if all(v in made or self._matching.values_of(v) for v in values_of(one))]
        layers = [one for one in some if one.word == LAYER]
        known = {value for value in makers if not self._matching.values_of(value)} - made
        return (
            [one for one in some if one not in layers]
            or nothing
            or layers
            or [one for one in others if not known.intersection(values_of(one))]
            or [one for one in steps if all(self._matching.values_of(value) for value in values_of(one))]
        )

    @cached_property
    def _loosely(self) -> frozenset[int]:
        """Wrong values that have the elements of one of the reference's in another order, or are the contrary of it."""
        ours, theirs = self._matching.ours, self._matching.theirs
        sizes: dict[int, list[Fingerprint]] = {}
        for known in (ours.values[value] for value in self._matching.twins):
            sizes.setdefault(0 if known is None else known.size, []).extend([known] if known is not None else [])
        found = set[int]()
        for value in {value for event in self._wrong for value in event.results} - {self._matching.found}:
            own = theirs.values[value]
            if own is not None and own.size >= FEW and any(_is_alike(own, one) for one in sizes.get(own.size, ())):
                found.add(value)
        return frozenset(found)

    def _alike(self, event: Event) -> Iterator[Sequence[Operand]]:
        """Of the steps of the reference's that do the same to some of the same and make what the port lacks, what this
        one is given otherwise: nothing where its arguments alone are others."""
        for other in self._matching.ours.events:
            lacking = not all(self._matching.twins.get(value) for value in other.results)
            if lacking and other.word == event.word and len(other.operands) == len(event.operands):
                pairs = zip(other.operands, event.operands)
                odd = [mine for its, mine in pairs if not self._matching.match(its, mine)]
                if len(odd) < len(event.operands) and (odd or other.arguments != event.arguments):
                    yield odd

    def _caller(self, event: Event) -> Optional[Event]:
        """The call of the function that a step stands in, where the reference does so to others, or with other
        arguments, and what this one is given came with the call."""
        at = self._places[id(event)]
        later = (one for one in self._matching.heard[at + 1 :] if one.word == HELPER and one.site is not None)
        call = next((one for one in later if one.began <= at), None)
        if call is None:
            return None
        given = _parameters(event)
        named = {value for node, value in event.inputs if isinstance(node, ast.Name) and node.id in given}
        numbers = [_plain(ast.Name(name), event.known) for name in given]
        sized = any(value in numbers for value in event.arguments.values())
        return call if any(named.issuperset(odd) if odd else sized for odd in self._alike(event)) else None

    def _name(self, event: Event) -> Optional[int]:
        """The line on which a right value got its name that a step is given in the place of another one."""
        assert event.site is not None
        odd = {some[0] for some in self._alike(event) if len(some) == 1 and isinstance(some[0], int)}
        taken = {value for value in odd if self._matching.values_of(value)}
        names = (node.id for node, value in event.inputs if value in taken and isinstance(node, ast.Name))
        around = definition(source(event.site.file), event.site.line)
        made = (_assigned(around, name, event.site.line) for name in names)
        return next((one.lineno for one in made if one is not None), None)

    def _number(self, event: Event) -> Optional[int]:
        """The line on which a number was worked out that the step is given and the reference's is not; also where a
        step works on numbers alone."""
        odd = {one.value for some in self._alike(event) for one in some if isinstance(one, Constant)}
        alone = not any(self._matching.values_of(value) for value in values_of(event))
        if event.node is None or event.site is None or not (odd or alone):
            return None
        lines = []
        for node in walked(event.node):
            value = _plain(node, event.known) if isinstance(node, (ast.Name, ast.Attribute)) else None
            if value is not None and (alone or any(math.isclose(value, one, rel_tol=1e-6) for one in odd)):
                lines.append(_given(node, event))  # type: ignore[arg-type]  # one of both
        return max((line for line in lines if line), default=None)


def _is_alike(one: Fingerprint, other: Fingerprint) -> bool:
    """Whether two values have the same elements in some order, or the one is true where the other is not."""
    scale = max(float(other.plain[2]), 1e-9)
    if all(abs(a - b) <= NEAR * scale for a, b in zip(one.plain, other.plain)):
        return True
    truths = one.whole and other.whole and all(p.plain[3] >= 0 and p.plain[4] <= 1 for p in (one, other))
    return truths and abs(float(one.plain[0] + other.plain[0]) - one.size) < 0.5


def _plain(node: ast.AST, names: Mapping[str, object]) -> Optional[float]:
    """The number that a name or an attribute of `self` has."""
    value: object = None
    if isinstance(node, ast.Name):
        value = names.get(node.id)
    elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in names:
        value = getattr(names[node.value.id], node.attr, None)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _given(node: ast.expr, event: Event) -> Optional[int]:
    """The line on which such a name was given its number, if that was worked out there."""
    assert event.site is not None
    text, line = source(event.site.file), event.site.line
    around: Optional[ast.AST] = definition(text, line)
    if isinstance(node, ast.Attribute):
        classes = [one for one in walked(parsed(text)) if isinstance(one, ast.ClassDef)]
        around = next((one for one in reversed(classes) if one.lineno < line <= (one.end_lineno or 0)), None)
        line = (around.end_lineno or 0) + 1 if around is not None else 0
    made = _assigned(around, ast.unparse(node), line)
    if made is None or isinstance(made.value, (ast.Constant, ast.Name)) or ".shape" in ast.unparse(made.value):
        return None
    return made.lineno


def _assigned(inside: Optional[ast.AST], name: str, before: int) -> Optional[ast.Assign]:
    """The last assignment before a line to a name, or to an attribute as it is written."""
    found = None
    for one in walked(inside) if inside is not None else ():
        if isinstance(one, ast.Assign) and one.lineno < before and (found is None or one.lineno > found.lineno):
            targets = [part for target in one.targets for part in getattr(target, "elts", [target])]
            found = one if any(ast.unparse(part) == name for part in targets) else found
    return found


def _renamed(event: Event, name: str) -> Optional[int]:
    """The line before a step that only gave a value this other name."""
    assert event.site is not None
    last = _assigned(definition(source(event.site.file), event.site.line), name, event.site.line)
    return last.lineno if last is not None and isinstance(last.value, ast.Name) else None


def _arguments(function: ast.FunctionDef) -> Collection[str]:
    return [one.arg for one in (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)]


def _parameters(event: Event) -> Collection[str]:
    """What the function around a step was given and the step is written with."""
    if event.node is None or event.site is None:
        return ()
    around = definition(source(event.site.file), event.site.line)
    names = {node.id for node in walked(event.node) if isinstance(node, ast.Name)}
    return [] if around is None else [one for one in _arguments(around) if one in names and one != "self"]
