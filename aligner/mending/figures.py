"""Other ways to write the numbers of a function, told from its text alone: which of them is right, a run tells.

Numbers that are one off, other signs, ends of slices that are counted from the other side, what is rounded another way.
"""

from __future__ import annotations

import ast
import builtins
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Optional

from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import own, statements
from aligner.source.written import walked
from aligner.words.spelling import bracketed, number_text

POWERS = (1, 2, 3)
"""A side, an area, a volume."""

SAME = 1e-6
"""Numbers whose ratio is nearer to one than this are written as one."""


def counted(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Whole numbers of the function around this line that are one off, the nearest lines first: one that is written,
    all equal ones of a statement, an end of a range, what a division is done of, or by; a sign; a limit that counts or
    not, or from the other side.
    """
    for statement in statements(sources.text(file), line):
        groups: dict[tuple[str, int], list[tuple[ast.AST, Sequence[str]]]] = {}
        for node, texts in _off_by_one(statement):
            key = "1" if isinstance(node, ast.BinOp) and _adds_one(node) else sources.words(file, node)
            groups.setdefault((key, len(texts)), []).append((node, texts))
        for (said, _), nodes in groups.items():
            for together in [nodes] * (len(nodes) > 1) + [[one] for one in nodes]:
                for way in range(len(together[0][1])):
                    texts = [texts[way].format(said) for _, texts in together]
                    yield tuple(Edit(file, *sources.span(file, n), text) for (n, _), text in zip(together, texts))


def _off_by_one(statement: ast.AST) -> Iterator[tuple[ast.AST, Sequence[str]]]:
    """Expressions, and what may stand in their place."""
    lone = [one for one in own(statement) if isinstance(one, ast.BinOp) and _adds_one(one)]
    ones = {id(one.right) for one in lone}
    negative = {id(one.operand) for one in own(statement) if isinstance(one, ast.UnaryOp)}
    calls = (one for one in own(statement) if isinstance(one, ast.Call) and _name(one) in _LAYING)
    layouts = (one.args for one in calls if len(one.args) >= _LAYING[_name(one)])
    laid = {id(node) for args in layouts for each in args for node in ast.walk(each)}
    yield from ((one, [_plain(one.left), f"{_plain(one.left)} {_SIGN_OF[type(one.op)]} 2"]) for one in lone)
    for node in own(statement):
        given = [*node.args, *(one.value for one in node.keywords)] if isinstance(node, ast.Call) else []
        given += node.elts if isinstance(node, ast.Tuple) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id not in _PYTHONS:
            yield from ((one, ["{} + 1", "{} - 1"]) for one in node.args if isinstance(one, ast.Name))
        yield from ((one, ["-{}"]) for one in given if isinstance(one, ast.Attribute) and _is_named(one))
        number = _whole(node)
        if number is not None and abs(number) < 10:
            yield from [(node, [str(number - 1), str(number + 1)])] if id(node) not in ones | negative | laid else []
        elif isinstance(node, ast.Call) and _name(node) in ("range", "arange"):
            ends = [one for one in node.args[:2] if not isinstance(one, (ast.Constant, ast.Starred))]
            yield from ((one, ["{} + 1", "{} - 1"]) for one in ends if _name(node) == "range")
            yield from _counted_from(node)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            yield node.left, ["({} - 1)", "({} + 1)"]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and _is_named(node.right):
            yield node.right, ["({} - 1)"]  # a mean of what is free
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub) and _is_named(node.operand):
            yield node, [ast.unparse(node.operand)]
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            sides = _plain(node.left), _plain(node.comparators[0])
            signs = [signs[type(node.ops[0])] for signs in (_STRICT, _TURNED, _EQUAL) if type(node.ops[0]) in signs]
            yield from [(node, [f" {sign} ".join(sides) for sign in signs])] if signs else []


def _whole(node: ast.AST) -> Optional[int]:
    """The whole number that is written, with its sign."""
    negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    inner = node.operand if isinstance(node, ast.UnaryOp) and negative else node
    number = inner.value if isinstance(inner, ast.Constant) and type(inner.value) is int else None
    return number if number is None or not negative else -number


def _name(call: ast.Call) -> str:
    """The last word of what is called."""
    return str(getattr(call.func, "attr", getattr(call.func, "id", "")))


def _counted_from(node: ast.Call) -> Iterator[tuple[ast.AST, Sequence[str]]]:
    """As many numbers, from one on and not from nothing; or the other way round."""
    said = [ast.unparse(one) for one in node.args]
    if len(said) == 1 and not isinstance(node.args[0], (ast.Constant, ast.Starred)):
        yield node.args[0], [f"1, {more(node.args[0], 1, said[0])}"]
    elif len(said) == 2 and said[0] == "1":
        yield node, [f"{ast.unparse(node.func)}({more(node.args[1], -1, said[1])})"]


def _is_named(node: ast.expr) -> bool:
    """A variable, or an attribute of the layer's."""
    return isinstance(node.value if isinstance(node, ast.Attribute) else node, ast.Name)


def valued(
    sources: Sources, file: str, line: int, numbers: Sequence[float], attributes: Mapping[str, float]
) -> Iterator[tuple[Edit, ...]]:
    """Numbers of the function around this line that are no whole ones, and those that it has by the name of an
    attribute, as one of these, the nearest size first.
    """
    nodes = [node for statement in statements(sources.text(file), line) for node in own(statement)]
    written: list[tuple[ast.expr, float]] = [
        (node, node.value)
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and node.value > 0
    ]
    named = ((node, ast.unparse(node)) for node in nodes if isinstance(node, ast.Attribute))
    written += [(node, attributes[name]) for node, name in named if attributes.get(name, 0.0) > 0.0]
    pairs = [(node, number, abs(math.log(number / value))) for node, value in written for number in numbers]
    for node, number, apart in sorted(pairs, key=lambda pair: pair[2]):
        if apart > SAME:
            yield (Edit(file, *sources.span(file, node), number_text(number)),)


def operated(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Other signs in the function around this line, the nearest lines first: one that is written, all equal ones of a
    statement.
    """
    for statement in statements(sources.text(file), line):
        places: dict[str, list[tuple[int, int]]] = {}
        for node in own(statement):
            if isinstance(node, ast.BinOp):
                start, stop = sources.span(file, node.left)[1], sources.span(file, node.right)[0]
                found = _SIGN.search(sources.text(file)[start:stop])
                if found is not None:
                    place = start + found.start(), start + found.end()
                    places.setdefault(found.group(), []).append(place)
        for sign, some in places.items():
            for other in _OTHERS.get(sign, ()):
                for together in [some] * (len(some) > 1) + [[one] for one in some]:
                    yield tuple(Edit(file, *place, other) for place in sorted(together))
        yield from _assigned(sources, file, statement)
        yield from _taken_apart(sources, file, statement)


def raised(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Another power of what is given a name, in the function around this line: the area of a window for its side."""
    for statement in statements(sources.text(file), line):
        value = statement.value if isinstance(statement, (ast.Assign, ast.AnnAssign)) else None
        power = value.right if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Pow) else None
        base = value.left if isinstance(value, ast.BinOp) and power is not None else value
        known = power.value if isinstance(power, ast.Constant) else 1 if power is None else None
        if value is not None and isinstance(base, (ast.Name, ast.Attribute)) and known in POWERS:
            words = sources.words(file, base)
            texts = (words if other == 1 else f"{words}**{other}" for other in POWERS if other != known)
            yield from ((Edit(file, *sources.span(file, value), text),) for text in texts)


def _taken_apart(sources: Sources, file: str, statement: ast.stmt) -> Iterator[tuple[Edit, ...]]:
    """A number of rows and columns, whose other part is taken: i % columns for i // rows."""
    nodes = [*own(statement)]
    sizes = dict.fromkeys(
        ast.unparse(side)
        for node in nodes
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult)
        for side in (node.left, node.right)
        if isinstance(side, (ast.Name, ast.Attribute))
    )
    for node in nodes:
        parted = isinstance(node, ast.BinOp) and isinstance(node.op, (ast.FloorDiv, ast.Mod))
        if isinstance(node, ast.BinOp) and parted and isinstance(node.right, (ast.Name, ast.Attribute)):
            start, stop = sources.span(file, node.left)[1], sources.span(file, node.right)
            begin = start + sources.text(file)[start : stop[0]].find("//" if isinstance(node.op, ast.FloorDiv) else "%")
            other = "%" if isinstance(node.op, ast.FloorDiv) else "//"
            names = (name for name in sizes if name != ast.unparse(node.right))
            yield from ((Edit(file, begin, stop[1], f"{other} {name}"),) for name in names)


