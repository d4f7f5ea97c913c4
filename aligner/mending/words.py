"""The reference's own words for a number, where they mean the same in the port's code: `self.dim // self.heads`.

They come out of a dump, and dumps may be anybody's: only names, attributes, items and sums of plain numbers are worked
out here, and square roots; nothing is called.
"""

from __future__ import annotations

import ast
import itertools
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Optional

from aligner.words.calls import equal
from aligner.words.spelling import written

PLAIN = (0.0, 1.0, -1.0, 2.0, 0.5)
"""Numbers that people write as they are."""

POWERS = (0.5, -0.5)
"""Roots that scores are scaled by."""

LEAST = 2
"""Smaller places are written as they are."""

_SIGNS: Mapping[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}


MODULES = frozenset(
    ("torch", "F", "functional", "ops", "mint", "nn.functional", "torch.nn.functional", "mindspore.ops", "np", "numpy")
)
"""What people call modules that have operations."""


def means(words: str, value: Any, names: Mapping[str, Any]) -> bool:
    """Whether the words come to this number, among these names."""
    try:
        found = _worked_out(_expression(words), names)
        found = float(found) if getattr(found, "shape", None) in ((), (1,)) else found  # a tensor of one number
    except Exception:  # names that are not there, or mean something else
        return False
    return equal(found, value)


@lru_cache(maxsize=4096)
def _expression(words: str) -> ast.expr:
    return ast.parse(words, mode="eval").body


def _worked_out(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return names[node.id]
    if isinstance(node, (ast.Tuple, ast.List)):
        return tuple(_worked_out(one, names) for one in node.elts)
    if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
        return _held(_worked_out(node.value, names), node.attr) if node.attr != "shape" else _shape(node, names)
    if isinstance(node, ast.Subscript):
        return _worked_out(node.value, names)[_worked_out(node.slice, names)]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_number(_worked_out(node.operand, names))
    if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
        sides = (_number(_worked_out(side, names)) for side in (node.left, node.right))
        return _SIGNS[type(node.op)](*sides)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        base, power = (_number(_worked_out(side, names)) for side in (node.left, node.right))
        return math.pow(base, power)
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "math.sqrt" and "math" in names and not node.keywords:
        return math.sqrt(_number(_worked_out(node.args[0], names)))
    if isinstance(node, ast.Call) and ast.unparse(node.func) == "len" and len(node.args) == 1 and not node.keywords:
        found = _worked_out(node.args[0], names)
        return int(found.shape[0]) if hasattr(found, "shape") else len(found)
    raise LookupError(ast.dump(node))


def _held(owner: Any, name: str) -> Any:
    """An attribute; layers keep their parameters in tables."""
    tables = (vars(owner), *(vars(owner).get(table, {}) for table in ("_params", "_parameters", "_buffers")))
    return next(table[name] for table in tables if name in table)


def _shape(node: ast.Attribute, names: Mapping[str, Any]) -> Any:
    return tuple(int(size) for size in _worked_out(node.value, names).shape)


def _number(value: Any) -> Any:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise TypeError(type(value).__name__)


def kept(value: float, names: Mapping[str, Any]) -> Optional[str]:
    """What the code itself calls a number: an attribute of its layer, or an item of one by a number of the code's."""
    owner = names.get("self")
    if owner is None or value in PLAIN:
        return None
    derived = _derived(value, owner) if isinstance(value, float) and math.isfinite(value) else None
    steps = [name for name, step in names.items() if type(step) is int]
    for name, held in [*vars(owner).items()]:
        if isinstance(held, (int, float)) and not isinstance(held, bool) and equal(held, value):
            return f"self.{name}"
        if isinstance(held, (tuple, list)):
            for step in steps:
                if names[step] < len(held) and means(f"self.{name}[{step}]", value, names):
                    return f"self.{name}[{step}]"
    return derived


def _derived(value: float, owner: Any) -> Optional[str]:
    """A number that is another layer's another time, by what the layer keeps that it comes of."""
    own = ((name, held) for name, held in vars(owner).items() if not name.startswith("_"))
    for name, held in own:  # those with a bar are the framework's as well
        if isinstance(held, (int, float)) and not isinstance(held, bool) and held not in PLAIN and held > 0:
            roots = [(f"({times} * {{}}) ** {power}", (times * held) ** power) for times in (2, 3) for power in POWERS]
            plain = [(f"{{}} ** {power}", held**power) for power in (2, *POWERS)]
            for text, found in (*plain, ("1 / {}", 1 / held), *roots):
                if abs(found - value) <= 1e-9 * abs(value):
                    return f"({text.format(f'self.{name}')})"
    return None


def size(value: int, names: Mapping[str, Any]) -> Optional[str]:
    """What the layer calls a whole number."""
    owner = names.get("self")
    known = vars(owner) if owner is not None and hasattr(owner, "__dict__") else {}
    found = (name for name, held in known.items() if type(held) is int and held == value and not name.startswith("_"))
    return next((f"self.{name}" for name in found), None) if value > 1 else None


def sizes(shape: Sequence[int], names: Mapping[str, Any], said: Sequence[str] = ()) -> list[str]:
    """The numbers of a shape by what the code calls them there, or the reference in words that mean the same."""
    left = {name: value for name, value in names.items() if type(value) is int and value > 1 and name.strip("_")}
    found = []
    for number, each in enumerate(shape):
        name = said[number] if said and not said[number].isdigit() else ""
        name = name or next((name for name, value in left.items() if value == each), "")
        left.pop(name, None)
        plain = bool(said) and said[number].isdigit()
        found.append(name or (None if plain else size(each, names)) or str(each))
    literal = [n for n, one in enumerate(found) if one.isdigit() and one != "1" and not (said and said[n] == one)]
    if len(literal) == 1:
        found[literal[0]] = "-1"
    return found


def places(index: Sequence[Any], names: Mapping[str, Any]) -> Sequence[Any]:
    """Items, and slices as start, end and step, in the words of the code's own whole numbers, and of sums of two."""
    known = {name: one for name, one in names.items() if type(one) is int and one > 0}

    def said(place: Any) -> Any:
        if type(place) is not int or place < LEAST:
            return place
        sums = (f"{a} + {b}" for a, b in itertools.permutations(known, 2) if known[a] + known[b] == place)
        return next((name for name, one in known.items() if one == place), None) or next(sums, place)

    return [tuple(map(said, one)) if isinstance(one, tuple) else said(one) for one in index]


def argument(line: str, name: str, where: Any) -> Iterator[str]:
    """What stands in a line of code as this argument of the calls of this name."""
    for call in _calls(line, name):
        if isinstance(where, str):
            yield from (ast.unparse(one.value) for one in call.keywords if one.arg == where)
        elif isinstance(where, int):
            method = isinstance(call.func, ast.Attribute) and not _is_module(call.func.value)
            for place in (where - 1, where) if method else (where,):  # a module by a name of one's own looks so
                found = call.args[place] if 0 <= place < len(call.args) else None
                unlikely = place == where and method and isinstance(found, ast.Constant)
                if found is not None and not isinstance(found, ast.Starred) and not unlikely:
                    yield ast.unparse(found)


def named(line: str, name: str) -> list[str]:
    """What the calls of this name in a line are given by name."""
    return [keyword.arg for call in _calls(line, name) for keyword in call.keywords if keyword.arg]


def _is_module(node: ast.expr) -> bool:
    """Whether a function is taken from it, and no method: people call modules so."""
    return ast.unparse(node) in MODULES


def index(
    line: str, value: Sequence[Any], sizes: Sequence[int], known: Mapping[str, Any], names: Mapping[str, Any]
) -> str:
    """Items of something of these sizes: what stands in brackets in a line, if it means these, or
    does with `names` of the code's own in the places of others: `x[:, i - 1]` for `y[:, t - 1]`. A slice is its start,
    its end and its step.
    """
    tree = _parsed(line)
    found: list[str] = []
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Subscript):
            items = _complete(node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice], len(sizes))
            taken = iter(sizes)
            lengths = [1 if _is_none(item) else next(taken, 1) for item in items]
            while len(items) > len(value) and _is_all(items[-1]):
                items.pop()
            if len(items) != len(value):
                continue
            each = [*zip(items, value, lengths)]
            if all(_is_item(*one, known) for one in each):
                return ast.unparse(node.slice).strip("()")
            said = [_item(*one, known, names) for one in each]
            found += [] if None in said else [", ".join(filter(None, said))]
    return next(iter(found), None) or written("index", places(value, names))


