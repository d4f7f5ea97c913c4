"""What a file gives names to outside of functions and works out of plain values: of another text it can be worked out
again.
"""

from __future__ import annotations

import ast
import math
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from aligner.source.written import parsed, source

_OWN: list[Any] = [
    abs,
    bool,
    dict,
    enumerate,
    float,
    int,
    len,
    list,
    max,
    min,
    range,
    reversed,
    round,
    set,
    sorted,
    sum,
    tuple,
]
_BUILTINS: Mapping[str, Any] = {one.__name__: one for one in (*_OWN, sum, tuple, zip)}
_MODULES: Mapping[str, Any] = {"math": math, "numpy": np}

_OF_NUMPY = re.compile(
    "array|asarray|concatenate|stack|cumsum|cumprod|sum|prod|max|min|mean|exp|log|log2|sqrt|sin|cos|pi|bool_|"
    "u?int(8|16|32|64)|float(16|32|64)"
)
"""What of it gives the same each time and changes nothing."""

_PLAIN = (
    *(ast.Constant, ast.Tuple, ast.List, ast.Dict, ast.Set, ast.Starred, ast.Subscript, ast.Slice, ast.keyword),
    *(ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Name, ast.Attribute, ast.Call),
    *(ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.comprehension),
    *(ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop),
)
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


MOST = 4096
"""Elements of a constant: of a larger one a text of the file keeps no copy."""


class Written(NamedTuple):
    """One of a file."""

    node: ast.expr
    value: Any


@lru_cache(maxsize=32)
def constants(text: str) -> Mapping[str, Written]:
    """Those that are given their name once, are not changed after that, and of which nothing else is made when the file
    is read: an attribute of a class, a default, a tensor would stay as it is.

    Raises:
        SyntaxError: it is no Python.
    """
    body = parsed(text).body
    bound = Counter(name for one in body for name in _bound(one))
    names = {**{name: one for name, one in _BUILTINS.items() if name not in bound}, **_imported(body)}
    found: dict[str, Written] = {}
    for one in body:
        for name, value in _given(one):
            if bound[name] == 1:
                with suppress(Exception):  # what is no such value, or none at all
                    known = {other: written.value for other, written in found.items()}
                    number = evaluated(value, {**names, **known})
                    if _elements(number) <= MOST:
                        found[name] = Written(value, number)
    for name in _made_into_others(body, found):
        found.pop(name, None)
    return found


