"""Constants of a file that a function uses: what they are made of in another order, a number as the reference's."""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from fractions import Fraction
from functools import lru_cache
from typing import Union

from aligner.mending.sources import Edit, Sources
from aligner.source.constants import Written, constants, evaluated, taken_elsewhere
from aligner.source.written import parsed, walked
from aligner.words.spelling import number_text

Row = Union[ast.Tuple, ast.List]

LONGEST = 4
"""Elements that are exchanged as one."""

LARGEST = 10**6
"""What a fraction is divided by at most."""

SAME = 1e-6
"""Numbers are apart by more than this, as a part of them."""


def tabled(sources: Sources, file: str, line: int, tables: Sequence[Sequence[float]]) -> Iterator[tuple[Edit, ...]]:
    """Numbers in rows, as in these tables: those that are others, the fewest first."""
    parts = around(sources.text(file), line) if tables else ()
    known, names = used(sources, file, parts), {name: one.value for name, one in _own(sources.text(file), file).items()}
    rows = (node for part in (*known, *parts) for node in walked(part) if isinstance(node, (ast.Tuple, ast.List)))
    found: list[tuple[float, tuple[Edit, ...]]] = []
    for node in dict.fromkeys((*known, *rows)):
        written = [*_numbers(node, names)]
        sizes = all(isinstance(value, int) for _, value in written)
        for table in dict.fromkeys(map(tuple, tables)):
            pairs = [(one, other) for (one, value), other in zip(written, table) if value != other]
            if len(table) == len(written) and pairs and not (sizes and any(isinstance(one, float) for one in table)):
                edits = tuple(Edit(file, *sources.span(file, one), repr(other)) for one, other in pairs)
                found.append((len(pairs) / len(table), edits))
    yield from (edits for _, edits in sorted(found, key=lambda one: one[0]))


def as_wanted(sources: Sources, file: str, pairs: Iterable[tuple[float, float]]) -> Iterator[tuple[Edit, ...]]:
    """A number of the file's tables, of each pair the first, as the second: what is written, or worked out there."""
    for found, wanted in pairs:
        for node in _of_numbers(sources.text(file), file).get(found, ()):
            yield (Edit(file, *sources.span(file, node), _text(wanted, node)),)


def _own(text: str, file: str) -> Mapping[str, Written]:
    """Those that no other file has taken."""
    taken = taken_elsewhere(file)
    return {name: one for name, one in constants(text).items() if name not in taken}


@lru_cache(maxsize=16)
def _of_numbers(text: str, file: str) -> Mapping[float, Sequence[ast.expr]]:
    """By number, the outermost expressions of a file's constants that are written or worked out as it."""
    found: dict[float, list[ast.expr]] = {}
    left = [one.node for one in _own(text, file).values()]
    while left:
        node = left.pop()
        value: object = None
        if isinstance(node, (ast.Constant, ast.UnaryOp, ast.BinOp)):
            with suppress(Exception):  # what is worked out of something else
                value = evaluated(node, {})
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found.setdefault(value, []).append(node)
        else:
            left += [one for one in ast.iter_child_nodes(node) if isinstance(one, ast.expr)]
    return found


def _text(number: float, node: ast.expr) -> str:
    """A number, as a fraction where one stands there."""
    part = Fraction(number).limit_denominator(LARGEST)
    is_part = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and float(part) == number
    return f"{part.numerator} / {part.denominator}" if is_part else repr(number)


def _numbers(node: ast.expr, names: Mapping[str, object]) -> Iterator[tuple[ast.expr, float]]:
    """What is written in rows, or in rows of rows, in its order; also what is worked out of the file's numbers."""
    if isinstance(node, (ast.Tuple, ast.List)):
        for one in node.elts:
            yield from _numbers(one, names)
    else:
        with suppress(Exception):  # what is worked out may raise whatever it likes
            value = evaluated(node, names)
            yield from [(node, value)] if isinstance(value, (int, float)) else []


def reordered(sources: Sources, file: str, line: int, numbers: Sequence[float]) -> Iterator[tuple[Edit, ...]]:
    """Those of the function around this line, and of the constructor of its class."""
    parts = around(sources.text(file), line)
    found = [*used(sources, file, parts), *(row for part in parts for row in _rows(part))]
    flat = [row for row in found if isinstance(row, (ast.Tuple, ast.List)) and not _holds(row)]
    for size in dict.fromkeys(len(row.elts) for row in flat if len(row.elts) > 1):  # what belongs together
        alike = [row for row in flat if len(row.elts) == size]
        yield from [tuple(_written(sources, file, row, row.elts[::-1]) for row in alike)] * (len(alike) > 1)
    ways = [_in_other_orders(sources, file, node, numbers) for node in found]
    yield from (one for some in itertools.zip_longest(*ways) for one in some if one is not None)


