"""What a function does too much: a step, a factor, something added, which the reference does without."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Optional

from aligner.mending.halves import worked_on
from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import bound, own, statements
from aligner.source.written import modules, parsed, walked


def dropped(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """In the function around a line, the nearest statements first: one that changes a variable left out, one side of a
    sum or a product alone, what a call works on in the place of what it makes of it.
    """
    text = sources.text(file)
    found = statements(text, line)
    inside = {id(node) for one in found for node in walked(one)}
    blocks = [getattr(one, part, None) for one in (*found, *_around(text, line)) for part in ("body", "orelse")]
    after = {id(one): other for each in blocks if isinstance(each, list) for one, other in zip(each, each[1:])}
    for one in found:
        if _changes(one) and id(one) in after and id(after[id(one)]) in inside:
            yield (Edit(file, sources.span(file, one)[0], sources.span(file, after[id(one)])[0], ""),)
        for node in own(one):
            kept: list[Optional[ast.expr]] = [node.left, node.right] if isinstance(node, ast.BinOp) else []
            kept += [worked_on(node, modules(text))[0]] if isinstance(node, ast.Call) else []
            for part in kept:
                if part is not None and not isinstance(part, (ast.Constant, ast.Starred, ast.List, ast.Tuple)):
                    start, end = sources.span(file, node)
                    wide = _is_grouped(text, start, end) and not isinstance(part, ast.BinOp)
                    yield (Edit(file, start - wide, end + wide, bound(sources, file, part)),)


def _is_grouped(text: str, start: int, end: int) -> bool:
    """Whether what stands there is in parentheses that are no call's."""
    before = text[start - 2 : start - 1]
    return text[start - 1 : start] == "(" and text[end : end + 1] == ")" and not (before.isalnum() or before in "_)]")


def _around(text: str, line: int) -> list[ast.FunctionDef]:
    """The innermost function around a line, whose statements are told from its first one's parents."""
    functions = [one for one in walked(parsed(text)) if isinstance(one, ast.FunctionDef)]
    return [one for one in functions if one.lineno < line <= (one.end_lineno or 0)][-1:]


def _changes(statement: ast.stmt) -> bool:
    """Whether it gives a variable a value that is made of the one that it had."""
    if isinstance(statement, ast.AugAssign):
        return True
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return False
    name = statement.targets[0].id
    return any(isinstance(node, ast.Name) and node.id == name for node in walked(statement.value))
