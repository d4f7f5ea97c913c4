"""Places counted otherwise: windows and rows of numbers with their ends or without, layers of a list by turn."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Optional

from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import own, statements

WINDOWS = ("hanning", "hamming", "blackman", "bartlett")
"""Of numpy, both ends counted: torch's have the first one only."""

ROWS = ("linspace",)
BETWEEN = 3
"""Arguments of a row of numbers: its ends, and how many there are."""


def spaced(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Windows and rows of numbers around this line without their last end, or both; and with those they lack."""
    for statement in statements(sources.text(file), line):
        cut = {id(node.value): node for node in own(statement) if isinstance(node, ast.Subscript)}
        for call in (node for node in own(statement) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func).rpartition(".")[2]
            place = 0 if name in WINDOWS else BETWEEN - 1 if name in ROWS else None
            if place is None or len(call.args) != place + 1 or isinstance(call.args[-1], ast.Starred):
                continue
            count, whole = call.args[-1], cut.get(id(call), call)
            said = sources.words(file, call)
            start = sources.span(file, call)[0]
            first, last = (at - start for at in sources.span(file, count))
            more = [f"{said[:first]}{ast.unparse(count)} + {by}{said[last:]}{ends}" for by, ends in _CUT]
            plain = _fewer(count) if whole is not call else None
            fewer = [] if plain is None else [said[:first] + plain + said[last:]]
            for text in (*fewer, *(more if whole is call else [])):
                yield (Edit(file, *sources.span(file, whole), text),)
            if name in ROWS and not call.keywords and whole is call:
                yield (Edit(file, *sources.span(file, call), f"{said[:-1]}, endpoint=False)"),)


_CUT = ((1, "[:-1]"), (2, "[1:-1]"), (1, "[1:]"))


def _fewer(count: ast.expr) -> Optional[str]:
    """n of n + 1, n + 2."""
    added = isinstance(count, ast.BinOp) and isinstance(count.op, ast.Add) and isinstance(count.right, ast.Constant)
    return ast.unparse(count.left) if added and isinstance(count, ast.BinOp) else None


def by_turn(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Layers that a loop calls by where it is, by another count of that: each second, from behind, the first once."""
    found = statements(sources.text(file), line)
    loops = [node for one in found for node in (one, *own(one)) if isinstance(node, (ast.For, ast.comprehension))]
    turns = {name.id for loop in loops if isinstance(name := _first(loop.target), ast.Name)}
    calls = [node.func for one in found for node in own(one) if isinstance(node, ast.Call)]
    for node in (node for node in calls if isinstance(node, ast.Subscript)):  # of a table, the table may be wrong
        names = {part.id for part in ast.walk(node.slice) if isinstance(part, ast.Name)} - {"min", "max"}
        (turn,) = names if len(names) == 1 else ("",)
        if turn in turns and not isinstance(node.slice, (ast.Slice, ast.Tuple)):
            written = (part.value for part in ast.walk(node.slice) if isinstance(part, ast.Constant))
            numbers = dict.fromkeys((1, 2, *(number for number in written if type(number) is int and number > 0)))
            ways = [turn, f"max({turn} - 1, 0)", f"-1 - {turn}", "0", "-1"]
            ways[1:1] = [way for n in numbers for way in (f"min({turn}, {n})", f"{turn} % {n}", f"{turn} // {n}")]
            said = ast.unparse(node.slice)
            for text in (way for way in ways if way != said and not way.endswith(("% 1", "// 1"))):
                yield (Edit(file, *sources.span(file, node.slice), text),)


def _first(target: ast.expr) -> ast.expr:
    return target.elts[0] if isinstance(target, ast.Tuple) else target
