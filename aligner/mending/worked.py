"""Numbers that the code works out of others, as the reference has them: with another size in the place of one, or with
another sign. Which ways lead there is worked out from the text, without a run.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Any, Optional, Union

from aligner.mending.differing_numbers import Figure
from aligner.mending.kinds import is_factor
from aligner.mending.matching import SMALL
from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import statements
from aligner.source.written import walked
from aligner.words.spelling import bracketed, number_text

Number = Union[int, float]

SAME = 1e-6
"""Numbers whose ratio is nearer to one than this are the same."""

_SIGNS: Mapping[type, tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Add: ("+", operator.add),
    ast.Sub: ("-", operator.sub),
    ast.Mult: ("*", operator.mul),
    ast.Div: ("/", operator.truediv),
    ast.FloorDiv: ("//", operator.floordiv),
    ast.Pow: ("**", math.pow),
    ast.Mod: ("%", operator.mod),
}

_PLAIN: Mapping[str, Callable[..., Any]] = {"float": float, "int": int, "abs": abs, "max": max, "min": min}

_VARIED: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "{} - 1": ("1", lambda size: size - 1),
    "{} + 1": ("1", lambda size: size + 1),
    "{} // 2": ("2", lambda size: size // 2),
    "2 * {}": ("2", lambda size: 2 * size),
}
"""What a size stands for beside itself, with the number that is written then. Of the sizes of one input that comes out
by chance: the reference's line must have that number, or the size must be the layer's own.
"""


def worked(sources: Sources, figures: Iterable[Figure]) -> Iterator[tuple[Edit, ...]]:
    """What a step is given that is another number than the reference's, written so that it is that; where it has a
    name, what that was given. What the reference's line writes out is no size of anything, and a small whole number may
    be the size of much.
    """
    for event, model, found, wanted in figures:
        plain = (wanted == int(wanted) and abs(wanted) < SMALL) or number_text(wanted) in model.text
        if event.site is None or not isinstance(event.node, ast.expr) or plain:
            continue
        file, known = event.site.file, _Known(event.names, model.text)
        nodes = [node for node in walked(event.node) if isinstance(node, ast.expr) and known.has(node, found)]
        named = {node.id for node in nodes if isinstance(node, ast.Name)}
        nodes = [node for node in nodes if isinstance(node, (ast.BinOp, ast.Call))]  # what is kept is set elsewhere
        for one in statements(sources.text(file), event.site.line) if named else ():
            target = one.targets[0] if isinstance(one, ast.Assign) and len(one.targets) == 1 else None
            if isinstance(one, ast.Assign) and isinstance(target, ast.Name) and target.id in named:
                nodes += (
                    [one.value] if isinstance(one.value, (ast.BinOp, ast.Call)) and known.has(one.value, found) else []
                )
        for node in nodes:
            written = known.written([*statements(sources.text(file), event.site.line)])
            for part, text in _ways(sources, file, node, known, wanted, written + known.sizes):
                yield (Edit(file, *sources.span(file, part), text),)


class _Known:
    """Plain numbers that the code has. `line` is the reference's."""

    def __init__(self, names: Mapping[str, Any], line: str) -> None:
        theirs = _steps(line)
        self._names, self._theirs = names, theirs or []
        own = getattr(names.get("self"), "__dict__", {})
        local = [(name, one) for name, one in names.items() if is_factor(one) and name.strip("_")]
        kept = [(f"self.{name}", one) for name, one in own.items() if is_factor(one) and name[:1] != "_"]
        numbers = {ast.unparse(one) for node in self._theirs for one in (node.left, node.right)}
        numbers |= {number for number, _ in _VARIED.values()} if theirs is None else set()  # it may say any of them
        varied = [
            (form.format(name), does(one))
            for form, (number, does) in _VARIED.items()
            for name, one in [*(local if number in numbers else ()), *kept]
            if isinstance(one, int) or "//" not in form
        ]
        self.sizes = [*local, *kept, *varied]
        """As they are written, with what they come to."""

    def written(self, body: Iterable[ast.AST]) -> list[tuple[str, Number]]:
        """What the reference's line, or the code itself, works out of such numbers."""
        found: dict[str, Number] = {}
        own = [node for one in body for node in ast.walk(one) if isinstance(node, ast.BinOp)]
        for node in [*self._theirs, *own]:
            with suppress(Exception):  # of what else it may be made
                found.setdefault(ast.unparse(node), self.value(node))
        return [*found.items()]

    def has(self, node: ast.expr, number: float) -> bool:
        """Whether an expression is this number."""
        with suppress(Exception):  # of what else it may be made
            return math.isclose(self.value(node), number, rel_tol=SAME)
        return False

    def value(self, node: ast.expr, others: Mapping[ast.expr, Number] = MappingProxyType({})) -> Any:
        """What an expression comes to, with `others` in the place of parts of it.

        Raises:
            ValueError, TypeError: it is made of anything but numbers, their names, and the sizes of values.
        """
        if node in others:
            return others[node]
        if isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
            return _SIGNS[type(node.op)][1](self.value(node.left, others), self.value(node.right, others))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
            return -self.value(node.operand, others)
        if isinstance(node, ast.Call) and not node.keywords:
            module = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "math"
            name = ast.unparse(node.func).rpartition(".")[2]
            does = getattr(math, name, None) if module else _PLAIN.get(ast.unparse(node.func))
            if does is not None:
                return does(*(self.value(one, others) for one in node.args))
        found = node.value if isinstance(node, ast.Constant) else self._read(node)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            raise TypeError(ast.dump(node))
        return found

    def _read(self, node: ast.expr) -> Any:
        if isinstance(node, ast.Name):
            return self._names.get(node.id)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return getattr(self._names.get(node.value.id), node.attr)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            return self._read(node.value)[int(self.value(node.slice))]
        raise ValueError(ast.dump(node))


