"""A helper or a layer that the user has and never calls, called where he forgot to: something else stands there.

Only one that computes and nothing else is called: what writes files, or asks the machine, is left alone.
"""

from __future__ import annotations

import ast
import itertools
from collections import Counter
from collections.abc import Container, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, Optional

from aligner.mending.constructor import TABLES
from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import own, statements
from aligner.source.written import parsed, walked

STATEMENTS, ARGUMENTS = 6, 4
"""Statements in which one is called, and values that are tried for an argument that nothing has the name of."""

ENTRIES = ("build", "construct", "forward", "main")
"""Functions that others call."""

_ACTS = "open print input exec eval compile exit quit breakpoint setattr delattr globals"
_ACTING = frozenset(_ACTS.split())
_OUTSIDE = ("os", "sys", "subprocess", "shutil", "pickle", "random")
_STATEMENTS = (ast.Global, ast.Nonlocal, ast.Import, ast.ImportFrom, ast.Yield, ast.YieldFrom, ast.With, ast.Delete)
_WRITING = ("save", "load", "write", "set_", "seed", "system", "remove", "export", "download", "dump", "init", "step")


class _Helper(NamedTuple):
    """What is called, by the code's words for it, with which arguments, and the lines that it stands in itself."""

    words: str
    needed: tuple[str, ...]
    lines: range = range(0)


def unused(sources: Sources, file: str, line: int, names: Mapping[str, Any]) -> Iterator[tuple[Edit, ...]]:
    """Such a helper's call in the place of an expression near this line; `names` are those of its function."""
    for helper in _unused(sources.text(file), line):
        given = [_arguments(one, names) for one in helper.needed]
        calls = itertools.product(*given) if sum(len(some) > 1 for some in given) <= 1 else ()
        texts = [f"{helper.words}({', '.join(some)})" for some in calls]
        for statement in statements(sources.text(file), line)[:STATEMENTS] if texts else ():
            if statement.lineno not in helper.lines:
                for node, text in itertools.product(_places(statement, names), texts):
                    yield (Edit(file, *sources.span(file, node), text),)


def _arguments(name: str, names: Mapping[str, Any]) -> Sequence[str]:
    """What may be given for a parameter: what the code has by its name, or any value."""
    values = [other for other, one in names.items() if hasattr(one, "shape") and other.isidentifier()]
    return [name] if name in names else values[:ARGUMENTS]


def _places(statement: ast.stmt, names: Container[str]) -> Sequence[ast.expr]:
    """What an assignment gives, parts and items of it, what is in brackets, variables."""
    nodes = [node for node in own(statement) if isinstance(node, ast.expr)]
    items = [node for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load)]
    value = [statement.value] if isinstance(statement, (ast.Assign, ast.Return)) and statement.value else []
    plain = [node for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
    slices = [node.slice for node in items if not isinstance(node.slice, (ast.Tuple, ast.Constant))]
    found = [*value, *items, *slices, *(node for node in plain if node.id in names and node.id != "self")]
    return [*dict.fromkeys(found)]


@lru_cache(maxsize=64)
def _unused(text: str, line: int) -> Sequence[_Helper]:
    """Functions of the file that nobody calls, and methods and layers of the class around a line."""
    tree = parsed(text)
    uses = Counter(node.id for node in walked(tree) if isinstance(node, ast.Name))
    uses.update(node.attr for node in walked(tree) if isinstance(node, ast.Attribute))
    uses.update(node.value for node in walked(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str))
    around = [one for one in tree.body if isinstance(one, ast.ClassDef) and one.lineno <= line <= (one.end_lineno or 0)]
    known: dict[str, list[ast.FunctionDef]] = {}
    for node in walked(tree):
        if isinstance(node, ast.FunctionDef):
            known.setdefault(node.name, []).append(node)
    found: list[_Helper] = []
    for owner, body in (("", tree.body), *(("self.", one.body) for one in around)):
        for one in body:
            if isinstance(one, ast.FunctionDef) and not uses[one.name] and _is_helper(one) and _computes(one, known):
                lines = range(one.lineno, (one.end_lineno or one.lineno) + 1)
                found.append(_Helper(owner + one.name, _needed(one, bool(owner)), lines))
    layers = (_built(node) for one in around for node in walked(one))
    runs = {one.name: _run(one) for one in tree.body if isinstance(one, ast.ClassDef)}
    for name, kind in (layer for layer in layers if layer is not None and uses[layer[0]] == 1):
        run = runs.get(kind)
        found += [_Helper(f"self.{name}", _needed(run, True) if run is not None else ("",))]
    return found


def _needed(function: ast.FunctionDef, method: bool) -> tuple[str, ...]:
    known = [*function.args.posonlyargs, *function.args.args]
    return tuple(one.arg for one in known[method : len(known) - len(function.args.defaults)])


def _built(node: ast.AST) -> Optional[tuple[str, str]]:
    """The name of a layer that a constructor builds, and its class, by how that is written."""
    target = node.targets[0] if isinstance(node, ast.Assign) else None
    call = node.value if isinstance(node, ast.Assign) else None
    if not isinstance(target, ast.Attribute) or not isinstance(call, ast.Call) or ast.unparse(target.value) != "self":
        return None
    kind = ast.unparse(call.func).rpartition(".")[2]
    return (target.attr, kind) if kind[:1].isupper() and kind not in TABLES else None


def _run(kind: ast.ClassDef) -> Optional[ast.FunctionDef]:
    """What runs when a layer of this class is called."""
    functions = (one for one in kind.body if isinstance(one, ast.FunctionDef))
    return next((one for one in functions if one.name in ("construct", "forward", "__call__")), None)


def _is_helper(function: ast.FunctionDef) -> bool:
    """Whether it can be called as it is, for what it makes."""
    entry = function.decorator_list or function.name.startswith(("__", *ENTRIES))
    returns = any(isinstance(node, ast.Return) and node.value is not None for node in walked(function))
    return returns and not (entry or function.args.vararg or function.args.kwarg)


def _computes(helper: ast.FunctionDef, known: Mapping[str, Sequence[ast.FunctionDef]]) -> bool:
    """Whether it does nothing that is to be seen, nor any function of the file that it calls."""
    functions = {helper: None}
    left = [helper]
    while left:
        nodes = walked(left.pop())
        calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
        kept = (target for node in nodes if isinstance(node, ast.Assign) for target in node.targets)
        if any(isinstance(one, ast.Attribute) for one in kept) or any(isinstance(node, _STATEMENTS) for node in nodes):
            return False
        if any(map(_acts, calls)):
            return False
        more = [one for call in calls for one in known.get(call.rpartition(".")[2], ()) if one not in functions]
        functions.update(dict.fromkeys(more))
        left += more
    return True


def _acts(call: str) -> bool:
    """Whether a call of this name may do more than compute, to go by the name."""
    first, dot, _ = call.partition(".")
    return (not dot and call in _ACTING) or first in _OUTSIDE or any(word in call for word in _WRITING)
