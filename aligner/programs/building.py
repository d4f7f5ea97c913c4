"""The one thing that a written program takes from a dump as Python: how a layer is built.

A dump may come from anybody, so that its text is never copied. It is read as a call of a layer class that
`layer_classes` lists, under one of the few names by which the program knows the module, with plain values and other
such calls for arguments; and it is written anew from what was read. Anything else is no building at all.
"""

from __future__ import annotations

import ast
import math
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Optional

LONGEST = 50_000
"""Characters: a Sequential of a thousand layers."""
DEEPEST = 24
_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)
_LARGEST = 1 << 63
_ODD_FLOATS = ("inf", "-inf", "nan")


@dataclass(frozen=True)
class Grammar:
    """What a building may be made of, by the module's name in the program."""

    classes: Mapping[str, frozenset[str]]
    """{"nn": classes}: layer classes."""
    functions: Mapping[str, frozenset[str]]
    """{"ops": functions}: what a layer may be given to call."""
    dtypes: Mapping[str, frozenset[str]]
    """{"ms": words}: types of numbers."""
    casts: bool = False
    """Whether a layer may be followed by `.to_float(dtype)`."""


@dataclass(frozen=True)
class Building:
    """A checked expression."""

    text: str
    classes: tuple[str, ...]
    """The classes that it calls, each once, as the program names them."""


class _Refused(Exception):
    """Something in it is not of the grammar."""


def building(python: str, grammar: Grammar) -> Optional[Building]:
    """What the dump says, read and written anew; None if it is anything but layers of the framework's."""
    if len(python) > LONGEST:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of escapes in strings: they would be printed as if we had written them
            tree = ast.parse(python, mode="eval")
        reader = _Reader(grammar)
        text = reader.layer(tree.body, 0)
    except (_Refused, SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return Building(text, tuple(dict.fromkeys(reader.called)))


class _Reader:
    """Writes each node anew, or refuses it; nothing is let through because it is not known to be bad."""

    def __init__(self, grammar: Grammar) -> None:
        self.called: list[str] = []
        self._grammar = grammar

    def layer(self, node: ast.expr, depth: int) -> str:
        """A call of a layer class, cast or not."""
        if not isinstance(node, ast.Call) or depth > DEEPEST:
            raise _Refused
        function = node.func
        if self._grammar.casts and isinstance(function, ast.Attribute) and function.attr == "to_float":
            if len(node.args) != 1 or node.keywords:
                raise _Refused
            return f"{self.layer(function.value, depth + 1)}.to_float({self._listed(node.args[0], 'dtypes')})"
        name = self._listed(function, "classes")
        self.called.append(name)
        words = [self._value(argument, depth + 1) for argument in node.args]
        return f"{name}({', '.join([*words, *self._named(node.keywords, depth)])})"

    def _named(self, keywords: list[ast.keyword], depth: int) -> Iterator[str]:
        seen = set()
        for keyword in keywords:
            name = keyword.arg
            if name is None or name in seen or not _WORD.fullmatch(name):
                raise _Refused
            seen.add(name)
            yield f"{name}={self._value(keyword.value, depth + 1)}"

    def _value(self, node: ast.expr, depth: int) -> str:
        if depth > DEEPEST:
            raise _Refused
        if isinstance(node, ast.Constant):
            return _plain(node.value)
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return "-" + _number(node.operand)
        if isinstance(node, ast.Tuple):
            items = [self._value(item, depth + 1) for item in node.elts]
            return f"({', '.join(items)}{',' if len(items) == 1 else ''})"
        if isinstance(node, ast.List):
            return f"[{', '.join(self._value(item, depth + 1) for item in node.elts)}]"
        if isinstance(node, ast.Dict):
            return "{" + ", ".join(self._items(node, depth)) + "}"
        if isinstance(node, ast.Attribute):
            return self._listed(node, "functions", "dtypes")
        return _odd_float(node) or self.layer(node, depth)

    def _items(self, node: ast.Dict, depth: int) -> Iterator[str]:
        for key, value in zip(node.keys, node.values):
            if not isinstance(key, ast.Constant):  # a key that is missing is `**`
                raise _Refused
            yield f"{_plain(key.value)}: {self._value(value, depth + 1)}"

    def _listed(self, node: ast.expr, *lists: str) -> str:
        """`module.name` where the grammar lists both."""
        if isinstance(node, ast.Attribute):
            home = _dotted(node.value)
            if any(node.attr in getattr(self._grammar, each).get(home, ()) for each in lists):
                return f"{home}.{node.attr}"
        raise _Refused


def _dotted(node: ast.expr) -> str:
    """`a.b` of names; whatever else it is, no grammar lists it."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        inner = _dotted(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return ""


def _plain(value: object) -> str:
    if value is None or isinstance(value, (bool, str)):
        return repr(value)
    if isinstance(value, int) and value < _LARGEST:
        return repr(value)
    if isinstance(value, float) and math.isfinite(value):
        return repr(value)
    raise _Refused


def _number(node: ast.expr) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool):
        return _plain(node.value)
    raise _Refused


def _odd_float(node: ast.expr) -> str:
    """`float("inf")`, which has no literal."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "float":
        argument = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if isinstance(argument, ast.Constant) and argument.value in _ODD_FLOATS:
            return f'float("{argument.value}")'
        raise _Refused
    return ""