def _given(statement: ast.stmt) -> Iterator[tuple[str, ast.expr]]:
    """Names, and what they are given: `A = 1`, `A: int = 1`, `A, B = 1, 2`."""
    targets = [getattr(statement, "target", None)] if isinstance(statement, ast.AnnAssign) else []
    targets += statement.targets if isinstance(statement, ast.Assign) else []
    value = getattr(statement, "value", None)
    pairs = [*zip(targets, [value])] if len(targets) == 1 else []
    if pairs and isinstance(targets[0], ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = [*zip(targets[0].elts, value.elts)] if len(targets[0].elts) == len(value.elts) else []
    yield from ((one.id, given) for one, given in pairs if isinstance(one, ast.Name) and given is not None)


@lru_cache(maxsize=16)
def taken_elsewhere(file: str) -> frozenset[str]:
    """Names of a file's constants that another one has imported, or reads of the imported file: those who read them
    there keep what they have.
    """
    known = constants(source(file))
    modules = [one for one in sys.modules.values() if type(one) is ModuleType and getattr(one, "__file__", None)]
    own = {id(one) for one in modules if one.__file__ == file}
    values = {id(vars(one)[name]): name for one in modules if id(one) in own for name in known if name in vars(one)}
    found = set[str]()
    for module in (one for one in modules if id(one) not in own):
        inside = {**vars(module)}
        alike = [name for name in known.keys() & inside.keys() if repr(inside[name]) == repr(known[name].value)]
        text = source(str(module.__file__)) if alike or own & {*map(id, inside.values())} else ""
        found |= {name for name in alike if not re.search(rf"^{name}\b.*=", text, re.MULTILINE)}  # it has no other one
        shared = (values.get(id(one)) for one in inside.values() if type(one) in (list, tuple, dict, np.ndarray))
        found |= {name for name in shared if name is not None}
        found |= {*re.findall(r"\w+", text)} & known.keys() if own & {*map(id, inside.values())} else set()
    return frozenset(found)


def _elements(value: Any) -> int:
    if isinstance(value, np.ndarray):
        return value.size
    inner = [*value, *value.values()] if isinstance(value, dict) else value
    rows = isinstance(inner, (list, tuple, set, frozenset))
    return sum(map(_elements, inner)) if rows and len(inner) <= MOST else len(inner) if rows else 1


def _made_into_others(body: Iterable[ast.stmt], known: Mapping[str, Written]) -> set[str]:
    """Names of constants that what is no constant is made of when the file is read, or what is made into that."""
    nodes = {id(one.node) for one in known.values()}
    given = ((one, [id(value) for _, value in _given(one)]) for one in body)
    others = [one for one, values in given if not values or not nodes.issuperset(values)]
    read = {name for one in others for name in _read(one)}
    left = [*read]
    while left:
        one = known.get(left.pop())
        more = set(_read(one.node)) - read if one is not None else set()
        read |= more
        left += more
    return read


def _read(node: ast.AST) -> Iterator[str]:
    """Names that are read as the file is, not when a function of it runs; a default that is one is read again then."""
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        yield node.id
    elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
        given = [one for one in (*node.args.defaults, *node.args.kw_defaults) if one is not None]
        parts = [one for one in given if not isinstance(one, ast.Name)] + [*getattr(node, "decorator_list", ())]
        yield from (name for part in parts for name in _read(part))
    elif not isinstance(node, ast.Assert) and not (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)):
        yield from (name for part in ast.iter_child_nodes(node) for name in _read(part))


def evaluated(node: ast.expr, names: Mapping[str, Any]) -> Any:
    """The value of an expression of these names that does nothing else.

    Raises:
        ValueError: it is none.
        Exception: what it raises.
    """
    if isinstance(node, ast.Constant):
        return node.value
    parts = [*ast.walk(node)]
    inner = {one.id for one in parts if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)}
    if not all(isinstance(one, _PLAIN) and _is_quiet(one, names, inner) for one in parts):
        raise ValueError
    return eval(compile(ast.Expression(node), "<constant>", "eval"), {"__builtins__": {}, **names})


def _is_quiet(node: ast.AST, names: Mapping[str, Any], inner: Iterable[str]) -> bool:
    """Whether nothing of a value of its own, or of a module that is not known, is called."""
    if isinstance(node, ast.Name):
        return node.id in names or node.id in inner
    if isinstance(node, ast.Attribute):
        module = names.get(node.value.id) if isinstance(node.value, ast.Name) else None
        return module is math or (module is np and _OF_NUMPY.fullmatch(node.attr) is not None)
    if isinstance(node, ast.Call) and not isinstance(node.func, ast.Attribute):
        return isinstance(node.func, ast.Name) and callable(names.get(node.func.id))
    return True


def _imported(body: Iterable[ast.stmt]) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for one in body:
        if isinstance(one, ast.Import):
            found.update((part.asname or part.name, _MODULES[part.name]) for part in one.names if part.name in _MODULES)
        elif isinstance(one, ast.ImportFrom) and one.module == "math" and not one.level:
            found.update((part.asname or part.name, getattr(math, part.name, None)) for part in one.names)
    return found


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Names that it gives to something, or whose value it may change; a name for each time."""
    if isinstance(statement, _SCOPES):
        yield statement.name
        inner = (name for node in ast.walk(statement) if isinstance(node, ast.Global) for name in node.names)
        yield from (name for name in inner for _ in "ab")  # how often it is called nobody knows
        return
    times = 1 if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.Import, ast.ImportFrom)) else 2
    for node in ast.walk(statement):
        if isinstance(node, ast.alias):
            yield node.asname or node.name
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield from [node.id] * times
        elif isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            yield from _root(node)
        elif isinstance(node, ast.Call) and isinstance(statement, ast.Expr):
            yield from _root(node.func)


def _root(node: ast.AST) -> Iterator[str]:
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
