"""Where in the user's code each layer was built and cast, and the plain values that had names there."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from types import FrameType
from typing import Any, NamedTuple, Optional
from weakref import WeakKeyDictionary

from aligner.source.written import parsed, source, walked

WRAPPERS = 8
"""Frames of a framework's between a layer's constructor and the user's code that calls it."""

HELPERS = 4
"""Functions of the user's that call each other to build a layer."""

NAMES = 64
"""Names that are kept of a place."""


class Place(NamedTuple):
    """A call in a file; its columns are known from Python 3.11 on."""

    file: str
    line: int
    columns: Optional[tuple[int, int, int]]
    """Where it begins, the line and where it ends."""


class Caller(NamedTuple):
    """A function of the user's that was called, what it takes, where it was called and what had a name there."""

    name: str
    parameters: tuple[str, ...]
    scope: Mapping[str, Any]
    """What the file of the function has names for."""
    place: Place
    names: Mapping[str, Any]
    further: Optional[Caller]
    """The function that called it, where that was called as well."""


class Built(NamedTuple):
    """The call that built a layer, and the numbers, words and tuples that had a name there."""

    place: Place
    names: Mapping[str, Any]
    scope: Mapping[str, Any]
    """What the file has names for."""
    caller: Optional[Caller] = None
    """The function that the call stands in, where that was called for it."""

    def callers(self) -> Iterator[tuple[Place, Mapping[str, Any], Caller]]:
        """Where each of them stands that was called, with what had a name in it, from the inner to the outer."""
        place, names, caller = self.place, self.names, self.caller
        while caller is not None:
            yield place, names, caller
            place, names, caller = caller.place, caller.names, caller.further


class Cast(NamedTuple):
    """The call that has a layer compute in another type."""

    place: Place
    name: str


_BUILT: WeakKeyDictionary[Any, Built] = WeakKeyDictionary()
_CAST: WeakKeyDictionary[Any, Cast] = WeakKeyDictionary()


def note(layer: Any, constructor: FrameType, packages: frozenset[str]) -> None:
    """Where the user's code called a layer's constructor; one that a layer of the framework's calls has no place."""
    frame = constructor.f_back
    for _ in range(WRAPPERS):
        if frame is None:
            return
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in packages:
            _BUILT[layer] = Built(_place(frame), _plain(frame), frame.f_globals, _caller(frame, packages))
            return
        if frame.f_code.co_name == "__init__":
            return
        frame = frame.f_back


def note_cast(layer: Any, name: str, frame: FrameType, packages: frozenset[str]) -> None:
    """Where the user's code called this method of a layer."""
    if str(frame.f_globals.get("__name__")).partition(".")[0] not in packages:
        _CAST[layer] = Cast(_place(frame), name)


def _caller(frame: FrameType, packages: frozenset[str], deep: int = HELPERS) -> Optional[Caller]:
    code, outer = frame.f_code, frame.f_back
    if code.co_name.startswith("<") and outer is not None and outer.f_code.co_filename == code.co_filename:
        return _caller(outer, packages, deep)  # a comprehension
    foreign = outer is None or str(outer.f_globals.get("__name__")).partition(".")[0] in {*packages, "aligner"}
    if foreign or outer is None or code.co_name.startswith(("<", "__")) or not deep:
        return None
    parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    further = _caller(outer, packages, deep - 1)
    return Caller(code.co_name, parameters, frame.f_globals, _place(outer), _plain(outer), further)


def built(layer: Any) -> Optional[Built]:
    """None where it is not known."""
    return _BUILT.get(layer)


def cast(layer: Any) -> Optional[Cast]:
    """None where it is not known, or there is none."""
    return _CAST.get(layer)


def call(place: Place, name: str) -> Optional[ast.Call]:
    """The call of a class of that name that stands there; None if it is not one alone."""
    try:
        nodes = walked(parsed(source(place.file)))
    except SyntaxError:
        return None
    calls = [one for one in nodes if isinstance(one, ast.Call) and one.lineno <= place.line]
    if place.columns is not None:
        begin, end_line, end = place.columns
        spot = place.line, begin, end_line, end
        calls = [one for one in calls if (one.lineno, one.col_offset, one.end_lineno, one.end_col_offset) == spot]
    else:
        calls = [one for one in calls if place.line <= (one.end_lineno or 0)]
    found = [one for one in calls if _name(one.func) == name]
    return found[0] if len(found) == 1 else None


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _place(frame: FrameType) -> Place:
    file, line = frame.f_code.co_filename, frame.f_lineno
    if sys.version_info >= (3, 11):
        first, last, begin, end = next(islice(frame.f_code.co_positions(), frame.f_lasti // 2, None))
        if first is not None and last is not None and begin is not None and end is not None:
            return Place(file, first, (begin, last, end))
    return Place(file, line, None)


def _plain(frame: FrameType) -> Mapping[str, Any]:
    """What has a name there, in a comprehension also that around it."""
    names, outer = frame.f_locals, frame.f_back
    if (
        frame.f_code.co_name.startswith("<")
        and outer is not None
        and outer.f_code.co_filename == frame.f_code.co_filename
    ):
        names = {**outer.f_locals, **names}
    found = ((name, value) for name, value in names.items() if not name.startswith("__") and _is_plain(value))
    return dict(list(found)[:NAMES])


def _is_plain(value: Any) -> bool:
    if type(value) is tuple:
        return len(value) <= 8 and all(map(_is_plain, value))
    return type(value) in (int, float, bool, str)
