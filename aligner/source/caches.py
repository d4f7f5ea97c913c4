"""What the user's code keeps from one call for the next: containers that his files begin with empty, or his layers, and
what these begin with as None.

A table that is made in the first call, and taken out of such a container in all others, is made in none that is run
again: its code would not be heard, and an edit of it would change nothing.
"""

from __future__ import annotations

import ast
import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from types import FunctionType, MethodType
from typing import Any, Optional

from aligner.source.written import definitions, parsed, source

MANY = 64
"""Files that are looked into, and values of a container."""

_EMPTY = ("dict", "list", "OrderedDict", "defaultdict")
_FILLS = """
append appendleft extend extendleft insert add update setdefault pop popitem popleft remove discard clear sort reverse
"""
_MADE = {"empty": "filled", "none": "made"}
_FILLING = frozenset(_FILLS.split())
_STANDARD = os.path.dirname(os.__file__) + os.sep
_KEEPING = type(functools.lru_cache(maxsize=1)(repr))


def unkept(function: Any) -> Any:
    """What a function runs that keeps what it has returned (`functools.lru_cache`); any other as it is."""
    inner, owner = getattr(function, "__func__", function), getattr(function, "__self__", None)
    if not isinstance(inner, _KEEPING):
        return function
    return inner.__wrapped__ if owner is None else MethodType(inner.__wrapped__, owner)


class Caches:
    """Those of these layers, of the files in which their classes stand, and of the files that they use."""

    def __init__(self, layers: Iterable[object], packages: Iterable[str], holds: Callable[[object], bool]) -> None:
        self._packages, self._holds = {*packages, "numpy", "aligner", "aligner_hooks", "builtins"}, holds
        files: dict[tuple[int, str], dict[str, Any]] = {}
        layers = [*layers]
        due = [found for one in {type(layer) for layer in layers} for found in self._files(one)]
        while due and len(files) < MANY:
            space, file = due.pop()
            if (id(space), file) not in files:
                files[id(space), file] = space
                due += [other for value in [*space.values()] for other in self._files(value)]
        found = (one for (_, file), space in files.items() for one in _containers(space, file))
        self._found = [*{id(one): one for one in found}.values()]
        self._own = [(vars(layer), name) for layer in layers for name in self._begun(type(layer))]
        """The attributes of layers."""

    def _begun(self, kind: type) -> set[str]:
        """What a layer of this class begins with as nothing, and one of its methods makes."""
        files = {(one.__name__, file) for one in kind.__mro__ for _, file in self._files(one)}
        known = {(name, way) for owner, file in files for one, name, way in _attributes(file) if one == owner}
        return {name for name, way in known if (name, _MADE.get(way)) in known}

    def _files(self, value: Any) -> Iterator[tuple[dict[str, Any], str]]:
        """In which a function, or a class's, is written by the user, with what has a name there."""
        for one in vars(value).values() if isinstance(value, type) else (value,):
            inner = getattr(unkept(one), "__func__", unkept(one))
            if isinstance(inner, FunctionType):
                space, file = inner.__globals__, inner.__code__.co_filename
                standard = file.startswith(_STANDARD) and "-packages" not in file[len(_STANDARD) :]
                if not standard and str(space.get("__name__")).partition(".")[0] not in self._packages:
                    yield space, file

    def _is_filled(self, one: Any) -> bool:
        """Whether there are values in it: what keeps functions and classes is a list of what there is."""
        items = [*islice(one.values() if isinstance(one, dict) else one, MANY)]
        inner = (part for item in items if isinstance(item, (tuple, list)) for part in item)
        return any(map(self._holds, (*items, *inner)))

    @property
    def filled(self) -> bool:
        """Whether something is kept."""
        return any(map(self._is_filled, self._kept())) or bool(self._made())

    def _kept(self) -> list[Any]:
        own = (space.get(name) for space, name in self._own)
        return [*self._found, *(one for one in own if isinstance(one, (dict, list)))]

    def _made(self) -> list[tuple[dict[str, Any], str]]:
        return [(space, name) for space, name in self._own if self._is_value(space.get(name))]

    def _is_value(self, one: object) -> bool:
        return self._holds(one) or (isinstance(one, tuple) and bool(one) and all(map(self._holds, one)))

    @contextmanager
    def emptied(self, really: bool = True) -> Iterator[None]:
        """Meanwhile they are as they were before the first call."""
        kept = [(one, one.copy()) for one in self._kept() if really and self._is_filled(one)]
        for one, _ in kept:
            one.clear()
        made = [(space, name, space[name]) for space, name in self._made()] if really else []
        for space, name, _ in made:
            space[name] = None
        try:
            yield
        finally:
            for one, content in kept:
                one.clear()
                one.extend(content) if isinstance(one, list) else one.update(content)
            for space, name, value in made:
                space[name] = value