def _complete(items: Sequence[ast.expr], rank: int) -> list[ast.expr]:
    """An item for each axis, and for each that is new."""
    rest = [ast.Slice(None, None, None)] * max(0, rank - sum(not _is_none(one) and not _is_rest(one) for one in items))
    at = next((number for number, one in enumerate(items) if _is_rest(one)), None)
    return [*items, *rest] if at is None else [*items[:at], *rest, *items[at + 1 :]]


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _is_rest(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is ...


def _is_all(node: ast.expr) -> bool:
    return isinstance(node, ast.Slice) and node.lower is node.upper is node.step is None


def _is_item(node: ast.expr, value: Any, length: int, names: Mapping[str, Any]) -> bool:
    if isinstance(node, ast.Slice) and isinstance(value, tuple) and len(value) == 3:
        parts = zip((node.lower, node.upper, node.step), (value[0], value[1], None if value[2] == 1 else value[2]))
        return all(
            other is None if part is None else _is_place(part, other or 0, length, names) for part, other in parts
        )
    if isinstance(value, int):
        return _is_place(node, value, length, names)
    return value is None and _is_none(node)


def _item(node: ast.expr, value: Any, length: int, known: Mapping[str, Any], names: Mapping[str, Any]) -> Optional[str]:
    """An item with a number of the code's own for each name that means something else there."""
    if _is_item(node, value, length, known):
        return ast.unparse(node)
    if isinstance(node, ast.Slice) and isinstance(value, tuple) and node.step is None:
        ends = [
            "" if end is None else _place(end, one or 0, length, known, names)
            for end, one in ((node.lower, value[0]), (node.upper, value[1]))
        ]
        return None if None in ends else ":".join(map(str, ends))
    return _place(node, value, length, known, names) if isinstance(value, int) else None


def _place(
    node: ast.expr, value: int, length: int, known: Mapping[str, Any], names: Mapping[str, Any]
) -> Optional[str]:
    """A place by the code's own numbers: loops count in those that were given a value last."""
    if _is_place(node, value, length, known):
        return ast.unparse(node)
    used = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    if len(used) != 1 or not isinstance(node, (ast.Name, ast.BinOp)):
        return None
    for name in reversed([name for name, one in names.items() if type(one) is int]):
        text = ast.unparse(_Renaming(min(used), name).visit(ast.parse(ast.unparse(node), mode="eval")))
        if any(means(text, one, known) for one in (value, value - length)):
            return text
    return None


def _is_place(node: ast.expr, value: int, length: int, names: Mapping[str, Any]) -> bool:
    """Whether an expression is this place of an axis, counted from either end."""
    return any(means(ast.unparse(node), one, names) for one in (value, value - length))


def arguments(line: str, name: str) -> Iterator[str]:
    """All that the calls of this name are given, without the tensor that each is called of."""
    for call in _calls(line, name):
        if not call.keywords:
            yield ", ".join(map(ast.unparse, call.args[1:] if _of_module(call) else call.args))


def _of_module(call: ast.Call) -> bool:
    return not isinstance(call.func, ast.Attribute) or _is_module(call.func.value)


def operand(line: str, value: float, names: Mapping[str, Any]) -> Optional[str]:
    """The words in a line for this number."""
    return next((words for words in _pieces(line) if means(words, value, names)), None)


def renamed(line: str, value: float, names: Mapping[str, Any], known: Mapping[str, Any]) -> Optional[str]:
    """What stands in a line and comes to this number with a number of the code's own in the place of a name that the
    code has not: `1 + scale` for `1 + strength`.
    """
    owner = names.get("self")
    own = {name: one for name, one in names.items() if _is_plain(one)}
    held = vars(owner) if hasattr(owner, "__dict__") else {}
    own.update({f"self.{name}": one for name, one in held.items() if _is_plain(one) and not name.startswith("_")})
    for words in _pieces(line):
        node = _expression(words)
        unknown = {*_unknown(node, known)}
        if len(unknown) != 1 or not (isinstance(node, ast.BinOp) or value not in PLAIN):
            continue
        (other,) = unknown
        for name, one in own.items():
            if one not in PLAIN or isinstance(one, float):
                text = ast.unparse(_Renaming(other, name).visit(ast.parse(words, mode="eval")))
                if means(text, value, {**known, "self": owner}):
                    return text
    return None


def _is_plain(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _unknown(node: ast.expr, known: Mapping[str, Any]) -> Iterator[str]:
    """Names, attributes and items in an expression that mean nothing here."""
    if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript)):
        try:
            _worked_out(node, known)
        except Exception:  # whatever it is
            yield ast.unparse(node)
        return
    for each in ast.iter_child_nodes(node):
        yield from _unknown(each, known) if isinstance(each, ast.expr) else ()


