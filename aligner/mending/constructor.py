"""What a layer's constructor sets up and its code uses, a number or a table, written in other ways.

`self.after = window // 2` in the place of `(window - 1) // 2`, a window counted in other units.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import islice

from aligner.mending.dropped import dropped
from aligner.mending.figures import counted, operated, rounded, sliced
from aligner.mending.options import switched, untold
from aligner.mending.sources import Edit, Sources
from aligner.mending.spacing import spaced
from aligner.mending.variations import bound, statements, swapped
from aligner.source.written import parsed, walked

STATEMENTS, EACH = 6, 24
"""Statements that are looked at, and ways to write one."""

TABLES = ("Tensor", "Parameter")
"""Calls with a capital letter that build no layer."""


def set_up(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """In the constructor of the class around a line: what the attributes come of that the function there uses."""
    for statement, parameters in _used(sources.text(file), line)[:STATEMENTS]:
        start, end = sources.span(file, statement)
        ways = (spaced, switched, untold, counted, operated, dropped, sliced, rounded, swapped)
        found = (edits for way in ways for edits in way(sources, file, statement.lineno))
        inside = (edits for edits in found if all(start <= edit.start and edit.end <= end for edit in edits))
        yield from _scaled(sources, file, statement, parameters)
        yield from islice(inside, EACH)


def _scaled(
    sources: Sources, file: str, statement: ast.Assign, parameters: Sequence[str]
) -> Iterator[tuple[Edit, ...]]:
    """A number that is also divided by another one that the constructor is given, or is made of that in the place of
    one of its own."""
    value = statement.value
    nodes = [*walked(value)]
    if any(isinstance(node, (ast.Call, ast.Tuple, ast.List, ast.Dict, ast.Constant)) for node in nodes[:1]):
        return
    names = [node for node in nodes if isinstance(node, ast.Name)]
    for other in (one for one in parameters if one not in {name.id for name in names}):
        for sign in ("//", "*"):
            span = sources.span(file, value)
            yield (Edit(file, *span, f"{bound(sources, file, value)} {sign} {other}"),)
        for name in (one for one in names if one.id not in _attributes(statement)):  # self.width = width is no slip
            yield (Edit(file, *sources.span(file, name), other),)


@lru_cache(maxsize=64)
def _used(text: str, line: int) -> Sequence[tuple[ast.Assign, Sequence[str]]]:
    """Assignments of the constructor, those of what is used nearest to the line first; and what it is given."""
    around = [one for one in walked(parsed(text)) if isinstance(one, ast.ClassDef)]
    around = [one for one in around if one.lineno <= line <= (one.end_lineno or 0)]
    functions = [one for each in around[-1:] for one in each.body if isinstance(one, ast.FunctionDef)]
    constructor = next((one for one in functions if one.name == "__init__"), None)
    if constructor is None or constructor.lineno <= line <= (constructor.end_lineno or 0):
        return []
    names = dict.fromkeys(name for one in statements(text, line) for name in _attributes(one))
    made: dict[str, list[ast.Assign]] = {}
    for one in walked(constructor):
        if isinstance(one, ast.Assign) and not _builds(one.value):
            for target in one.targets:
                made.setdefault(ast.unparse(target), []).append(one)
    found: dict[ast.Assign, None] = {}
    for name in names:
        open_ = [f"self.{name}"]
        for each in open_:  # grows by what these come of
            for one in made.get(each, ()):
                open_ += [n.id for n in walked(one.value) if isinstance(n, ast.Name) and n.id not in open_]
                found.setdefault(one)
    given = [one.arg for one in (*constructor.args.args[1:], *constructor.args.kwonlyargs)]
    return [(one, given) for one in found]


def _attributes(statement: ast.stmt) -> Iterator[str]:
    """Names of what a statement takes from the layer, but for what it calls."""
    called = {id(node.func) for node in walked(statement) if isinstance(node, ast.Call)}
    taken = (node for node in walked(statement) if isinstance(node, ast.Attribute) and id(node) not in called)
    yield from (node.attr for node in taken if isinstance(node.value, ast.Name) and node.value.id == "self")


def _builds(value: ast.expr) -> bool:
    """Whether it builds a layer, by how its name is written."""
    name = ast.unparse(value.func).rpartition(".")[2] if isinstance(value, ast.Call) else ""
    return name[:1].isupper() and name not in TABLES