def _in_other_orders(
    sources: Sources, file: str, node: ast.expr, numbers: Sequence[float]
) -> Iterator[tuple[Edit, ...]]:
    rows = [one for one in walked(node) if isinstance(one, (ast.Tuple, ast.List)) and len(one.elts) > 1]
    yield from ((_written(sources, file, row, row.elts[::-1]),) for row in rows)
    inner = [row for row in rows if row is not node]
    if len(inner) > 1:
        yield tuple(_written(sources, file, row, row.elts[::-1]) for row in inner if not _holds(row))
    for row in rows:
        pairs = itertools.combinations(range(len(row.elts)), 2) if len(row.elts) > 2 else ()
        for one, other in sorted(pairs, key=lambda pair: pair[1] - pair[0]):
            order = [*row.elts]
            order[one], order[other] = order[other], order[one]
            yield (_written(sources, file, row, order),)
        yield from ((_written(sources, file, row, order),) for order in _in_parts(row.elts))
    yield from _numbered(sources, file, node, numbers)


def _in_parts(elements: Sequence[ast.expr]) -> Iterator[list[ast.expr]]:
    """Neighbours of several elements in each other's places: the left ones before the right ones."""
    for size in range(2, min(len(elements) // 2, LONGEST) + 1):
        for first in range(len(elements) - 2 * size + 1):
            middle, last = first + size, first + 2 * size
            yield [*elements[:first], *elements[middle:last], *elements[first:middle], *elements[last:]]


def used(sources: Sources, file: str, parts: Sequence[ast.FunctionDef]) -> list[ast.expr]:
    """Those of the file that are used in these functions, and in no other file."""
    known = _own(sources.text(file), file)
    names = dict.fromkeys(node.id for part in parts for node in walked(part) if isinstance(node, ast.Name))
    return [known[name].node for name in names if name in known]


def _numbered(sources: Sources, file: str, node: ast.expr, numbers: Sequence[float]) -> Iterator[tuple[Edit, ...]]:
    floats = [
        (one, one.value)
        for one in walked(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, float) and one.value > 0
    ]
    pairs = [(one, number, abs(math.log(number / value))) for one, value in floats for number in numbers]
    for one, number, apart in sorted(pairs, key=lambda pair: pair[2]):
        if apart > SAME:
            yield (Edit(file, *sources.span(file, one), number_text(number)),)
    if isinstance(node, ast.Constant) and type(node.value) is int:  # a type's number, where a row begins
        yield from ((Edit(file, *sources.span(file, node), str(node.value + by)),) for by in (1, -1))


def _written(sources: Sources, file: str, row: Row, elements: Sequence[ast.expr]) -> Edit:
    start, end = sources.span(file, row.elts[0])[0], sources.span(file, row.elts[-1])[1]
    return Edit(file, start, end, ", ".join(sources.words(file, one) for one in elements))


def _holds(row: Row) -> bool:
    return any(isinstance(one, (ast.Tuple, ast.List)) for one in row.elts)


def _rows(function: ast.FunctionDef) -> Iterator[Row]:
    """Numbers with a point that are written in a row."""
    for node in walked(function):
        if isinstance(node, (ast.Tuple, ast.List)) and len(node.elts) > 1 and all(map(_is_float, node.elts)):
            yield node


def _is_float(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, float)


def around(text: str, line: int) -> Sequence[ast.FunctionDef]:
    """The functions around a line, and the constructor beside them."""
    tree = parsed(text)
    found: dict[ast.FunctionDef, None] = {}
    for one in walked(tree):
        if isinstance(one, ast.ClassDef) and one.lineno <= line <= (one.end_lineno or 0):
            functions = [part for part in one.body if isinstance(part, ast.FunctionDef)]
            beside = [part for part in functions if part.name == "__init__"]
        elif isinstance(one, ast.FunctionDef):
            functions, beside = [one], []
        else:
            continue
        near = [part for part in functions if part.lineno <= line <= (part.end_lineno or 0)]
        found.update(dict.fromkeys((*near, *beside)))
    return [*found]
