"""Loops and lists from their other end, told from the text alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import own, statements
from aligner.source.written import walked

_PAIRING = ("zip", "enumerate")


def backwards(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Items by the number of a loop's turn, counted from the last one: x[n - 1 - i] for x[i], x[n - i] for x[i + 1]."""
    for statement in statements(sources.text(file), line):
        loop = statement if isinstance(statement, ast.For) else None
        turns = loop.iter if loop is not None and isinstance(loop.iter, ast.Call) else None
        counts = turns is not None and ast.unparse(turns.func) == "range" and turns.args and not turns.keywords
        if loop is None or turns is None or not counts or not isinstance(loop.target, ast.Name):
            continue
        name, count = loop.target.id, ast.unparse(turns.args[min(1, len(turns.args) - 1)])
        for node in walked(loop):
            index = node.slice if isinstance(node, ast.Subscript) else None
            for part in index.elts if isinstance(index, ast.Tuple) else [] if index is None else [index]:
                used = part.left if isinstance(part, ast.BinOp) and isinstance(part.right, ast.Constant) else part
                if isinstance(used, ast.Name) and used.id == name:
                    for text in (f"{count} - 1 - {name}", f"{count} - {name}"):
                        yield (Edit(file, *sources.span(file, part), text),)


def turned_round(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """What loops go through, from its other end: of several that go together each alone, and all that end alike. What
    is taken from the end of a list from its beginning, and the other way round.
    """
    for statement in statements(sources.text(file), line):
        loops = [statement.iter] if isinstance(statement, ast.For) else []
        nodes = [*own(statement)]
        loops += [node.iter for node in nodes if isinstance(node, ast.comprehension)]
        for loop in loops:
            pairing = isinstance(loop, ast.Call) and isinstance(loop.func, ast.Name) and loop.func.id in _PAIRING
            parts = loop.args if pairing and isinstance(loop, ast.Call) else [loop]
            turned = [(part, edit) for part in parts for edit in _turned(sources, file, part)]
            yield from ((edit,) for _, edit in turned)
            plain = [edit for part, edit in turned if isinstance(part, ast.Name)]
            yield from [tuple(plain)] if len(plain) > 1 else []
        for node in nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "pop":
                start, stop = sources.span(file, node.func)[1], sources.span(file, node)[1]
                first = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
                yield from [(Edit(file, start, stop, "()" if first else "(0)"),)] if first or not node.args else []


def _turned(sources: Sources, file: str, node: ast.expr) -> Iterator[Edit]:
    """What a loop goes through, the other way round."""
    start, stop = sources.span(file, node)
    if isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "::-1":
        yield Edit(file, sources.span(file, node.value)[1], stop, "")
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "reversed" and len(node.args) == 1:
        yield Edit(file, start, stop, sources.words(file, node.args[0]))
    elif isinstance(node, (ast.Name, ast.Attribute)):
        yield Edit(file, stop, stop, "[::-1]")
    elif isinstance(node, ast.Call) and ast.unparse(node.func) == "range":
        yield Edit(file, start, stop, f"reversed({sources.words(file, node)})")
