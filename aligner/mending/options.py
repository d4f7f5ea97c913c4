"""What calls are told beside their values, told otherwise: True for False, another word, other axes to reduce."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Optional

from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import own, statements
from aligner.source.written import parsed, walked

WORDS = (
    ("nearest", "bilinear", "bicubic", "area"),
    ("zeros", "border", "reflection"),
    ("constant", "reflect", "replicate", "edge", "symmetric", "circular"),
    ("CONSTANT", "REFLECT", "SYMMETRIC"),
    ("none", "tanh"),
    ("none", "add", "mul"),
    ("ij", "xy"),
    ("left", "right"),
    ("floor", "trunc"),
)
"""Arguments that are told by a word, each with the others that may stand there."""

UNTOLD = {
    "meshgrid": ("indexing", "'ij'"),
    "std": ("ddof", "1"),
    "var": ("ddof", "1"),
    "tensor_scatter_elements": ("reduction", "'add'"),
    "Pad": ("mode", '"REFLECT"', '"SYMMETRIC"'),
    **{f"{name}_window": ("periodic", "False") for name in ("hann", "hamming", "blackman", "bartlett", "kaiser")},
}
"""By the name of a function what torch does, or another one of its, and MindSpore's does only if it is told so."""

REDUCING = ("mean", "sum", "std", "var", "amax", "amin", "norm", "softmax")
"""Functions that are told the axes that they take together."""

_PAIRS = "min-max minimum-maximum amin-amax argmin-argmax any-all cummin-cummax logical_and-logical_or repeat-tile"
_PAIRS += " repeat-repeat_interleave tensor_scatter_update-tensor_scatter_add scatter-scatter_add index_copy-index_add"
OPPOSITES = [tuple(way) for pair in _PAIRS.split() for way in (pair.split("-"), pair.split("-")[::-1])]
"""What functions are called that tell the other end, repeat rows in the other order, or write over what others add to.
"""

AXES = 4
"""Of a value that is reduced, those that are tried."""


def switched(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """What a call is told by True or False, or by a word, told the other way, the nearest lines first."""
    for statement in statements(sources.text(file), line):
        for call in (node for node in own(statement) if isinstance(node, ast.Call)):
            for node in (*call.args, *(one.value for one in call.keywords)):
                known = node.value if isinstance(node, ast.Constant) else None
                others = [str(not known)] if isinstance(known, bool) else []
                words = [word for group in WORDS if known in group for word in group]
                quote = sources.words(file, node)[:1]
                for text in (*others, *(f"{quote}{one}{quote}" for one in words if one != known)):
                    yield (Edit(file, *sources.span(file, node), text),)


def untold(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Calls that are to be told what torch need not be told."""
    for statement in statements(sources.text(file), line):
        for call in (node for node in own(statement) if isinstance(node, ast.Call)):
            name, *values = UNTOLD.get(ast.unparse(call.func).rpartition(".")[2], ("",))
            if name and name not in {one.arg for one in call.keywords}:
                end = sources.span(file, call)[1] - 1
                yield from ((Edit(file, end, end, f", {name}={value}"),) for value in values)


def reduced(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Several axes that are reduced at once, with one fewer or one more: all equal ones of the function, then each."""
    groups: dict[str, list[ast.Tuple]] = {}
    for statement in statements(sources.text(file), line):
        for call in (node for node in own(statement) if isinstance(node, ast.Call)):
            if ast.unparse(call.func).rpartition(".")[2] in REDUCING:
                for node in (*call.args, *(one.value for one in call.keywords)):
                    if isinstance(node, ast.Tuple) and all(map(_is_whole, node.elts)):
                        groups.setdefault(ast.unparse(node), []).append(node)
    for nodes in groups.values():
        axes = [ast.literal_eval(one) for one in nodes[0].elts]
        fewer = [axes[:at] + axes[at + 1 :] for at in range(len(axes))] if len(axes) > 1 else []
        more = [sorted([*axes, one]) for one in range(AXES) if one not in axes and min(axes) >= 0]
        for together in [nodes] * (len(nodes) > 1) + [[one] for one in nodes]:
            for some in (*fewer, *more):
                text = f"({', '.join(map(str, some))}{',' * (len(some) == 1)})"
                yield tuple(Edit(file, *sources.span(file, one), text) for one in together)


def compared(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """Words that a value is compared with, one more or one fewer of those that the file compares such a value with, or
    another one.
    """
    text = sources.text(file)
    known: dict[str, dict[str, None]] = {}
    for node in walked(parsed(text)):
        for left, words in _compared(node):
            known.setdefault(left, {}).update(dict.fromkeys(words))
    for statement in statements(text, line):
        for node in own(statement):
            for left, words in _compared(node):
                others = [word for word in known[left] if word not in words]
                fewer = [[word for word in words if word != one] for one in words] if len(words) > 1 else []
                for some in (*([*words, one] for one in others), *fewer, *([one] for one in others)):
                    alone = isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.NotEq, ast.NotIn))
                    sign = ("!=" if alone else "==") if len(some) == 1 else ("not in" if alone else "in")
                    said = some[0] if len(some) == 1 else f"({', '.join(some)})"
                    yield (Edit(file, *sources.span(file, node), f"{left} {sign} {said}"),)


def _compared(node: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """What is compared with words, and these as they are written."""
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.NotEq, ast.In, ast.NotIn)):
        other = node.comparators[0]
        words = other.elts if isinstance(other, (ast.Tuple, ast.List, ast.Set)) else [other]
        if len(node.ops) == 1 and all(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in words):
            yield ast.unparse(node.left), [ast.unparse(one) for one in words]


