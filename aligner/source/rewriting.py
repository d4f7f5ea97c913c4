"""A function's syntax tree in which each call, operator and slice goes through an ear.

`x.reshape(n, -1)` becomes `__ear__.call(PLACE, x.reshape, n, -1)`; PLACE is the file and where in it that begins and
ends. What is computed, in which order, and what is raised stays as it was.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, Optional

from aligner.source.written import Definition

EAR = "__ear__"
"""The name by which the code knows who listens."""

OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.MatMult: "matmul",
    ast.BitAnd: "and_",
    ast.BitOr: "or_",
    ast.BitXor: "xor",
    ast.USub: "neg",
    ast.Invert: "invert",
    ast.Lt: "lt",
    ast.LtE: "le",
    ast.Gt: "gt",
    ast.GtE: "ge",
    ast.Eq: "eq",
    ast.NotEq: "ne",
}
"""Python's names for the operators that tensors have."""

TURNS = ("T", "mT", "H", "mH")
"""Attributes that are operations."""

_PLAIN = frozenset(
    (
        *("super", "locals", "globals", "vars", "dir", "eval", "exec", "isinstance", "issubclass", "callable", "type"),
        *("id", "len", "iter", "next", "range", "print", "zip", "enumerate", "getattr", "setattr", "hasattr"),
        *("int", "float", "bool", "str", "repr"),
    )
)
"""What asks Python something, and may ask it of the very frame that it stands in."""


class Telling(ast.NodeTransformer):
    """Writes the calls of the ear into the body of one function."""

    def __init__(self, file: str) -> None:
        self._file = file

    def body(self, node: Definition) -> None:
        """Change a definition's body; its arguments are left as they are."""
        if isinstance(node, ast.Lambda):
            node.body = self.visit(node.body)
        else:
            node.body = [self.visit(statement) for statement in node.body]

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """f(x)"""
        asks = isinstance(node.func, ast.Name) and node.func.id in _PLAIN
        self.generic_visit(node)
        return node if asks else self._told(node, "call", node.func, *node.args, keywords=node.keywords)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        """a + b"""
        self.generic_visit(node)
        return self._operator(node, node.op, node.left, node.right)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        """-a"""
        self.generic_visit(node)
        if isinstance(node.operand, ast.Constant):
            return node
        return self._operator(node, node.op, node.operand)

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """a < b"""
        self.generic_visit(node)
        return self._operator(node, node.ops[0], node.left, node.comparators[0]) if len(node.ops) == 1 else node

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        """a.T"""
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load) and node.attr in TURNS:
            return self._told(node, "turned", node.value, ast.Constant(node.attr))
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        """a[i]"""
        self.generic_visit(node)
        return self._told(node, "item", node.value, _index(node.slice)) if isinstance(node.ctx, ast.Load) else node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        """a[i] = b; a, b = c; with several targets the others are assigned as they are."""
        named = isinstance(node.value, (ast.Name, ast.Subscript, ast.IfExp))
        value = node.value
        self.generic_visit(node)
        target = node.targets[0]
        if any(isinstance(one, (ast.Tuple, ast.List)) for one in node.targets):
            node.value = self._told(value, "unpacked", node.value)
            return node
        if named and len(node.targets) == 1 and isinstance(target, (ast.Name, ast.Attribute)):
            node.value = self._told(value, "named", node.value)
            return node
        if len(node.targets) > 1 or not isinstance(target, ast.Subscript):
            return node
        told = self._told(node, "put", node.value, target.value, _index(target.slice))
        return ast.copy_location(ast.Expr(told), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        """a += b, a[i] += b; an attribute's owner is a name, or it would be asked for twice."""
        self.generic_visit(node)
        word, target = OPERATORS.get(type(node.op)), node.target
        if word is None:
            return node
        if isinstance(target, ast.Subscript):
            told = self._told(node, "change", ast.Constant(word), target.value, _index(target.slice), node.value)
            return ast.copy_location(ast.Expr(told), node)
        if isinstance(target, ast.Name):
            known: ast.expr = ast.Name(target.id, ast.Load())
        elif isinstance(target.value, ast.Name):
            known = ast.Attribute(target.value, target.attr, ast.Load())
        else:
            return node
        told = self._told(node, "inplace", ast.Constant(word), ast.copy_location(known, target), node.value)
        return ast.copy_location(ast.Assign([target], told), node)

    def visit_For(self, node: ast.For) -> ast.AST:
        """for a in b"""
        self.generic_visit(node)
        node.iter = self._told(node.iter, "looped", node.iter)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        """for a in b, in brackets"""
        self.generic_visit(node)
        node.iter = node.iter if node.is_async else self._told(node.iter, "looped", node.iter)
        return node

    def visit_While(self, node: ast.While) -> ast.AST:
        """while a: an edit may make it endless."""
        self.generic_visit(node)
        node.test = self._told(node.test, "turn", node.test)
        return node

    def visit_Return(self, node: ast.Return) -> ast.AST:
        """return a"""
        self.generic_visit(node)
        if node.value is not None:
            node.value = self._told(node, "back", node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        """a: int = b"""
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_match_case(self, node: Any) -> ast.AST:
        """Patterns are no expressions."""
        node.guard = self.visit(node.guard) if node.guard is not None else None
        node.body = [self.visit(statement) for statement in node.body]
        return node  # type: ignore[no-any-return]

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """One inside another: its defaults are worked out where it stands."""
        node.args.defaults = [self.visit(one) for one in node.args.defaults]
        node.args.kw_defaults = [one if one is None else self.visit(one) for one in node.args.kw_defaults]
        self.body(node)
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        """The same."""
        return self.visit_FunctionDef(node)  # type: ignore[arg-type]  # has the same parts

    def _operator(self, node: ast.AST, operator: ast.AST, *operands: ast.expr) -> ast.AST:
        word = OPERATORS.get(type(operator))
        return node if word is None else self._told(node, "operator", ast.Constant(word), *operands)

    def _told(self, node: Any, what: str, *given: ast.expr, keywords: Sequence[ast.keyword] = ()) -> ast.Call:
        function = ast.Attribute(ast.Name(EAR, ast.Load()), what, ast.Load())
        span = node.lineno, node.col_offset, node.end_lineno, node.end_col_offset
        place = ast.Constant((self._file, *span))  # type: ignore[arg-type]  # a tuple of constants is one
        told = ast.Call(function, [place, *given], list(keywords))
        for new in (told, function, function.value, place, *given):
            if not hasattr(new, "lineno"):
                ast.copy_location(new, node)
        return told


def _index(node: Any) -> ast.expr:
    """What stands in brackets, as an expression."""
    found: Optional[ast.expr] = None
    if isinstance(node, ast.Slice):
        parts = [part if part is not None else ast.Constant(None) for part in (node.lower, node.upper, node.step)]
        function = ast.Attribute(ast.Name(EAR, ast.Load()), "slice", ast.Load())
        found = ast.Call(function, parts, [])
    elif isinstance(node, ast.Tuple):
        found = ast.Tuple([_index(part) for part in node.elts], ast.Load())
    return node if found is None else ast.copy_location(found, node)