class _Renaming(ast.NodeTransformer):
    def __init__(self, one: str, other: str) -> None:
        self._one, self._other = one, _expression(other)

    def visit(self, node: ast.AST) -> Any:
        return (
            self._other if isinstance(node, ast.expr) and ast.unparse(node) == self._one else self.generic_visit(node)
        )


@lru_cache(maxsize=1024)
def _pieces(line: str) -> Sequence[str]:
    """Expressions in a line."""
    tree = _parsed(line)
    kinds = ast.BinOp, ast.Name, ast.Attribute, ast.Subscript, ast.Call
    return [ast.unparse(node) for node in ast.walk(tree) if isinstance(node, kinds)] if tree is not None else []


def _calls(line: str, name: str) -> Iterator[ast.Call]:
    tree = _parsed(line)
    for node in ast.walk(tree) if tree is not None else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func).rsplit(".", 1)[-1].strip("_") == name.strip("_"):
            yield node


@lru_cache(maxsize=1024)
def _parsed(line: str) -> Optional[ast.AST]:
    for text in (line, line.rstrip(":") + ": pass", line.strip("(), "), f"{{{line}}}", _whole(line)):
        try:
            return ast.parse(text)
        except SyntaxError:
            continue
    return None


_OPENS = {")": "_(", "]": "_[", "}": "{"}
_CLOSES = {"(": ")", "[": "]", "{": "}"}


def _whole(line: str) -> str:
    """One line of a statement of several, with the brackets that were opened before it, or are closed after it."""
    before, after = "", list[str]()
    for letter in line:
        if letter in _CLOSES:
            after.append(_CLOSES[letter])
        elif letter in _OPENS and after:
            after.pop()
        elif letter in _OPENS:
            before = _OPENS[letter] + before
    return f"{before}{line.rstrip(', ') if before or after else line}{''.join(reversed(after))}"


def dotted(path: str) -> str:
    """A layer's path as the code of its owner writes it."""
    return "self" + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in path.split("."))
