"""The same change made where a function is called: what it is given there is wrong, and what it does with it is not."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import FunctionType
from typing import Any, Optional, Union

from aligner.mending.candidate import Candidate
from aligner.mending.events import HELPER, Event
from aligner.mending.figures import more
from aligner.mending.matching import Matching
from aligner.mending.measuring import by_size, measured
from aligner.mending.sources import Edit, Sources, edit_of
from aligner.mending.texts import Texts
from aligner.mending.variations import own, statements
from aligner.source.written import definition, functions, optional, parsed, walked

Given = Union[ast.expr, str]
"""An argument's expression, or the name of one that is not given."""

COST = 0.4
"""What it costs more than the change inside, which may make others wrong that call the function."""

DEEP = 3
"""Functions through which an argument is handed on."""

FITTING = 4
"""Values of the code's that are tried as an argument."""


def by_caller(one: Candidate, events: Sequence[Event], sources: Sources) -> Iterator[Candidate]:
    """A literal in the place of a parameter, given by the call that was under way instead: as it is, by the name of
    something that is as much there, or as what is given and the difference. A literal by what has this size, too.
    """
    yield from by_size(one, sources)
    if len(one.edits) != 1 or not one.moves or not one.old.isidentifier() or not _is_literal(one.edits[0].new):
        return
    yield from _outside(one, one.moves[0][0], events, sources, DEEP)


def _outside(one: Candidate, event: Event, events: Sequence[Event], sources: Sources, deep: int) -> Iterator[Candidate]:
    """The same in the call of the function that this stands in, and in those around it that hand on what they are
    given, or take by default."""
    call = next(around(event, events), None)
    if event.site is None or call is None or call.site is None or not isinstance(call.node, ast.Call) or not deep:
        return
    function = definition(sources.text(event.site.file), event.site.line)
    place = None if function is None else _given(call.node, function, one.old)
    for late, text in enumerate(_texts(one, event, call, place, sources)):
        edit = _edit(call.node, call.site.file, place, text, sources)
        if edit is not None:
            yield replace(one, cost=one.cost + COST + 0.1 * late, edits=(edit,), old="")
    if isinstance(place, ast.Name):
        yield from _outside(replace(one, cost=one.cost + COST, old=place.id), call, events, sources, deep - 1)


def forgotten(event: Event, call: ast.Call, matching: Matching, texts: Texts, sources: Sources) -> Iterator[Edit]:
    """Arguments that a function takes and is not given here: what the code has by that name, or what the reference
    works on where the port lacks a step."""
    function = _function(ast.unparse(call.func), event.known)
    if function is None or event.site is None or any(isinstance(one, ast.Starred) for one in call.args):
        return
    code, bound = function.__code__, "." in ast.unparse(call.func)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount][bound + len(call.args) :]
    owner = event.names.get("self")
    wanted = {value for _, made in matching.near if made is not None for value in made.operands}
    fitting = [name for name, number in texts.names(event) if wanted & {*matching.values_of(number)}]
    for name in (one for one in names if one not in {keyword.arg for keyword in call.keywords}):
        known = name if name in event.names else f"self.{name}" if hasattr(owner, name) else ""
        for text in dict.fromkeys([*[known] * bool(known), *fitting[:FITTING]]):
            edit = _edit(call, event.site.file, name, text, sources)
            yield from [edit] if edit is not None else []


def told(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """What functions of the file's take if they are given it, given them where it is not: as other calls give it, or
    the other one of two, in all calls of a statement, then in each. Then what they are given and need not be, as if it
    were not. The nearest lines first.
    """
    text = sources.text(file)
    known = {one.name: one for one in functions(text)}
    calls = [(_called(node), node) for node in walked(parsed(text)) if isinstance(node, ast.Call)]
    calls = [(name, call) for name, call in calls if name in known]
    for statement in statements(text, line):
        inside = {node for node in own(statement) if isinstance(node, ast.Call)}
        for name in dict.fromkeys(name for name, call in calls if call in inside):
            for parameter, default in optional(known[name]):
                said = [
                    (call, _given(call, known[name], parameter), call in inside)
                    for other, call in calls
                    if other == name
                ]
                usual = ast.unparse(default)
                values = [ast.unparse(given) for _, given, _ in said if isinstance(given, ast.Constant)]
                values += {"True": ["False"], "False": ["True"], "None": ["0"]}.get(usual, [])
                lacking = [call for call, given, is_here in said if is_here and given == parameter]
                ways: list[tuple[Sequence[ast.Call], Given, str]] = []
                for value in dict.fromkeys(one for one in values if one != usual):
                    for together in [lacking] * (len(lacking) > 1) + [[call] for call in lacking]:
                        ways.append((together, parameter, value))
                given_here = [(call, given) for call, given, is_here in said if is_here and isinstance(given, ast.expr)]
                ways += [([call], given, usual) for call, given in given_here if ast.unparse(given) != usual]
                for some, place, value in ways:
                    edits = [_edit(call, file, place, value, sources) for call in some]
                    yield tuple(edit for edit in edits if edit is not None)


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def _texts(one: Candidate, event: Event, call: Event, place: Optional[Given], sources: Sources) -> Iterator[str]:
    """What the call may give instead: the shortest that says it in the code's own words first."""
    text = one.edits[0].new
    wanted, found = ast.literal_eval(text), event.known.get(one.old)
    if type(wanted) is int and type(found) is int and place is not None and call.site is not None:
        yield from (name for name, value in call.names.items() if type(value) is int and value == wanted)
        old = sources.words(call.site.file, place) if isinstance(place, ast.expr) else str(found)
        yield from measured(wanted, call, old, sources)
        if isinstance(place, ast.expr):
            yield more(place, wanted - found, old)
    yield text


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def around(event: Event, events: Sequence[Event]) -> Iterator[Event]:
    """The calls of functions of the user's in which this was done, the innermost first."""
    at = next((number for number, one in enumerate(events) if one is event), None)
    if at is not None:
        calls = [one for number, one in enumerate(events) if one.word == HELPER and one.began <= at < number]
        yield from sorted(calls, key=lambda one: -one.began)


def _given(call: ast.Call, definition: ast.FunctionDef, name: str) -> Optional[Given]:
    """What a call gives for a parameter: its expression, or the name to give it by; None where that cannot be."""
    if _called(call) != definition.name or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    names = [one.arg for one in (*definition.args.posonlyargs, *definition.args.args)]
    names = names[1:] if names[:1] == ["self"] and isinstance(call.func, ast.Attribute) else names
    named = next((one.value for one in call.keywords if one.arg == name), None)
    if named is not None:
        return named
    if name in names[: len(call.args)]:
        return call.args[names.index(name)]
    return name if name in names or name in [one.arg for one in definition.args.kwonlyargs] else None


def _edit(call: ast.Call, file: str, place: Optional[Given], text: str, sources: Sources) -> Optional[Edit]:
    """The call with this argument."""
    if place is None or isinstance(place, ast.expr):
        return None if place is None else edit_of(sources, file, place, text)
    end = sources.span(file, call)[1] - 1
    return Edit(file, end, end, f"{', ' * bool(call.args or call.keywords)}{place}={text}")


def _function(words: str, names: Mapping[str, Any]) -> Optional[FunctionType]:
    """The function of the user's that a call names: a plain name, or a method of the layer itself."""
    first, dot, rest = words.partition(".")
    found = names.get(first) if not dot else getattr(type(names.get("self")), rest, None) if first == "self" else None
    return found if isinstance(found, FunctionType) else None
