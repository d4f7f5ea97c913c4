"""Two halves of an axis as every other of its elements, and the other way round: gates, rotations, fused weights. What
is repeated as a whole, element by element.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Optional

from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import statements
from aligner.source.written import modules, walked

CUTTING, SEEING = ("chunk", "split", "tensor_split"), ("reshape", "view")

JOINING, STACKING = ("cat", "concat", "concatenate"), "stack"

TILING, REPEATING, RANKS = ("tile", "repeat"), "repeat_interleave", (2, 3, 4, 5)

NUMPY = ("np.", "numpy.")
"""Which repeats element by element under the name by which torch repeats as a whole."""

EVEN, ODD = ("0::2", "::2"), "1::2"


def paired(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """In the function around a line: what is cut into two otherwise, with what is joined of two otherwise or alone, and
    what is joined alone.
    """
    text = sources.text(file)
    cuts = [*_chunks(sources, file, line), *_slices(sources, file, line), *_seen(sources, file, line)]
    joins = [edits for node in _nodes(text, line) for edits in _joined(sources, file, node)]
    yield from ((*cut, *join) for cut in cuts for join in joins)
    yield from cuts
    yield from joins


def spread(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """In the function around a line: tile(x, (1, n, 1)) as repeat_interleave(x, n, 1), and the other way round; all of
    them at once, then each.
    """
    found = [[*_repeated(sources, file, node)] for node in _nodes(sources.text(file), line)]
    found = [ways for ways in found if ways]
    for way in range(max(map(len, found), default=0)):
        edits = [ways[way] for ways in found if way < len(ways)]
        yield from [tuple(edits)] * (len(edits) > 1)
        yield from ((edit,) for edit in edits)


def _repeated(sources: Sources, file: str, node: ast.AST) -> Iterator[Edit]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    owner, given = worked_on(node, modules(sources.text(file)))
    if owner is None or not given:
        return
    prefix = "" if owner is node.func.value else sources.words(file, node.func.value) + "."
    base, span = sources.words(file, owner), sources.span(file, node)
    of_numpy = prefix in NUMPY
    if node.func.attr in (TILING[:1] if of_numpy else TILING):
        sizes = list(given[0].elts) if isinstance(given[0], (ast.Tuple, ast.List)) else given
        more = [(at, one) for at, one in enumerate(sizes) if whole_number(one) != 1]
        if len(more) == 1:
            at, times = more[0][0], sources.words(file, more[0][1])
            last = at == len(sizes) - 1
            inside = f"{base}, {times}, {-1 if last else at}" if prefix else f"{times}, {-1 if last else at}"
            yield Edit(file, *span, f"{prefix or base + '.'}{TILING[1] if of_numpy else REPEATING}({inside})")
            if prefix == "mint." and "ops" in modules(sources.text(file)):  # which has no such kernel everywhere
                yield Edit(file, *span, f"ops.{REPEATING}({inside})")
    elif node.func.attr == (TILING[1] if of_numpy else REPEATING):
        axes = [*given[1:2], *(one.value for one in node.keywords if one.arg in ("axis", "dim"))]
        axis = whole_number(axes[0]) if axes else None
        times = sources.words(file, given[0])
        if axis is not None:
            for rank in RANKS if axis >= 0 else (-axis,):
                ones = ["1"] * rank
                if axis < rank:
                    ones[axis] = times
                    text = f"({times},)" if rank == 1 else f"({', '.join(ones)})"
                    yield Edit(file, *span, f"{prefix or base + '.'}{TILING[0]}({base + ', ' if prefix else ''}{text})")


def worked_on(call: ast.Call, imported: frozenset[str]) -> tuple[Optional[ast.expr], list[ast.expr]]:
    """x of x.f(...) and of f(x, ...), and what else is given without a name."""
    owner: Optional[ast.expr] = call.func.value if isinstance(call.func, ast.Attribute) else None
    root = owner
    while isinstance(root, ast.Attribute):
        root = root.value
    if owner is None or (isinstance(root, ast.Name) and root.id in (*imported, "self")):
        return (call.args[0], call.args[1:]) if call.args else (None, [])
    return owner, list(call.args)


def _chunks(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """a, b = chunk(x, 2, -1) as x[..., 0::2], x[..., 1::2]; what is made and cut at once gets the first name before."""
    for node in _nodes(sources.text(file), line):
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        target = node.targets[0]
        given = _cut(node.value, modules(sources.text(file)))
        if given is None or not isinstance(target, ast.Tuple) or len(target.elts) != 2:
            continue
        whole, axis = given
        base, first = sources.words(file, whole), target.elts[0]
        named: list[Edit] = []
        if not isinstance(whole, (ast.Name, ast.Attribute)):
            if not isinstance(first, ast.Name):
                continue
            start = sources.span(file, node)[0]
            named, base = [Edit(file, start, start, f"{first.id} = {base}\n" + " " * node.col_offset)], first.id
        texts = (f"{base}[{_along(axis, each)}]" for each in (EVEN[0], ODD))
        yield (*named, Edit(file, *sources.span(file, node.value), ", ".join(texts)))


def _cut(call: ast.Call, imported: frozenset[str]) -> Optional[tuple[ast.expr, int]]:
    """What is cut in parts, and along which axis."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in CUTTING:
        return None
    owner, given = worked_on(call, imported)
    axes = [*given[1:2], *(one.value for one in call.keywords if one.arg in ("axis", "dim"))]
    axis = whole_number(axes[0]) if axes else 0
    return (owner, axis) if owner is not None and axis is not None else None