def decided(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """One of two that a condition decides between, whatever it says; the nearest lines first."""
    for statement in statements(sources.text(file), line):
        for node in (node for node in own(statement) if isinstance(node, ast.IfExp)):
            for one in (node.body, node.orelse):
                yield (Edit(file, *sources.span(file, node), sources.words(file, one)),)


def opposed(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """The least for the greatest, any for all, and the other way round: all of a statement, then each."""
    for statement in statements(sources.text(file), line):
        ends = [node.func for node in own(statement) if isinstance(node, ast.Call)]
        found = [(end, *ast.unparse(end).rpartition(".")) for end in ends]
        calls = [(end, f"{home}{dot}{to}") for end, home, dot, word in found for one, to in OPPOSITES if one == word]
        firsts = {end: (end, text) for end, text in reversed(calls)}
        for together in [[*firsts.values()]] * (len(firsts) > 1) + [[one] for one in calls]:
            yield tuple(Edit(file, *sources.span(file, end), text) for end, text in together)


def over_all(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """What is counted or averaged over all that there is, over what a mask lets through: mask.size as mask.sum(),
    (x * mask).mean() as (x * mask).sum() / mask.sum(); the nearest lines first.
    """
    for statement in statements(sources.text(file), line):
        nodes = [*own(statement)]
        called = {node.func for node in nodes if isinstance(node, ast.Call)}
        for node in nodes:
            counted = None if node in called else _counted(node)
            if counted is not None:
                yield (Edit(file, *sources.span(file, node), f"{sources.words(file, counted)}.sum()"),)
            product = _averaged(node)
            for side in (product.right, product.left) if product is not None else ():
                if product is not None and isinstance(side, (ast.Name, ast.Attribute)):
                    total, many = sources.words(file, product), sources.words(file, side)
                    yield (Edit(file, *sources.span(file, node), f"(({total}).sum() / {many}.sum())"),)


def _counted(node: ast.AST) -> Optional[ast.expr]:
    """x of x.size and x.numel()."""
    called = node.func if isinstance(node, ast.Call) and not node.args else node
    name = "size" if called is node else "numel"
    return called.value if isinstance(called, ast.Attribute) and called.attr == name else None


def _averaged(node: ast.AST) -> Optional[ast.BinOp]:
    """The product of which a call takes the mean of all."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr != "mean":
        return None
    given = node.args or [node.func.value]
    product = given[0] if len(given) == 1 and not node.keywords else None
    return product if isinstance(product, ast.BinOp) and isinstance(product.op, ast.Mult) else None


def _is_whole(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        node = node.operand
    return isinstance(node, ast.Constant) and type(node.value) is int