def _assigned(sources: Sources, file: str, statement: ast.stmt) -> Iterator[tuple[Edit, ...]]:
    """What is written over elements, added to them; and the other way round."""
    target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
    if isinstance(statement, (ast.Assign, ast.AugAssign)) and isinstance(target, ast.Subscript):
        start, stop = sources.span(file, target)[1], sources.span(file, statement.value)[0]
        yield (Edit(file, start, stop, " = " if isinstance(statement, ast.AugAssign) else " += "),)


def sliced(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Slices and items of the function around this line, the nearest lines first: one further along, from the other
    end, all but as many there, an item beside that of a variable number. All slices of an expression as one, then each
    alone.
    """
    for statement in statements(sources.text(file), line):
        for node in own(statement):
            if not isinstance(node, ast.Subscript):
                continue
            parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
            ways = [(part, [*_otherwise(part)]) for part in parts]
            for way in range(max((len(texts) for _, texts in ways), default=0)):
                some = [(part, texts[way]) for part, texts in ways if way < len(texts) and texts[way]]
                for together in [some] * (len(some) > 1) + [[one] for one in some]:
                    yield tuple(Edit(file, *sources.span(file, part), text) for part, text in together)


def _otherwise(part: ast.expr) -> Iterator[str]:
    """What may stand in the place of a slice or of the number of an item; slices of one kind in the same order."""
    if not isinstance(part, ast.Slice):
        if isinstance(part, (ast.Name, ast.Attribute)):
            yield from (f"{ast.unparse(part)} + 1", f"{ast.unparse(part)} - 1")
        return
    ends = [None if end is None else ast.unparse(end) for end in (part.lower, part.upper)]
    step = "" if part.step is None else f":{ast.unparse(part.step)}"
    numbers = [end.value if isinstance(end, ast.Constant) else None for end in (part.lower, part.upper)]
    if isinstance(numbers[0], int) and isinstance(numbers[1], int):
        yield from (f"{numbers[0] + by}:{numbers[1] + by}{step}" for by in (1, -1))
        return
    if part.lower is not None and part.upper is not None:
        yield from [f"{_on(part.lower, 1)}:{step}"] if ends[1] == "-1" else []
        yield from (f"{_on(part.lower, by)}:{_on(part.upper, by)}{step}" for by in (-1, 1))
        yield from (f":{ends[1]}{step}", f"{ends[0]}:{step}")
    if part.step is not None and part.upper is None and not step.startswith(":-"):  # from the first on, or the middle
        known = part.step.value if isinstance(part.step, ast.Constant) else None
        half = str(known // 2) if isinstance(known, int) else f"{bracketed(ast.unparse(part.step))} // 2"
        yield from [f":{step}"] if part.lower is not None else dict.fromkeys((f"{half}:{step}", f"1:{step}"))
    for end, said, form in zip((part.lower, part.upper), ends, ("{}:", ":{}")):
        if end is None or None not in ends:
            continue
        yield _from_other_side(end, said or "", form) + step
        if form == "{}:" and isinstance(end, ast.Constant):
            yield f":-{said}{step}"
        elif form == ":{}" and isinstance(end, ast.UnaryOp) and isinstance(end.op, ast.USub):
            yield f"{ast.unparse(end.operand)}:{step}"
        if form == "{}:":
            yield f"{_on(end, -1)}:-1{step}"
        if not isinstance(end, ast.Constant):
            yield from (form.format(f"{said} {sign} 1") + step for sign in "+-")


def _on(end: ast.expr, by: int) -> str:
    """An end of a slice so much further along, or nothing for the first element."""
    known = end.value if isinstance(end, ast.Constant) else None
    text = str(known + by) if isinstance(known, int) else more(end, by, ast.unparse(end))
    return "" if text == "0" else text


def more(node: ast.expr, by: int, text: str) -> str:
    """A whole number as it is written, and so much more: n - 1 and 1 is n."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)) and isinstance(node.right, ast.Constant):
        known = node.right.value
        if type(known) is int:
            by += known if isinstance(node.op, ast.Add) else -known
            text = ast.unparse(node.left)
    return text if not by else f"{text} {'+' if by > 0 else '-'} {abs(by)}"


def _from_other_side(end: ast.expr, said: str, form: str) -> str:
    """x[n:] as x[:n], x[-n:] as x[:n], x[:n] as x[-n:], and x[size - n:] as x[:n]."""
    turned = {"{}:": ":{}", ":{}": "{}:"}[form]
    if isinstance(end, ast.UnaryOp) and isinstance(end.op, ast.USub):
        return turned.format(ast.unparse(end.operand))
    if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Sub):
        return turned.format(ast.unparse(end.right))
    return turned.format(
        said
        if form == "{}:"
        else f"-{said}"
        if isinstance(end, (ast.Name, ast.Attribute, ast.Constant))
        else f"-({said})"
    )


