"""Other ways to write a function that people confuse, told from its text alone: which of them is right, a run tells.

Statements in another order, variables under each other's names, operands and arguments in each other's places.
"""

from __future__ import annotations

import ast
import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Optional

from aligner.mending.sources import Edit, Sources
from aligner.source.written import parsed, walked

ARGUMENTS = 4
"""Of a call's arguments those that are exchanged with each other."""

_TURNABLE = (ast.Sub, ast.Div, ast.MatMult, ast.Mod, ast.Pow)


def exchanged(sources: Sources, file: str, lines: Collection[int]) -> Iterator[tuple[Edit, ...]]:
    """Two statements in each other's places that follow each other and share a variable, one of them with code on
    these lines.
    """
    for one, other in _neighbours(sources.text(file)):
        if any(each.lineno <= line <= (each.end_lineno or 0) for each in (one, other) for line in lines):
            spans = [sources.span(file, each) for each in (one, other)]
            texts = [sources.words(file, each) for each in (other, one)]
            yield tuple(Edit(file, *span, text) for span, text in zip(spans, texts))


def renamed(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Two variables that are used from this line on, and that are made beside each other, under each other's name;
    those that are made last first.
    """
    for one, other in _made_beside(sources.text(file), line):
        first, second = (sources.span(file, each) for each in (one, other))
        yield Edit(file, *first, other.id), Edit(file, *second, one.id)


def swapped(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """What a statement works on in each other's places: neighbours in a list, arguments, two variables wherever they
    stand in it; and a call inside another call done the other way round.
    """
    for node in _in_statement(sources.text(file), line):
        if isinstance(node, (ast.Tuple, ast.List)):  # also names that a value is taken apart into
            for pair in zip(node.elts, node.elts[1:]):
                yield from _places(sources, file, [pair])
            yield from _rotated(sources, file, node.elts)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Call) and node.args[0].args:
            yield _inside_out(sources, file, node, node.args[0])
        plain = (ast.Name, ast.Attribute)  # two of these are exchanged wherever they stand
        pairs = [*itertools.combinations(node.args[:ARGUMENTS], 2)] if isinstance(node, ast.Call) else []
        yield from _places(sources, file, [two for two in pairs if not all(isinstance(one, plain) for one in two)])
        if isinstance(node, ast.BinOp) and isinstance(node.op, _TURNABLE):
            yield from _places(sources, file, [(node.left, node.right)], bound)
    leaves: dict[str, list[ast.expr]] = {}
    for node in _leaves(sources.text(file), line):
        leaves.setdefault(ast.unparse(node), []).append(node)
    for one, other in itertools.combinations(leaves, 2):
        texts = [(node, other) for node in leaves[one]] + [(node, one) for node in leaves[other]]
        yield tuple(Edit(file, *sources.span(file, node), text) for node, text in texts)


def _rotated(sources: Sources, file: str, elements: Sequence[ast.expr]) -> Iterator[tuple[Edit, ...]]:
    """The first of three or more behind the others, or the last before them: a quaternion's real part."""
    words = [sources.words(file, one) for one in elements]
    for others in (words[1:] + words[:1], words[-1:] + words[:-1]) if len({*words}) == len(words) > 2 else ():
        if not any(isinstance(one, ast.Starred) for one in elements):
            yield tuple(Edit(file, *sources.span(file, one), text) for one, text in zip(elements, others))


def _places(
    sources: Sources,
    file: str,
    pairs: Sequence[tuple[ast.expr, ast.expr]],
    said: Callable[[Sources, str, ast.expr], str] = Sources.words,
) -> Iterator[tuple[Edit, ...]]:
    for one, other in pairs:
        texts = said(sources, file, other), said(sources, file, one)
        if texts[0] != texts[1] and not any(isinstance(node, ast.Starred) for node in (one, other)):
            yield tuple(Edit(file, *sources.span(file, node), text) for node, text in zip((one, other), texts))


def _inside_out(sources: Sources, file: str, outer: ast.Call, inner: ast.Call) -> tuple[Edit, ...]:
    """f(g(x, 1), 2) as g(f(x, 2), 1)."""

    def rest(call: ast.Call) -> str:
        own = [*call.args[1:], *(keyword.value for keyword in call.keywords)]
        names = [""] * len(call.args[1:]) + [f"{keyword.arg}=" if keyword.arg else "**" for keyword in call.keywords]
        return "".join(f", {name}{sources.words(file, node)}" for name, node in zip(names, own))

    functions = [sources.words(file, call.func) for call in (outer, inner)]
    text = f"{functions[1]}({functions[0]}({sources.words(file, inner.args[0])}{rest(outer)}){rest(inner)})"
    return (Edit(file, *sources.span(file, outer), text),)


def moved(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """f(x * a) as f(x) * a, and the other way round."""
    for node in _in_statement(sources.text(file), line):
        if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.BinOp):
            for inner, other in ((node.args[0].left, node.args[0].right), (node.args[0].right, node.args[0].left)):
                sign = _sign(sources, file, node.args[0])
                said = _with(sources, file, node, sources.words(file, inner))
                yield (Edit(file, *sources.span(file, node), f"({said} {sign} {bound(sources, file, other)})"),)
        elif isinstance(node, ast.BinOp):
            for call, other in ((node.left, node.right), (node.right, node.left)):
                if isinstance(call, ast.Call) and call.args and not isinstance(call.args[0], ast.Starred):
                    sign = _sign(sources, file, node)
                    first = f"{bound(sources, file, call.args[0])} {sign} {bound(sources, file, other)}"
                    yield (Edit(file, *sources.span(file, node), _with(sources, file, call, first)),)


def turned_out(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """f(x + g(x)) as x + g(f(x)), and the other way round: a norm before what it stands behind."""
    for node in _in_statement(sources.text(file), line):
        outer = node.args[0] if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords else node
        if not isinstance(outer, ast.BinOp):
            continue
        for base, other in ((outer.left, outer.right), (outer.right, outer.left)):
            if not isinstance(base, ast.Name):
                continue
            uses = [one for one in walked(other) if isinstance(one, ast.Name) and one.id == base.id]
            calls = [one for one in walked(other) if isinstance(one, ast.Call) and _is_of(one, base.id)]
            sign = _sign(sources, file, outer)
            if outer is not node and isinstance(node, ast.Call) and uses:
                function = sources.words(file, node.func)
                inner = instead(sources, file, other, [(one, f"{function}({base.id})") for one in uses])
                yield (Edit(file, *sources.span(file, node), f"{base.id} {sign} {inner}"),)
            elif outer is node and len(calls) == len(uses) == 1:
                inner = instead(sources, file, other, [(calls[0], base.id)])
                yield (
                    Edit(file, *sources.span(file, node), f"{ast.unparse(calls[0].func)}({base.id} {sign} {inner})"),
                )


def _is_of(call: ast.Call, name: str) -> bool:
    """Whether it is given this variable alone."""
    first = call.args[0] if len(call.args) == 1 and not call.keywords else None
    return isinstance(first, ast.Name) and first.id == name


def instead(sources: Sources, file: str, node: ast.expr, others: Sequence[tuple[ast.expr, str]]) -> str:
    """The source of an expression with others in the places of some of its parts."""
    start, stop = sources.span(file, node)
    text = sources.text(file)[start:stop]
    for part, said in sorted(others, key=lambda one: -sources.span(file, one[0])[0]):
        first, last = sources.span(file, part)
        text = text[: first - start] + said + text[last - start :]
    return text


def _with(sources: Sources, file: str, call: ast.Call, first: str) -> str:
    """The source of a call that is given something else first."""
    (start, end), (one, other) = sources.span(file, call), sources.span(file, call.args[0])
    text = sources.text(file)
    return f"{text[start:one]}{first}{text[other:end]}"


def bound(sources: Sources, file: str, node: ast.expr) -> str:
    said = sources.words(file, node)
    return f"({said})" if isinstance(node, (ast.BinOp, ast.UnaryOp, ast.IfExp, ast.Compare, ast.BoolOp)) else said


def _sign(sources: Sources, file: str, node: ast.BinOp) -> str:
    between = sources.text(file)[sources.span(file, node.left)[1] : sources.span(file, node.right)[0]]
    return between.strip("() \n\\")


def drawn_out(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """x = x + g(f(x)) as x = f(x), then x = x + g(x): what is added is what was made first."""
    for statement, call, name in _nested(sources.text(file), line):
        start, said = sources.span(file, statement)[0], sources.words(file, call)
        text = f"{name} = {said}\n" + " " * statement.col_offset
        yield Edit(file, start, start, text), Edit(file, *sources.span(file, call), name)


@lru_cache(maxsize=64)
def _nested(text: str, line: int) -> Sequence[tuple[ast.stmt, ast.Call, str]]:
    """Calls in the statement on a line whose first argument is a variable that the statement uses outside of it too."""
    statement, nodes = _statement(text, line), _in_statement(text, line)
    if not isinstance(statement, (ast.Assign, ast.Return)):
        return []
    found: list[tuple[ast.stmt, ast.Call, str]] = []
    for call in (node for node in nodes if isinstance(node, ast.Call) and node.args):
        first, inside = call.args[0], {id(node) for node in walked(call)}
        used = (node for node in nodes if isinstance(node, ast.Name) and id(node) not in inside)
        if isinstance(first, ast.Name) and any(node.id == first.id for node in used if isinstance(node.ctx, ast.Load)):
            found.append((statement, call, first.id))
    return found


def drawn_in(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """y = f(x), then z = g(y) + y as z = g(f(x)) + x: what is added is what there was before. The last ones first. And
    x = f(x), then z = g(x[0], x[1]) as z = g(f(x[0]), x[1]): a part alone is meant.
    """
    for statement, target, call, first, use in _used_twice(sources.text(file), line):
        said, after = bound(sources, file, call), sources.span(file, use)
        start, end = sources.span(file, statement)
        if target == first:
            last = sources.text(file).find("\n", end) + 1
            rest = last + statement.col_offset  # the next statement begins there, as far to the right
            own = Edit(file, start, rest, "")
        else:
            own = Edit(file, *sources.span(file, call), first)
        yield own, Edit(file, *after, said)
        part = _part(sources.text(file), use)
        if target == first and part is not None:
            given = [(one, sources.words(file, part)) for one in _names(call) if one.id == first]
            yield own, Edit(file, *sources.span(file, part), instead(sources, file, call, given))


def _part(text: str, name: ast.Name) -> Optional[ast.Subscript]:
    """The item or slice that is taken of a variable there."""
    parts = (one for one in walked(parsed(text)) if isinstance(one, ast.Subscript) and one.value is name)
    return next(parts, None)


@lru_cache(maxsize=64)
def _used_twice(text: str, line: int) -> Sequence[tuple[ast.stmt, str, ast.expr, str, ast.Name]]:
    """Calls that are given a variable and get a name, or what gives a variable another value of its own, and each use
    of that in the next statement.
    """
    found: list[tuple[ast.stmt, str, ast.expr, str, ast.Name]] = []
    for node in walked(parsed(text)):
        if not isinstance(node, (ast.FunctionDef, ast.For)) or not node.lineno < line <= (node.end_lineno or 0):
            continue
        for one, other in zip(node.body, node.body[1:]):
            if one.lineno > line or other.lineno != (one.end_lineno or 0) + 1 or not isinstance(one, ast.Assign):
                continue
            target, value = one.targets[0], one.value
            first = value.args[0] if isinstance(value, ast.Call) and value.args else None
            named = {each.id for each in walked(value) if isinstance(each, ast.Name)}
            if isinstance(target, ast.Name) and (isinstance(first, ast.Name) or target.id in named):
                name = target.id if target.id in named or not isinstance(first, ast.Name) else first.id
                uses = (each for each in own(other) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load))
                found += [(one, target.id, value, name, each) for each in uses if each.id == target.id]
    return sorted(found, key=lambda each: -each[0].lineno)


def _names(node: ast.AST) -> Iterator[ast.Name]:
    return (each for each in walked(node) if isinstance(each, ast.Name))


def repeated(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """A variable that another one was given to once, given it again further down: a residual that was forgotten."""
    for assign, later in _again(sources.text(file), line):
        start = sources.span(file, later)[0]
        said = sources.words(file, assign)
        yield (Edit(file, start, start, said + "\n" + " " * later.col_offset),)


@lru_cache(maxsize=64)
def _again(text: str, line: int) -> Sequence[tuple[ast.stmt, ast.stmt]]:
    found: list[tuple[ast.stmt, ast.stmt]] = []
    for node in walked(parsed(text)):
        block = getattr(node, "body", None)
        if not isinstance(node, (ast.FunctionDef, ast.For)) or not isinstance(block, list):
            continue
        for number, one in enumerate(block):
            plain = isinstance(one, ast.Assign) and isinstance(one.value, ast.Name)
            if plain and node.lineno < line <= (node.end_lineno or 0):
                found += [(one, later) for later in block[number + 2 :] if later.lineno <= line]
    return sorted(found, key=lambda pair: -pair[1].lineno)


@lru_cache(maxsize=64)
def _in_statement(text: str, line: int) -> Sequence[ast.AST]:
    """All expressions of the statement on a line."""
    statement = _statement(text, line)
    return [] if statement is None else [*own(statement)]


@lru_cache(maxsize=256)
def _statement(text: str, line: int) -> Optional[ast.stmt]:
    """The innermost one on a line."""
    around = (one for one in walked(parsed(text)) if isinstance(one, ast.stmt))
    around = (one for one in around if one.lineno <= line <= (one.end_lineno or 0))
    return max(around, key=lambda one: one.lineno, default=None)


@lru_cache(maxsize=64)
def _leaves(text: str, line: int) -> Sequence[ast.expr]:
    """Variables, attributes and items by a number of the statement on a line, but for what is called and what these
    are taken of.
    """
    nodes = _in_statement(text, line)
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    items = [node for node in nodes if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)]
    owners = {id(node.value) for node in nodes if isinstance(node, ast.Attribute) or node in items}
    return [
        node
        for node in nodes
        if isinstance(node, (ast.Name, ast.Attribute)) or node in items
        if isinstance(node.ctx, ast.Load) and id(node) not in called | owners
    ]


def renamed_own(
    sources: Sources, file: str, line: int, others: Mapping[str, Sequence[str]]
) -> Iterator[tuple[Edit, ...]]:
    """What a layer keeps and the function around this line uses, by its name with others of its kind: two of them in
    each other's places, and another one instead.
    """
    used: dict[str, list[ast.Attribute]] = {}
    for statement in statements(sources.text(file), line):
        for node in own(statement):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
                used.setdefault(node.attr, []).append(node)
    for one, other in itertools.combinations(used, 2):
        if other in others.get(one, ()):
            pairs = [(node, other) for node in used[one]] + [(node, one) for node in used[other]]
            yield tuple(Edit(file, *sources.span(file, node), f"self.{name}") for node, name in pairs)
    for name, nodes in used.items():
        for node in nodes:
            for other in others.get(name, ()):
                yield (Edit(file, *sources.span(file, node), f"self.{other}"),)


def own(statement: ast.AST) -> Iterator[ast.AST]:
    """What stands in a statement, without the statements inside it."""
    for node in ast.iter_child_nodes(statement):
        if not isinstance(node, ast.stmt):
            yield node
            yield from own(node)


@lru_cache(maxsize=32)
def statements(text: str, line: int) -> Sequence[ast.stmt]:
    """Of the innermost function around a line, by how far they are from it."""
    around = [one for one in walked(parsed(text)) if isinstance(one, ast.FunctionDef)]
    around = [one for one in around if one.lineno < line <= (one.end_lineno or 0)]
    found = [one for one in walked(around[-1]) if isinstance(one, ast.stmt)][1:] if around else []
    return sorted(found, key=lambda one: (abs(one.lineno - line), one.lineno))


@lru_cache(maxsize=32)
def _made_beside(text: str, line: int) -> Sequence[tuple[ast.Name, ast.Name]]:
    tree = parsed(text)
    found: list[tuple[ast.Name, ast.Name]] = []
    for function in walked(tree):
        if not isinstance(function, ast.FunctionDef) or not function.lineno < line <= (function.end_lineno or 0):
            continue
        steps = [node for node in walked(function) if isinstance(node, ast.Assign) and node.lineno <= line]
        uses = [node for node in walked(function) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)]
        used = {node.id for node in uses if node.lineno >= line}
        made = [node for step in steps for node in walked(step.targets[0]) if isinstance(node, ast.Name)]
        made = sorted((node for node in made if node.id in used), key=lambda node: (node.lineno, node.col_offset))
        found += [(one, other) for one, other in zip(made, made[1:]) if one.id != other.id]
    return sorted(found, key=lambda pair: -pair[1].lineno)


@lru_cache(maxsize=32)
def _neighbours(text: str) -> Sequence[tuple[ast.stmt, ast.stmt]]:
    """Statements of functions that follow each other and may be run the other way round, the inner ones first."""
    found: list[tuple[ast.stmt, ast.stmt]] = []
    named = [(node.lineno, node.id) for node in _names(parsed(text)) if isinstance(node.ctx, ast.Store)]
    for node in walked(parsed(text)):
        for name in ("body", "orelse") if not isinstance(node, (ast.Module, ast.ClassDef)) else ():
            block = getattr(node, name, None)
            pairs = zip(block, block[1:]) if isinstance(block, list) else ()
            found += [(one, other) for one, other in pairs if _may_turn(one, other, named)]
    return sorted(found, key=lambda pair: (pair[1].end_lineno or 0) - pair[0].lineno)


def _may_turn(one: ast.stmt, other: ast.stmt, named: Sequence[tuple[int, str]]) -> bool:
    """Whether one makes a variable anew that the other uses, and there is one before either: `named` has the lines."""
    if any(isinstance(each, (ast.Return, ast.FunctionDef, ast.Import, ast.ImportFrom)) for each in (one, other)):
        return False
    (made, used), (later, taken) = _variables(one), _variables(other)
    known = used | {name for line, name in named if line < one.lineno}
    return bool(made & taken or used & later) and made & taken <= known


def _variables(statement: ast.stmt) -> tuple[set[str], set[str]]:
    """Names that it gives a value, and names that it uses."""
    names = [node for node in walked(statement) if isinstance(node, ast.Name)]
    stored = {node.id for node in names if isinstance(node.ctx, ast.Store)}
    changed = isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name)
    return stored, {node.id for node in names if isinstance(node.ctx, ast.Load)} | (stored if changed else set())
