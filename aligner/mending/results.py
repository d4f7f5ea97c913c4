"""Results that the code throws away, kept under a name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import own, statements
from aligner.source.written import walked


def kept(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """What the function around this line throws away, under a name that it reads: `x, _ = f(y)` as `x, y = f(y)`, and
    `f(y)` as `y = f(y)`; what goes in first.
    """
    found = statements(sources.text(file), line)
    nodes = [node for one in found for node in own(one)]
    called = {node.func for node in nodes if isinstance(node, ast.Call)}
    names = [node for node in nodes if isinstance(node, ast.Name) and node not in called]
    read = {node.id for node in names if isinstance(node.ctx, ast.Load)}
    made = dict.fromkeys(node.id for node in names if isinstance(node.ctx, ast.Store) and node.id in read)
    for one in found:
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Tuple):
            targets = [node for node in one.targets[0].elts if isinstance(node, ast.Name)]
            given = [node.id for node in walked(one.value) if isinstance(node, ast.Name) and node.id in made]
            others = dict.fromkeys(name for name in (*given, *made) if name not in {node.id for node in targets})
            for node in targets:
                if node.id not in read:
                    yield from ((Edit(file, *sources.span(file, node), name),) for name in others)
        elif isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            start = sources.span(file, one.value)[0]
            plain = [node.id for node in one.value.args if isinstance(node, ast.Name)]
            yield from ((Edit(file, start, start, f"{name} = "),) for name in plain)