def _slices(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """x[..., :n] and x[..., n:] as x[..., 0::2] and x[..., 1::2], and the other way round."""
    by_base: dict[str, list[tuple[ast.Slice, str, int]]] = {}
    for node in _nodes(sources.text(file), line):
        if isinstance(node, ast.Subscript):
            parts = list(node.slice.elts) if isinstance(node.slice, ast.Tuple) else [node.slice]
            own = [(at, one) for at, one in enumerate(parts) if isinstance(one, ast.Slice) and ast.unparse(one) != ":"]
            if len(own) == 1:
                at, part = own[0]
                rest = [ast.unparse(one) for one in parts[:at] + parts[at + 1 :]]
                axis = at - len(parts) if "..." in rest[:at] else at
                by_base.setdefault(f"{ast.unparse(node.value)} {rest}", []).append(
                    (part, ast.unparse(node.value), axis)
                )
    for found in by_base.values():
        said = {ast.unparse(part) for part, _, _ in found}
        _, base, axis = found[0]
        half = f"{base}.shape[{axis}] // 2"
        if len(said) == 2 and ODD in said and said & {*EVEN}:
            texts = {ODD: f"{half}:", **dict.fromkeys(EVEN, f":{half}")}
        else:
            ends = {one[1:]: one for one in said if one.startswith(":")}
            pairs = [(first, f"{end}:") for end, first in ends.items() if f"{end}:" in said]
            texts = {one: new for pair in pairs[:1] for one, new in zip(pair, (EVEN[0], ODD))}
        if texts:
            changed = [(part, texts[ast.unparse(part)]) for part, _, _ in found if ast.unparse(part) in texts]
            yield tuple(Edit(file, *sources.span(file, part), text) for part, text in changed)


def _seen(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """y = x.reshape(n, d, 2), y[..., 0] as x.reshape(n, 2, d), y[..., 0, :], and the other way round."""
    nodes = _nodes(sources.text(file), line)
    for node in nodes:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        call = node.value if isinstance(node, ast.Assign) else None
        if (
            not isinstance(target, ast.Name)
            or not isinstance(call, ast.Call)
            or not isinstance(call.func, ast.Attribute)
        ):
            continue
        sizes = list(call.args[-1].elts) if call.args and isinstance(call.args[-1], ast.Tuple) else call.args
        if call.func.attr not in SEEING or len(sizes) < 2 or {whole_number(one) for one in sizes[-2:]} in ({2}, {None}):
            continue
        last = whole_number(sizes[-1]) == 2
        form = "{}" if last else "{}, :"
        items = [one for one in nodes if isinstance(one, ast.Subscript) and ast.unparse(one.value) == target.id]
        said = {f"..., {form.format(each)}": f"..., {('{}, :' if last else '{}').format(each)}" for each in "01"}
        items = [one for one in items if ast.unparse(one.slice).strip("()") in said]
        if items and whole_number(sizes[-1 if last else -2]) == 2:
            texts = [sources.words(file, one) for one in sizes[-2:]][::-1]
            edits = [Edit(file, *sources.span(file, one), text) for one, text in zip(sizes[-2:], texts)]
            for one in items:
                edits.append(Edit(file, *sources.span(file, one.slice), said[ast.unparse(one.slice).strip("()")]))
            yield tuple(edits)


def _joined(sources: Sources, file: str, node: ast.AST) -> Iterator[tuple[Edit, ...]]:
    """concat([a, b], -1) as stack([a, b], -1).flatten(start_dim=-2), or without that where it is reshaped next, and the
    other way round.
    """
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    inner = node.func.value
    two = node.args[0] if node.args else None
    if node.func.attr in JOINING and isinstance(two, (ast.List, ast.Tuple)) and len(two.elts) == 2:
        end = sources.span(file, node)[1]
        axes = [*node.args[1:2], *(one.value for one in node.keywords if one.arg in ("axis", "dim"))]
        if axes and whole_number(axes[0]) == -1:
            name, first = _name(sources, file, node.func, STACKING), sources.words(file, two.elts[0])
            numpy = f"{ast.unparse(inner)}." in NUMPY
            rest = f".reshape({first}.shape[:-1] + (-1,))" if numpy else ".flatten(start_dim=-2)"
            yield name, Edit(file, end, end, rest)
            yield (name,)
    elif (
        node.func.attr in (*SEEING, "flatten") and isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute)
    ):
        two = inner.args[0] if inner.args else None
        if inner.func.attr == STACKING and isinstance(two, (ast.List, ast.Tuple)) and len(two.elts) == 2:
            start, end = (sources.span(file, one)[1] for one in (inner, node))
            yield _name(sources, file, inner.func, JOINING[0]), Edit(file, start, end, "")


def _name(sources: Sources, file: str, function: ast.Attribute, other: str) -> Edit:
    end = sources.span(file, function)[1]
    return Edit(file, end - len(function.attr), end, other)


def _along(axis: int, part: str) -> str:
    return ":, " * axis + part if axis >= 0 else f"..., {part}" + ", :" * (-axis - 1)


def whole_number(node: ast.expr) -> Optional[int]:
    """The whole number that is written there."""
    try:
        found = ast.literal_eval(node)
    except ValueError:
        return None
    return found if type(found) is int else None


@lru_cache(maxsize=64)
def _nodes(text: str, line: int) -> Sequence[ast.AST]:
    """All that the function around a line holds, the nearest statements first."""
    found = {id(node): node for one in statements(text, line) for node in walked(one)}
    return [*found.values()]
