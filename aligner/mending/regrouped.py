"""An axis that is split into the same parts in another order, and the order of axes behind it turned to match.

Heads before groups or groups before heads, q, k and v of each head or heads of each of q, k and v, the cell of a pixel
before its channels: what comes of it has the same shape, and other values.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import permutations
from typing import NamedTuple, Optional

from aligner.mending.halves import whole_number
from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import statements
from aligner.source.written import walked

SPLITTING, TURNING, EXCHANGING = ("reshape", "view"), ("transpose", "permute"), ("swapaxes", "transpose")

Named = Mapping[str, ast.expr]
"""What a function gives names to, once each."""

FEWEST, MOST = 3, 5
"""Axes that can be split otherwise and turned to match."""


class _Split(NamedTuple):
    """The sizes that a value is seen with, and the numbers of axes that it is turned by; both calls."""

    inner: ast.Call
    outer: ast.Call
    sizes: Sequence[ast.expr]
    axes: Sequence[ast.expr]
    order: Sequence[int]


def regrouped(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """In the function around a line one of the sizes of a split moved past others, those next to it first, and the axes
    as they go with that.
    """
    splits = _all(sources.text(file), line, _split)
    moves = [
        (abs(one - other), number, one, other)
        for number, split in enumerate(splits)
        for one in range(len(split.sizes))
        for other in range(len(split.sizes))
        if one not in (other, other + 1)
    ]
    for _, number, one, other in sorted(moves):
        split = splits[number]
        new = [*range(len(split.sizes))]
        new.insert(other, new.pop(one))
        texts = [sources.words(file, split.sizes[at]) for at in new]
        said = [*zip(split.sizes, texts), *zip(split.axes, [str(new.index(axis)) for axis in split.order])]
        edits = [Edit(file, *sources.span(file, node), text) for node, text in said]
        yield tuple(edit for edit, (node, text) in zip(edits, said) if sources.words(file, node) != text)


def unturned(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """In the function around a line what is split and turned at once, seen with the sizes that come of it:
    `x.reshape(a, b, c).swapaxes(1, 2)` as `x.reshape(a, c, b)`.
    """
    for split in _all(sources.text(file), line, _exchange) + _all(sources.text(file), line, _split):
        texts = [sources.words(file, split.sizes[axis]) for axis in split.order]
        edits = [Edit(file, *sources.span(file, node), text) for node, text in zip(split.sizes, texts)]
        start, end = (sources.span(file, node)[1] for node in (split.inner, split.outer))
        if isinstance(split.outer.func, ast.Attribute) and split.outer.func.value is split.inner:
            yield (
                *(one for one in edits if sources.text(file)[one.start : one.end] != one.new),
                Edit(file, start, end, ""),
            )


def moved_in(sources: Sources, file: str, call: ast.Call) -> Iterator[tuple[Edit, Sequence[int]]]:
    """What is reshaped, with one of its sizes in another place; and the order of axes that puts it back."""
    sizes, _ = _parts(call, SPLITTING)
    for one, other in permutations(range(len(sizes or ())), 2) if FEWEST <= len(sizes or ()) <= MOST else ():
        if sizes is not None and other != one + 1:  # as the other one moved the other way
            order = [*range(len(sizes))]
            order.insert(other, order.pop(one))
            start, end = sources.span(file, sizes[0])[0], sources.span(file, sizes[-1])[1]
            text = ", ".join(sources.words(file, sizes[at]) for at in order)
            yield Edit(file, start, end, text), [order.index(at) for at in range(len(order))]


@lru_cache(maxsize=64)
def _all(text: str, line: int, kind: Callable[[ast.Call, Named], Optional[_Split]]) -> list[_Split]:
    """Of the function around a line, the nearest ones first."""
    around = statements(text, line)
    made = [one for one in around if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)]
    times = Counter(ast.unparse(one.targets[0]) for one in made)
    named = {name: one.value for one in made if times[(name := ast.unparse(one.targets[0]))] == 1}
    calls = (node for one in around for node in walked(one) if isinstance(node, ast.Call))
    found = ((call.lineno, call.end_col_offset, split) for call in calls if (split := kind(call, named)) is not None)
    return [*{(row, column): split for row, column, split in found}.values()]


def _split(call: ast.Call, named: Named) -> Optional[_Split]:
    """x.reshape(a, b, c).transpose(0, 2, 1), or the same by functions, or in two statements; None for anything else."""
    turning, inner = _parts(call, TURNING)
    inner = named.get(inner.id) if isinstance(inner, ast.Name) else inner
    if turning is None or not isinstance(inner, ast.Call):
        return None
    sizes, _ = _parts(inner, SPLITTING)
    order = [one.value for one in turning if isinstance(one, ast.Constant) and isinstance(one.value, int)]
    if sizes is None or not FEWEST <= len(sizes) == len(order) or sorted(order) != [*range(len(sizes))]:
        return None
    return _Split(inner, call, sizes, turning, order)


def _exchange(call: ast.Call, named: Named) -> Optional[_Split]:
    """x.reshape(a, b, c).swapaxes(1, 2), also with sizes that are added: (a, b) + x.shape[1:]."""
    turning, inner = _parts(call, EXCHANGING)
    if turning is None or len(turning) != 2 or not isinstance(inner, ast.Call):
        return None
    sizes, _ = _parts(inner, SPLITTING)
    whole = sizes is not None and not (len(sizes) == 1 and isinstance(sizes[0], ast.BinOp))
    if sizes is not None and not whole:
        first = sizes[0].left if isinstance(sizes[0], ast.BinOp) else None
        sizes = first.elts if isinstance(first, ast.Tuple) else None
    axes = [whole_number(one) for one in turning]
    if sizes is None or None in axes:
        return None
    one, other = (axis + len(sizes) if axis < 0 and whole else axis for axis in axes if axis is not None)
    order = [*range(len(sizes))]
    if not 0 <= min(one, other) < max(one, other) < len(sizes):
        return None
    order[one], order[other] = other, one
    return _Split(inner, call, sizes, turning, order)


def _parts(call: ast.Call, names: Sequence[str]) -> tuple[Optional[Sequence[ast.expr]], Optional[ast.expr]]:
    """The numbers that such a call is given, and what it is done to."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in names or call.keywords or not call.args:
        return None, None
    first, rest = call.func.value, list(call.args)
    if isinstance(first, ast.Name) and isinstance(rest[-1], (ast.Tuple, ast.List)) and len(rest) == 2:
        first, rest = rest[0], rest[1:]  # ops.reshape(x, (a, b, c))
    if len(rest) == 1 and isinstance(rest[0], (ast.Tuple, ast.List)):
        rest = list(rest[0].elts)
    return (None if any(isinstance(one, ast.Starred) for one in rest) else rest), first