def _steps(line: str) -> Optional[list[ast.BinOp]]:
    """What a line works out of two values each; None where it is unknown, or no whole statement."""
    try:
        return [node for node in ast.walk(ast.parse(line.strip())) if isinstance(node, ast.BinOp)] if line else None
    except SyntaxError:
        return None


def _ways(
    sources: Sources, file: str, node: ast.expr, known: _Known, wanted: float, sizes: Sequence[tuple[str, Number]]
) -> Iterator[tuple[ast.expr, str]]:
    """Parts of an expression, and what stands in the place of each where all of it is to be the wanted number."""
    parts = [one for one in walked(node) if isinstance(one, ast.expr)]
    leaves = [one for one in parts if isinstance(one, (ast.Constant, ast.Name, ast.Attribute, ast.Subscript))]
    for step in (one for one in parts if isinstance(one, ast.BinOp) and type(one.op) in _SIGNS):
        for sign, does in _SIGNS.values():
            with suppress(Exception):  # a division by zero, a power that is too large
                number = does(known.value(step.left), known.value(step.right))
                if _is(known.value(node, {step: number}), wanted):
                    said = (bracketed(sources.words(file, one)) for one in (step.left, step.right))
                    yield step, f" {sign} ".join(said)
    for part in leaves:
        for text, number in sizes:
            with suppress(Exception):
                if _is(known.value(node, {part: number}), wanted):
                    yield part, bracketed(text) if part is not node else text
    for text, number in sizes:
        for sign, does in (_SIGNS[ast.Mult], _SIGNS[ast.Div]):
            with suppress(Exception):
                if _is(does(known.value(node), number), wanted):
                    yield node, f"{bracketed(sources.words(file, node))} {sign} {bracketed(text)}"
    for form, power in (("{} ** 0.5", 0.5), ("{} ** -0.5", -0.5), ("1 / {}", -1), ("{} ** 2", 2)):
        with suppress(Exception):
            if _is(known.value(node) ** power, wanted):
                yield node, form.format(bracketed(sources.words(file, node)))


def _is(number: Number, wanted: float) -> bool:
    return math.isclose(number, wanted, rel_tol=SAME)
