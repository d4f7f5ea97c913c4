"""Slips between one line and the next: a name of the layer's for one of the function's, steps in the other order, what
a name had before, where parts begin.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence, Set
from typing import Optional

from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import instead, own, statements
from aligner.source.written import parsed, walked

GATHER = 3
"""Arguments of a function that takes rows: of what, which, and along which axis."""


def own_names(sources: Sources, file: str, line: int, both: Set[str]) -> Iterator[tuple[Edit, ...]]:
    """In the function around a line `self.size` as `size`, and the other way round; `both` are names of two things."""
    for statement in statements(sources.text(file), line) if both else ():
        given = {id(node.func) for node in own(statement) if isinstance(node, ast.Call)}
        for node in own(statement):
            if id(node) not in given and _own_name(node) in both:
                yield (Edit(file, *sources.span(file, node), _own_name(node)),)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in both:
                yield (Edit(file, *sources.span(file, node), f"self.{node.id}"),)


def chained(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """y = f(x), z = g(y) as y = g(x), z = f(y): what a line works on may be any side of it."""
    blocks = (getattr(one, "body", None) for one in walked(parsed(sources.text(file))))
    near = {id(one) for one in statements(sources.text(file), line)}
    for block in (block for block in blocks if isinstance(block, list)):
        for one, other in zip(block, block[1:]):
            name = _name(one)
            value = other.value if isinstance(other, (ast.Assign, ast.Return)) else None
            if (
                not name
                or value is None
                or isinstance(value, ast.Name)
                or id(one) not in near
                or not isinstance(one, ast.Assign)
            ):
                continue
            uses = [node for node in walked(value) if isinstance(node, ast.Name) and node.id == name]
            for side in _sides(one.value) if len(uses) == 1 else ():
                inner = instead(sources, file, value, [(uses[0], sources.words(file, side))])
                outer = instead(sources, file, one.value, [(side, name)])
                spans = (sources.span(file, each) for each in (one.value, value))
                yield tuple(Edit(file, *span, text) for span, text in zip(spans, (inner, outer)))


def accumulated(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """x = y as x = x + y, where there is an x before."""
    found = sorted(statements(sources.text(file), line), key=lambda one: one.lineno)
    tree = parsed(sources.text(file))
    around = [one for one in walked(tree) if isinstance(one, ast.FunctionDef) and found and found[0] in walked(one)]
    known = {argument.arg for function in around[-1:] for argument in function.args.args}
    for statement in found:
        name = _name(statement)
        value = statement.value if isinstance(statement, ast.Assign) else None
        read = {node.id for node in walked(value) if isinstance(node, ast.Name)} if value is not None else set()
        if value is not None and name in known - read:
            start = sources.span(file, value)[0]
            plain = not isinstance(value, (ast.IfExp, ast.Lambda, ast.Compare, ast.BoolOp, ast.Tuple))
            yield from [(Edit(file, start, start, f"{name} + "),)] if plain else []
        known |= {name} if name else set()


def offset(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """x[:, :h, :w] as x[:, a : a + h, b : b + w], where a and b were made and nobody reads them."""
    found = sorted(statements(sources.text(file), line), key=lambda one: one.lineno)
    nodes = [node for one in found for node in own(one)]
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    made = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    unread = [*dict.fromkeys(node.id for node in made if node.id not in read and not node.id.startswith("_"))]
    for node in nodes if unread else ():
        parts = node.slice.elts if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Tuple) else []
        open_ = [part for part in parts if isinstance(part, ast.Slice) and part.upper and not part.lower]
        if len(open_) == len(unread):
            ends = (sources.words(file, part.upper) for part in open_ if part.upper is not None)
            texts = [f"{name} : {name} + {end}" for name, end in zip(unread, ends)]
            yield tuple(Edit(file, *sources.span(file, part), text) for part, text in zip(open_, texts))


def _own_name(node: ast.AST) -> str:
    """name of self.name"""
    own = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if own and isinstance(node, ast.Attribute) else ""


def _name(statement: ast.stmt) -> str:
    target = statement.targets[0] if isinstance(statement, ast.Assign) and len(statement.targets) == 1 else None
    return target.id if isinstance(target, ast.Name) else ""


def _sides(value: ast.expr) -> Sequence[ast.expr]:
    """What an expression may be said to work on."""
    if isinstance(value, ast.BinOp):
        return (value.left, value.right)
    if isinstance(value, ast.Call):
        owner = [value.func.value] if isinstance(value.func, ast.Attribute) else []
        plain = [one for one in owner if not isinstance(one, ast.Name) or one.id != "self"]
        return [*[one for one in value.args if not isinstance(one, ast.Starred)][:2], *plain]
    return ()


def of_each(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Rows of a value whose first two axes were joined, found by where they are in each item: where that begins."""
    for statement in statements(sources.text(file), line):
        for node in own(statement):
            parts = _gathered(node)
            whole = _joined(parts[0]) if parts is not None else None
            if parts is None or whole is None:
                continue
            said, text = sources.words(file, whole), sources.words(file, parts[1])
            function = node.func if isinstance(node, ast.Call) else None
            module = ast.unparse(function.value) if isinstance(function, ast.Attribute) else "ops"
            for axes in ("-1, 1", "-1, 1, 1"):
                begin = f"({module}.arange({said}.shape[0]) * {said}.shape[1]).reshape({axes})"
                yield (Edit(file, *sources.span(file, parts[1]), f"{text} + {begin}"),)


def _gathered(node: ast.AST) -> Optional[tuple[ast.expr, ast.expr]]:
    """What rows are taken of, and which."""
    if isinstance(node, ast.Subscript):
        plain = isinstance(node.slice, (ast.Slice, ast.Tuple, ast.Constant))
        return None if plain else (node.value, node.slice)
    if not isinstance(node, ast.Call) or len(node.args) != GATHER:
        return None
    place = {"gather": 1, "index_select": 2}.get(ast.unparse(node.func).rpartition(".")[2])
    return (node.args[0], node.args[place]) if place is not None else None


def _joined(node: ast.expr) -> Optional[ast.expr]:
    """What was reshaped."""
    name = ast.unparse(node.func).rpartition(".") if isinstance(node, ast.Call) else ("", "", "")
    if not isinstance(node, ast.Call) or name[2] not in ("reshape", "view", "flatten"):
        return None
    if isinstance(node.func, ast.Attribute) and name[0] not in ("ops", "mint", "torch", "P", "F"):
        return node.func.value
    return node.args[0] if node.args else None