def _containers(space: Mapping[str, Any], file: str) -> Iterator[Any]:
    for owner, name in _written(file):
        holder = space.get(owner)
        value = vars(holder).get(name) if isinstance(holder, type) else None if owner else space.get(name)
        if isinstance(value, (dict, list)):
            yield value


@lru_cache(maxsize=256)
def _written(file: str) -> tuple[tuple[str, str], ...]:
    """The names of containers that a file makes empty and a function of it fills, each with the class in which that
    stands.
    """
    try:
        tree = parsed(source(file))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    bodies = [("", tree.body), *((one.name, one.body) for one in tree.body if isinstance(one, ast.ClassDef))]
    filled = {name for function in definitions(tree) for name in _filled(function)}
    return tuple(
        (owner, target.id)
        for owner, statements in bodies
        for one in statements
        if isinstance(one, (ast.Assign, ast.AnnAssign)) and one.value is not None and _is_empty(one.value)
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
        if isinstance(target, ast.Name) and target.id in filled
    )


@lru_cache(maxsize=256)
def _attributes(file: str) -> tuple[tuple[str, str, str], ...]:
    """Of the classes of a file, attributes that they begin with empty, or as None, and such as other methods fill, or
    make.
    """
    try:
        tree = parsed(source(file))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found: list[tuple[str, str, str]] = []
    for one in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
        methods = [each for each in one.body if isinstance(each, ast.FunctionDef)]
        begun = [*_assigned(each for each in methods if each.name == "__init__")]
        others = [each for each in methods if each.name != "__init__"]
        found += [(one.name, name, "empty") for name, value in begun if _is_empty(value)]
        found += [(one.name, name, "none") for name, value in begun if _is_none(value)]
        found += [(one.name, name, "made") for name, value in _assigned(others) if not _is_none(value)]
        found += [(one.name, name, "filled") for each in others for name in _filled(each)]
    return tuple(found)


def _assigned(methods: Iterable[ast.FunctionDef]) -> Iterator[tuple[str, ast.expr]]:
    """The attributes of a layer that are given something, and what."""
    for node in (node for method in methods for node in ast.walk(method)):
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for one in (part for each in targets for part in (each.elts if isinstance(each, ast.Tuple) else [each])):
                if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name) and one.value.id == "self":
                    yield one.attr, node.value


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _filled(function: ast.AST) -> Iterator[str]:
    """The names of what a function puts something into."""
    for node in ast.walk(function):
        into = filled(node)
        if isinstance(into, (ast.Name, ast.Attribute)):
            yield into.id if isinstance(into, ast.Name) else into.attr


def filled(node: ast.AST) -> Optional[ast.expr]:
    """The expression of the container that something is put into, or taken out of, here."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _FILLING:
        return node.func.value
    return None


def _is_empty(node: ast.expr) -> bool:
    if isinstance(node, ast.Call):
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        return name in _EMPTY and not node.keywords and (name == "defaultdict" or not node.args)
    return isinstance(node, (ast.Dict, ast.List)) and not getattr(node, "keys", getattr(node, "elts", ()))
