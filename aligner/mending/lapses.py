"""What people forget, where the reference's values do not tell: a variable that nobody reads any more, a condition, a
factor, an operand inside of a call.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from typing import Optional

from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import bound, instead, own, statements
from aligner.source.written import parsed, walked

FACTORS = 12
"""Whole numbers of the code that a number may have to be multiplied with."""

ROOTS = ("sqrt", "rsqrt", "pow")
"""Functions that are given numbers of sizes, as a rule."""


def unread(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Variables that the function around this line makes and never reads, in the place of what it reads after that, the
    next lines first. Sizes are left unread often enough.
    """
    for name, node in _unread(sources.text(file), line):
        yield from ((Edit(file, *sources.span(file, node), name),) for _ in range(_is_small(node)))


def reread(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """The same in the place of what it works out or takes from others, also along one more axis."""
    for name, node in _unread(sources.text(file), line):
        if isinstance(node, (ast.Call, ast.Subscript)):
            yield from (
                (Edit(file, *sources.span(file, node), f"{name}{form}"),) for form in ("", "[None]", "[:, None]")
            )


@lru_cache(maxsize=64)
def _unread(text: str, line: int) -> Sequence[tuple[str, ast.expr]]:
    """Such variables, with expressions behind them."""
    found = statements(text, line)
    nodes = [node for one in found for node in own(one)]
    read = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    made: dict[str, int] = {}
    for one in found:
        if isinstance(one, ast.Assign) and not (isinstance(one.value, ast.Attribute) and one.value.attr == "shape"):
            names = (node.id for target in one.targets for node in walked(target) if isinstance(node, ast.Name))
            made.update({name: one.end_lineno or one.lineno for name in names if name not in read})
    apart = {node.func for node in nodes if isinstance(node, ast.Call)}
    apart |= {node.value for node in nodes if isinstance(node, ast.Attribute)}
    places = [
        (one.lineno - last, name, node)
        for name, last in made.items()
        for one in found
        for node in own(one)
        if one.lineno > last and node not in apart and isinstance(node, ast.expr) and not name.startswith("_")
    ]
    return [place[1:] for place in sorted(places, key=lambda place: place[0])]


def ignored(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """What the function around this line is given and never reads, in the place of what it gives to others; in a loop
    its item, first where others are taken by item as well.
    """
    tree = parsed(sources.text(file))
    around = [one for one in walked(tree) if isinstance(one, ast.FunctionDef)]
    around = [one for one in around if one.lineno < line <= (one.end_lineno or 0)]
    nodes = [node for one in around[-1:] for node in walked(one)]
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    given = [one.arg for function in around[-1:] for one in function.args.args[1:] if one.arg not in read]
    turns = [(loop, _counter(loop)) for loop in nodes if isinstance(loop, (ast.For, ast.ListComp, ast.GeneratorExp))]
    places: list[tuple[int, ast.expr, str]] = []
    for call in (one for one in nodes if isinstance(one, ast.Call)) if given else ():
        at = [name for loop, name in turns if name and any(call is one for one in walked(loop))][-1:]
        items = sum(isinstance(one, ast.Subscript) and ast.unparse(one.slice) in at for one in call.args)
        plain: list[ast.expr] = [one for one in call.args if isinstance(one, (ast.Name, ast.Attribute))]
        for argument in plain:
            places += [(-items, argument, f"{name}[{at[0]}]") for name in given if at]
            places += [(0, argument, name) for name in given]
    for _, argument, text in sorted(places, key=lambda place: place[0]):
        yield (Edit(file, *sources.span(file, argument), text),)


def _counter(loop: ast.AST) -> str:
    """The variable of a loop over whole numbers."""
    part = loop.generators[0] if isinstance(loop, (ast.ListComp, ast.GeneratorExp)) else loop
    target, over = getattr(part, "target", None), getattr(part, "iter", None)
    name = ast.unparse(over.func) if isinstance(over, ast.Call) else ""
    target = target.elts[0] if isinstance(target, ast.Tuple) and name == "enumerate" else target
    return target.id if isinstance(target, ast.Name) and name in ("range", "enumerate") else ""


def _is_small(node: ast.expr) -> bool:
    """Whether this is a variable, a number, or a sum or product of such."""
    if isinstance(node, ast.BinOp):
        return _is_small(node.left) and _is_small(node.right)
    return (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)) or (
        isinstance(node, ast.Constant) and type(node.value) in (int, float)
    )


def handed_on(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """What each turn of a loop around this line hands on to the next, others of what it makes in its place; the last
    that is handed on first."""
    found = statements(sources.text(file), line)
    for loop in (one for one in found if isinstance(one, (ast.For, ast.While))):
        body = [one for one in loop.body if isinstance(one, (ast.Assign, ast.AugAssign))]
        made, there = _stored(body), _stored([one for one in found if one.lineno < loop.lineno])
        for statement in reversed([one for one in body if isinstance(one, ast.Assign)]):
            values = statement.value.elts if isinstance(statement.value, ast.Tuple) else [statement.value]
            targets = statement.targets[0].elts if isinstance(statement.targets[0], ast.Tuple) else statement.targets
            for target, value in zip(targets, values) if len(targets) == len(values) else ():
                if isinstance(target, ast.Name) and target.id in there:
                    for node in (node for node in walked(value) if isinstance(node, ast.Name) and node.id in made):
                        others = sorted(made - {node.id})
                        yield from ((Edit(file, *sources.span(file, node), other),) for other in others)


def taken_on(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """y = f(x) in a loop in which x stays what it was before, as x = y = f(x): the next turn goes on with it."""
    found = statements(sources.text(file), line)
    functions = (node for node in walked(parsed(sources.text(file))) if isinstance(node, ast.FunctionDef))
    around = [one for one in functions if one.lineno <= line <= (one.end_lineno or 0)]
    given = {one.arg for one in around[-1].args.args} - {"self"} if around else set()
    for loop in (one for one in found if isinstance(one, (ast.For, ast.While))):
        there = (given | _stored([one for one in found if one.lineno < loop.lineno])) - _stored([loop])
        for assignment, target in reversed([*_targets(loop)]):
            used = [node.id for node in walked(assignment.value) if isinstance(node, ast.Name)]
            start, _ = sources.span(file, target)
            yield from ((Edit(file, start, start, f"{name} = "),) for name in dict.fromkeys(used) if name in there)


def _stored(some: Sequence[ast.stmt]) -> set[str]:
    names = (node for one in some for node in walked(one) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def grown(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Of a list that a loop makes longer the sum of all items for the last one, and the other way round; and what is
    added to the last one as it is, where there is none yet but those that the loop began with."""
    found = statements(sources.text(file), line)
    begun = {
        one.targets[0].id: len(one.value.elts)
        for one in found
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and isinstance(one.value, ast.List)
    }
    for statement in found:
        nodes = [*own(statement)]
        around = {id(side): one for one in nodes if isinstance(one, ast.BinOp) for side in (one.left, one.right)}
        for node in nodes:
            name = node.value.id if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) else ""
            if isinstance(node, ast.Subscript) and name in begun and ast.unparse(node.slice) == "-1":
                yield (Edit(file, *sources.span(file, node), f"sum({name})"),)
                if (whole := around.get(id(node))) is not None:
                    other = sources.words(file, whole.left if whole.right is node else whole.right)
                    text = f"({sources.words(file, whole)} if len({name}) > {begun[name]} else {other})"
                    yield (Edit(file, *sources.span(file, whole), text),)
            added = ast.unparse(node).partition("sum(")[2][:-1] if isinstance(node, ast.Call) else ""
            if added in begun:
                yield (Edit(file, *sources.span(file, node), f"{added}[-1]"),)


def chosen(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Lists that are made of all numbers, of all but the one that a loop around is at."""
    loops = [
        (one.target.id, one.lineno, one.end_lineno or 0)
        for one in statements(sources.text(file), line)
        if isinstance(one, ast.For) and isinstance(one.target, ast.Name)
    ]
    for statement in statements(sources.text(file), line):
        at = [name for name, first, last in loops if first < statement.lineno <= last]
        for node in own(statement):
            for part in node.generators if isinstance(node, (ast.ListComp, ast.GeneratorExp)) else ():
                if not part.ifs and isinstance(part.target, ast.Name):
                    end = sources.span(file, part.iter)[1]
                    yield from ((Edit(file, end, end, f" if {part.target.id} != {name}"),) for name in at)


def looped(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """One item of a list that a loop takes in each of its turns, as the one that it is at; so a list that is made of
    another one's items."""
    found = statements(sources.text(file), line)
    for loop in (one for one in found if isinstance(one, ast.For)):
        counts = isinstance(loop.iter, ast.Call) and ast.unparse(loop.iter.func) in ("range", "enumerate")
        target = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else loop.target
        inside = (one for one in found if loop.lineno < one.lineno <= (loop.end_lineno or 0))
        for node in (node for one in inside for node in own(one) if isinstance(node, ast.Subscript)):
            if counts and isinstance(target, ast.Name) and _is_item(node.slice):
                yield (Edit(file, *sources.span(file, node.slice), target.id),)
    names = {node.id for one in found for node in own(one) if isinstance(node, ast.Name)}
    turn = next(name for name in ("i", "turn", "turn_") if name not in names or name == "turn_")
    for made in (node for one in found for node in own(one) if isinstance(node, (ast.ListComp, ast.GeneratorExp))):
        part, taken = made.generators[0], [one for one in walked(made.elt) if isinstance(one, ast.Subscript)]
        own_names = {node.id for node in walked(part.target) if isinstance(node, ast.Name)}
        for node in taken if len(made.generators) == 1 and not isinstance(part.iter, ast.Call) else ():
            if _is_item(node.slice) or (isinstance(node.slice, ast.Name) and node.slice.id not in own_names):
                yield tuple(
                    Edit(file, *sources.span(file, place), text)
                    for place, text in (
                        (node.slice, turn),
                        (part.target, f"{turn}, {ast.unparse(part.target)}"),
                        (part.iter, f"enumerate({ast.unparse(part.iter)})"),
                    )
                )


def advanced(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """What is 0 before a loop, used in it and the same in all turns, with what its turns know added in each; what is 1
    times that. The end of a slice that begins there tells first.
    """
    found = statements(sources.text(file), line)
    plain = [one for one in found if isinstance(one, ast.Assign) and len(one.targets) == 1]
    starts = {name: value for one in plain for name, value in _numbers_of(one.targets[0], one.value)}
    for loop in (one for one in found if isinstance(one, ast.For) and not isinstance(one.body[-1], ast.Return)):
        nodes = [node for node in walked(loop) if isinstance(node, ast.Name)]
        made = dict.fromkeys(node.id for node in nodes if isinstance(node.ctx, ast.Store))
        end, column = sources.span(file, loop.body[-1])[1], loop.body[-1].col_offset
        told: list[str] = []
        others: list[str] = []
        for name in dict.fromkeys(node.id for node in nodes if node.id in starts and node.id not in made):
            ends = [one.upper for one in walked(loop) if isinstance(one, ast.Slice) and _is_of(one.lower, name)]
            steps = [ast.unparse(one.right) for one in ends if isinstance(one, ast.BinOp) and _is_of(one.left, name)]
            sign = "+*"[starts[name]]
            told += [f"{name} += {step}" for step in steps]
            others += [f"{name} {sign}= {step}" for step in (*["1"] * (sign == "+"), *made)]
        for text in dict.fromkeys([*told, *others]):
            yield (Edit(file, end, end, f"\n{' ' * column}{text}"),)


def _numbers_of(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, int]]:
    """Names that are given 0 or 1 here."""
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = [*zip(target.elts, value.elts)]
    for one, other in pairs:
        number = other.value if isinstance(other, ast.Constant) else None
        if isinstance(one, ast.Name) and isinstance(number, int) and number in (0, 1):
            yield one.id, int(number)


def _is_of(node: Optional[ast.expr], name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def likewise(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """y = b where the same block has x = f(a, x), as y = f(b, y), and y = g(y) as f(y): what is done to the one is done
    to the other.
    """
    found = [*_given(statements(sources.text(file), line))]
    for column, name, value in found:
        given = value.id if isinstance(value, ast.Name) else ""
        for other in (one for one in found if given and one[0] == column and not isinstance(one[2], ast.Name)):
            used = [node for node in walked(other[2]) if isinstance(node, ast.Name)]
            stored = {node.id for node in used if isinstance(node.ctx, ast.Store)}
            names = dict.fromkeys(node.id for node in used if node.id not in stored)
            for known in (known for known in names if other[1] in names and known != other[1]):
                words = {other[1]: name, known: given}
                parts = [(node, words[node.id]) for node in used if node.id in words]
                yield (Edit(file, *sources.span(file, value), instead(sources, file, other[2], parts)),)
        uses = any(isinstance(node, ast.Name) and node.id == name for node in walked(value))
        for other in (one for one in found if uses and not given and one[0] == column and one[1] != name):
            own_parts = [(n, name) for n in walked(other[2]) if isinstance(n, ast.Name) and n.id == other[1]]
            if own_parts:
                yield (Edit(file, *sources.span(file, value), instead(sources, file, other[2], own_parts)),)


def _given(found: Sequence[ast.stmt]) -> Iterator[tuple[int, str, ast.expr]]:
    """Where variables are given something: how far to the right, which, and what."""
    for one in found:
        target = one.targets[0] if isinstance(one, ast.Assign) else None
        if isinstance(one, ast.Assign) and isinstance(target, ast.Name):
            yield one.col_offset, target.id, one.value


def gathered(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """y = f(x) in a loop as y = y + f(x), or times that: what each turn adds to is there before the loop."""
    for name, value in _overwritten(sources.text(file), line):
        place = sources.span(file, value)
        yield (Edit(file, *place, f"{name} + {sources.words(file, value)}"),)
        yield (Edit(file, *place, f"{name} * {bound(sources, file, value)}"),)


@lru_cache(maxsize=64)
def _overwritten(text: str, line: int) -> Sequence[tuple[str, ast.expr]]:
    """What each turn of a loop around a line gives a variable that has a value before, and that it has not used yet."""
    found: list[tuple[str, ast.expr]] = []
    for node in walked(parsed(text)):
        if not isinstance(node, ast.FunctionDef) or not node.lineno < line <= (node.end_lineno or 0):
            continue
        stored = (each for each in walked(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store))
        named = {each.id: each.lineno for each in sorted(stored, key=lambda each: -each.lineno)}
        for loop in (each for each in walked(node) if isinstance(each, ast.For)):
            used: dict[str, int] = {}
            for each in walked(loop):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
                    used[each.id] = min(each.lineno, used.get(each.id, each.lineno))
            found += [
                (target.id, each.value)
                for each, target in _targets(loop)
                if used.get(target.id, math.inf) > (each.end_lineno or 0)
                and named.get(target.id, loop.lineno) < loop.lineno
            ]
    return found


def _targets(node: ast.AST) -> Iterator[tuple[ast.Assign, ast.Name]]:
    for each in walked(node):
        if isinstance(each, ast.Assign) and isinstance(each.targets[0], ast.Name):
            yield each, each.targets[0]


def _is_item(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def scaled(sources: Sources, file: str, line: int, factors: Sequence[str]) -> Iterator[tuple[Edit, ...]]:
    """Numbers of the function around this line times one of these, or divided by it: those under a root first."""
    found: list[tuple[bool, ast.Constant]] = []
    for statement in statements(sources.text(file), line):
        for node in own(statement):
            rooted = isinstance(node, ast.Call) and ast.unparse(node.func).rpartition(".")[2] in ROOTS
            parts = [*walked(node.args[0])] if isinstance(node, ast.Call) and rooted and node.args else []
            if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div, ast.Pow)):
                parts = [node.left] if isinstance(node.op, ast.Pow) else [node.left, node.right]
            numbers = (part for part in parts if isinstance(part, ast.Constant) and type(part.value) in (int, float))
            found += [(not rooted, number) for number in numbers if number not in (one for _, one in found)]
    for _, number in sorted(found, key=lambda one: one[0]):
        said, place = sources.words(file, number), sources.span(file, number)
        for factor, sign in ((factor, sign) for factor in factors[:FACTORS] for sign in "*/"):
            yield (Edit(file, *place, f"({said} {sign} {factor})"),)


def begun(
    sources: Sources, file: str, line: int, whole: Collection[str], factors: Sequence[str]
) -> Iterator[tuple[Edit, ...]]:
    """Where the function around this line counts from, fewer or more by one of these: variables that are `whole`."""
    for _, name, value in _given(statements(sources.text(file), line)):
        if name in whole and not isinstance(value, ast.Constant):
            said, place = bound(sources, file, value), sources.span(file, value)
            for factor in (one for one in factors[:FACTORS] if one != name):
                for text in (f"max({said} - {factor}, 0)", f"{said} - {factor}", f"{said} + {factor}"):
                    yield (Edit(file, *place, text),)


def carried(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """f(x, y) - z as f(x, y - z), and the other way round; of x, too."""
    for statement in statements(sources.text(file), line):
        for node in own(statement):
            if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Call):
                end, stop = sources.span(file, node.left)[1], sources.span(file, node)[1]
                rest = sources.text(file)[end:stop]
                for argument in node.left.args:
                    at = sources.span(file, argument)[1]
                    yield Edit(file, at, at, rest), Edit(file, end, stop, "")
            elif isinstance(node, ast.Call):
                end = sources.span(file, node)[1]
                for argument in node.args:
                    if isinstance(argument, ast.BinOp):
                        start, stop = sources.span(file, argument.left)[1], sources.span(file, argument)[1]
                        yield Edit(file, start, stop, ""), Edit(file, end, end, sources.text(file)[start:stop])
