"""Items that one line takes of a value, along another axis, told from the text alone."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import own, statements

AXES = 3
"""How far an axis is moved."""


def columns(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """x[:, :, 0], x[:, :, 1] for x[:, 0], x[:, 1]: all that a statement takes of a value in this way, along another of
    its axes.
    """
    for statement in statements(sources.text(file), line):
        groups: dict[tuple[str, tuple[str, ...]], list[ast.Subscript]] = {}
        for node in own(statement):
            if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
                parts = _parts(node)
                if _is_item(parts[-1]) and all(ast.unparse(one) in (":", "...") for one in parts[:-1]):
                    key = ast.unparse(node.value), tuple(ast.unparse(one) for one in parts[:-1])
                    groups.setdefault(key, []).append(node)
        for (_, before), nodes in groups.items():
            for other in _others(before) if len({ast.unparse(node.slice) for node in nodes}) > 1 else ():
                yield tuple(
                    Edit(file, *sources.span(file, node.slice), ", ".join((*other, ast.unparse(_parts(node)[-1]))))
                    for node in nodes
                )


def _others(before: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """What may stand before an item, the nearest axes first."""
    count = len(before) if "..." not in before else AXES
    known = (*before,)
    ways = [(":",) * number for number in sorted(range(AXES + 1), key=lambda number: (abs(number - count), number))]
    yield from (way for way in [*ways, ("...",)] if way != known)


def _parts(node: ast.Subscript) -> Sequence[ast.expr]:
    return node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]


def _is_item(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int
