"""The same change made where a function is called: what it is given there is wrong, and what it does with it is not."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Optional

from aligner.mending.events import HELPER, Event
from aligner.mending.sources import Edit, Sources, edit_of
from aligner.source.written import parsed

if TYPE_CHECKING:
    from aligner.mending.search import Candidate

COST = 0.4
"""What it costs more than the change inside, which may make others wrong that call the function."""


def by_caller(one: Candidate, heard: Sequence[Event], sources: Sources) -> Optional[Candidate]:
    """A literal in the place of a parameter, given by the call that was under way instead."""
    if len(one.edits) != 1 or not one.moves or not one.old.isidentifier() or not _is_literal(one.edits[0].new):
        return None
    event = one.moves[0][0]
    call = _call_of(event, heard)
    if event.site is None or call is None or call.site is None or not isinstance(call.node, ast.Call):
        return None
    around = _definition(sources.text(event.site.file), event.site.line)
    edit = None if around is None else _given(call.node, call.site.file, around, one.old, one.edits[0].new, sources)
    return None if edit is None else replace(one, cost=one.cost + COST, edits=(edit,), old="")


def _is_literal(text: str) -> bool:
    try:
        ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return False
    return True


def _call_of(event: Event, heard: Sequence[Event]) -> Optional[Event]:
    """The innermost call of a function of the user's in which this was done."""
    at = next((number for number, one in enumerate(heard) if one is event), None)
    if at is None:
        return None
    around = [one for number, one in enumerate(heard) if one.word == HELPER and one.began <= at < number]
    return max(around, key=lambda one: one.began, default=None)


def _definition(text: str, line: int) -> Optional[ast.FunctionDef]:
    functions = [one for one in ast.walk(parsed(text)) if isinstance(one, ast.FunctionDef)]
    around = [one for one in functions if one.lineno < line <= (one.end_lineno or 0)]
    return max(around, key=lambda one: one.lineno, default=None)


def _given(
    call: ast.Call, file: str, definition: ast.FunctionDef, name: str, text: str, sources: Sources
) -> Optional[Edit]:
    """The call with this argument."""
    called = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    if called != definition.name or any(isinstance(one, ast.Starred) for one in call.args):
        return None
    names = [one.arg for one in (*definition.args.posonlyargs, *definition.args.args)]
    names = names[1:] if names[:1] == ["self"] and isinstance(call.func, ast.Attribute) else names
    named = next((one.value for one in call.keywords if one.arg == name), None)
    if named is not None:
        return edit_of(sources, file, named, text)
    if name in names[: len(call.args)]:
        return edit_of(sources, file, call.args[names.index(name)], text)
    if name not in names and name not in [one.arg for one in definition.args.kwonlyargs]:
        return None
    end = sources.span(file, call)[1] - 1
    return Edit(file, end, end, f"{', ' * bool(call.args or call.keywords)}{name}={text}")
