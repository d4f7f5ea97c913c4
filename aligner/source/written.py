"""Syntax trees of texts: of a whole file, and, sooner, of the one function in which a text differs from its file."""

from __future__ import annotations

import ast
import linecache
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, Optional, Union

Definition = Union[ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda]


class Changed(NamedTuple):
    """The outermost function outside of which two texts are the same, line by line, as both have it."""

    own: ast.stmt
    new: ast.stmt


def source(file: str) -> str:
    """What stands in a file, or in a notebook's cell; "" where that is not known."""
    return "".join(linecache.getlines(file))


@lru_cache(maxsize=8)
def parsed(text: str) -> ast.Module:
    """The syntax tree, which is not to be changed.

    Raises:
        SyntaxError: it is no Python.
    """
    return ast.parse(text)


@lru_cache(maxsize=4096)
def walked(node: ast.AST) -> Sequence[ast.AST]:
    """All that is in a tree, itself too, the outer before the inner."""
    return tuple(ast.walk(node))


@lru_cache(maxsize=64)
def definitions(node: ast.AST) -> Sequence[Definition]:
    """Functions in a tree, the outer before the inner."""
    kinds = ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda
    return [one for one in ast.walk(node) if isinstance(one, kinds)]


@lru_cache(maxsize=16)
def modules(text: str) -> frozenset[str]:
    """The names of what a file imports.

    Raises:
        SyntaxError: it is no Python.
    """
    imports = (node for node in ast.walk(parsed(text)) if isinstance(node, (ast.Import, ast.ImportFrom)))
    return frozenset((one.asname or one.name).split(".")[0] for node in imports for one in node.names)


@lru_cache(maxsize=256)
def changed(text: str, other: str) -> Optional[Changed]:
    """The one function that is written otherwise in another text, if it is no longer there than here.

    Raises:
        SyntaxError: it is no Python there.
    """
    lines, others = _lines(text), _lines(other)
    if len(lines) != len(others):  # what follows has other places
        return None
    differing = [number for number, (one, its) in enumerate(zip(lines, others), 1) if one != its]
    if not differing:
        return None
    around = (one for one in _outermost(text) if _first(one) <= differing[0] and differing[-1] <= (one.end_lineno or 0))
    own = next(around, None)
    if own is None:
        return None
    block = "\n".join(others[_first(own) - 1 : own.end_lineno])
    inside = own.col_offset > 0
    tree = ast.parse(f"if 1:\n{block}" if inside else block).body
    if inside and len(tree) == 1 and isinstance(tree[0], ast.If) and not tree[0].orelse:
        tree = tree[0].body
    if len(tree) != 1 or type(tree[0]) is not type(own):
        return None
    return Changed(own, ast.increment_lineno(tree[0], _first(own) - 1 - inside))


def _first(function: ast.stmt) -> int:
    """The line on which it begins, its decorators included."""
    decorators: list[ast.expr] = getattr(function, "decorator_list", [])
    return min([function.lineno, *(one.lineno for one in decorators)])


@lru_cache(maxsize=64)
def _lines(text: str) -> Sequence[str]:
    return text.split("\n")


@lru_cache(maxsize=8)
def _outermost(text: str) -> Sequence[ast.stmt]:
    """Functions that stand in no other function."""
    found: list[ast.stmt] = []
    left: list[ast.stmt] = [*parsed(text).body]
    while left:
        node = left.pop()
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append(node)
        else:
            for name in ("body", "orelse", "finalbody"):
                left += [one for one in getattr(node, name, ()) if isinstance(one, ast.stmt)]
    return found


def definition(text: str, line: int) -> Optional[ast.FunctionDef]:
    """The function that a line of a file's text stands in."""
    around = [one for one in functions(text) if one.lineno < line <= (one.end_lineno or 0)]
    return max(around, key=lambda one: one.lineno, default=None)


@lru_cache(maxsize=32)
def functions(text: str) -> Sequence[ast.FunctionDef]:
    """All in it."""
    return [one for one in walked(parsed(text)) if isinstance(one, ast.FunctionDef)]


def optional(function: ast.FunctionDef) -> Iterator[tuple[str, ast.Constant]]:
    """A function's parameters that have a constant as a default."""
    plain, defaults = [*function.args.posonlyargs, *function.args.args], function.args.defaults
    pairs = [*zip(plain[len(plain) - len(defaults) :], defaults)]
    pairs += zip(function.args.kwonlyargs, function.args.kw_defaults)  # type: ignore[arg-type]  # None is no constant
    yield from ((one.arg, default) for one, default in pairs if isinstance(default, ast.Constant))