def resized(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """A size that is taken apart beside others in the place of one of these, rows for columns: in all of a statement,
    the nearest first, then each alone.
    """
    around = statements(sources.text(file), line)
    groups = [group for one in around if (group := _sizes_of(one))]
    for statement in around:
        used: dict[str, list[ast.Name]] = {}
        for node in own(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                used.setdefault(node.id, []).append(node)
        for name, nodes in used.items():
            others = dict.fromkeys(other for group in groups if name in group for other in _nearest(group, name))
            for together in [nodes] * (len(nodes) > 1) + [[one] for one in nodes]:
                yield from (tuple(Edit(file, *sources.span(file, one), other) for one in together) for other in others)


def _sizes_of(statement: ast.stmt) -> list[str]:
    """Names that the sizes of a value are given: `b, c, h, w = x.shape`."""
    if not isinstance(statement, ast.Assign) or "shape" not in ast.unparse(statement.value):
        return []
    target = statement.targets[0]
    return [one.id for one in walked(target) if isinstance(one, ast.Name)] if isinstance(target, ast.Tuple) else []


def _nearest(group: Sequence[str], name: str) -> list[str]:
    at = group.index(name)
    others = ((abs(n - at), other) for n, other in enumerate(group) if other != name and other.strip("_"))
    return [other for _, other in sorted(others, key=lambda one: one[0])]


def rounded(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """What the function around this line rounds in other ways, nearest lines first: all of a statement, then one."""
    for statement in statements(sources.text(file), line):
        groups: dict[str, list[tuple[ast.AST, Sequence[str]]]] = {}
        for node in own(statement):
            for kind, texts in _roundings(node):
                groups.setdefault(kind, []).append((node, texts))
        for nodes in groups.values():
            for way in range(len(nodes[0][1])):
                for together in [nodes] * (len(nodes) > 1) + [[one] for one in nodes]:
                    yield tuple(Edit(file, *sources.span(file, node), texts[way]) for node, texts in together)


def _roundings(node: ast.AST) -> Iterator[tuple[str, Sequence[str]]]:
    """Of which kind a rounding is, or a logarithm, and the others in its place."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv):
        left, right = ast.unparse(node.left), ast.unparse(node.right)
        upwards = _rounds_up(node)
        yield "//", [f"{upwards} // {right}" if upwards else f"({left} + {right} - 1) // {_alone(node.right)}"]
    if not isinstance(node, ast.Call) or len(node.args) != 1 or isinstance(node.args[0], ast.Starred):
        return
    said = ast.unparse(node.args[0])
    if isinstance(node.func, ast.Name) and node.func.id in ("int", "round"):
        inner = node.args[0]
        half = isinstance(inner, ast.BinOp) and isinstance(inner.op, ast.Add) and ast.unparse(inner.right) == "0.5"
        others = [f"int({ast.unparse(inner.left)})"] if half and isinstance(inner, ast.BinOp) else []
        others += (
            [f"int({ast.unparse(inner.args[0])})"] if isinstance(inner, ast.Call) and _name(inner) == "round" else []
        )
        others += [f"int({said})"] if node.func.id == "round" else [f"round({said})"]
        yield node.func.id, others + ([] if half else [f"int({_term(inner)} + 0.5)", f"-int(-{_alone(inner)} // 1)"])
    name = _name(node)
    family = next((one for one in _FAMILIES if name in one), ())
    if family and isinstance(node.func, ast.Attribute):
        owner = ast.unparse(node.func.value)
        yield name, [f"{owner}.{other}({said})" for other in family if other != name]


def _rounds_up(node: ast.BinOp) -> str:
    """x of (x + n - 1) // n."""
    match = re.fullmatch(r"\(?(.+) \+ (.+) - 1\)?", ast.unparse(node.left))
    return match.group(1) if match and match.group(2) == ast.unparse(node.right) else ""


def _alone(node: ast.expr) -> str:
    """Source that binds as one."""
    said = ast.unparse(node)
    return said if isinstance(node, (ast.Name, ast.Attribute, ast.Constant, ast.Call, ast.Subscript)) else f"({said})"


def _term(node: ast.expr) -> str:
    """Source that something can be added to."""
    return ast.unparse(node) if isinstance(node, ast.BinOp) else _alone(node)


_FAMILIES = (("floor", "ceil", "round"), ("log", "log2", "log10", "log1p"), ("sin", "cos"), ("sort", "unique"))
"""Functions that are taken for each other: what they make of plain numbers, nothing is heard of."""

_PYTHONS = frozenset(dir(builtins))
"""Functions that are not the user's."""

_LAYING = {"reshape": 1, "view": 1, "permute": 1, "transpose": 3}
"""Calls that are given sizes, or all axes, of which one alone is hardly one off; from how many arguments on. Of two
axes that are exchanged one may be.
"""

_SIGN_OF = {ast.Add: "+", ast.Sub: "-"}


def _plain(node: ast.expr) -> str:
    """Source that no number is put into."""
    return ast.unparse(node).replace("{", "{{").replace("}", "}}")


def _adds_one(node: ast.BinOp) -> bool:
    """x + 1, x - 1"""
    one = isinstance(node.right, ast.Constant) and type(node.right.value) is int and node.right.value == 1
    return one and isinstance(node.op, (ast.Add, ast.Sub))


_SIGN = re.compile(r"\*\*|//|[-+*/%]")
_OTHERS = {"+": "-*", "-": "+", "*": "/+", "/": ("*", "//"), "//": "/", "%": ("//",), "**": "*"}

_STRICT = {ast.Gt: ">=", ast.GtE: ">", ast.Lt: "<=", ast.LtE: "<"}
_TURNED = {ast.Gt: "<", ast.GtE: "<=", ast.Lt: ">", ast.LtE: ">=", ast.Eq: "!=", ast.NotEq: "=="}
_EQUAL = {ast.Gt: "!=", ast.GtE: "==", ast.Lt: "!=", ast.LtE: "==", ast.Eq: ">=", ast.NotEq: ">"}
