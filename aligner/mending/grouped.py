"""An axis of groups, heads as a rule, that is cut before it is split into them, or within each of them: all keys before
all values, or a key and a value for each head.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Optional

from aligner.mending.halves import CUTTING, SEEING, whole_number, worked_on
from aligner.mending.sources import Edit, Sources
from aligner.mending.variations import own, statements
from aligner.source.written import modules
from aligner.words.spelling import bracketed

FEWEST = 2
"""Sizes of what is split: the groups, and what is in each."""


class _Split(NamedTuple):
    """A call that splits the last axis of a value into groups."""

    call: ast.Call
    value: ast.expr
    sizes: Sequence[ast.expr]


class _Parts(NamedTuple):
    """What is cut into equal parts, the call that does so, and the names of the parts."""

    value: ast.expr
    call: ast.Call
    names: Sequence[str]


def grouped(sources: Sources, file: str, line: int) -> Iterator[tuple[Edit, ...]]:
    """In the function around a line: what is cut out of each group instead of out of the whole, and the other way
    round; all that is cut out of one value together.
    """
    around = statements(sources.text(file), line)
    nodes = [node for one in around for node in own(one)]
    imported = modules(sources.text(file))
    splits = [split for node in nodes if (split := _split(node, imported)) is not None]
    parts = [part for one in around if (part := _parts(one, imported)) is not None]
    yield from _within(sources, file, splits, parts, _named(around))
    yield from _across(sources, file, splits, parts, around)


def _within(
    sources: Sources, file: str, splits: Sequence[_Split], parts: Sequence[_Parts], named: Mapping[str, ast.expr]
) -> Iterator[tuple[Edit, ...]]:
    """x[..., n * a : n * b].reshape(s, n, d) as x.reshape(s, n, -1)[..., a:b]; x that is cut into equal parts."""
    found: dict[str, list[Edit]] = {}
    for split in splits:
        cut = named.get(split.value.id, split.value) if isinstance(split.value, ast.Name) else split.value
        lead = ", ".join(sources.words(file, one) for one in split.sizes[:-1])
        if isinstance(cut, ast.Subscript) and (part := _last(cut)) is not None:
            groups, whole = sources.words(file, split.sizes[-2]), sources.words(file, cut.value)
            ends = [_share(sources, file, end, groups) for end in (part.lower, part.upper)]
            text = f"{whole}.reshape({lead}, -1)[..., {' : '.join(ends).strip()}]"
            place = sources.span(file, split.call if split.value is cut else cut)
            found.setdefault(f"{whole} {groups}", []).append(Edit(file, *place, text))
        elif isinstance(split.value, ast.Name):
            for value, _, names in parts:
                if split.value.id in names:
                    text = f"{bracketed(sources.words(file, value))}.reshape({lead}, -1)"
                    found.setdefault(text, [Edit(file, *sources.span(file, value), text)])
    yield from (tuple(dict.fromkeys(edits)) for edits in found.values())


def _across(
    sources: Sources, file: str, splits: Sequence[_Split], parts: Sequence[_Parts], around: Sequence[ast.stmt]
) -> Iterator[tuple[Edit, ...]]:
    """x = y.reshape(s, n, d), x[..., a:b] as x.reshape(s, -1)[..., n * a : n * b].reshape(s, n, -1); the same where it
    is cut into equal parts."""
    for split in splits:
        names = {
            target.id
            for one in around
            if isinstance(one, ast.Assign) and one.value is split.call
            for target in one.targets
            if isinstance(target, ast.Name)
        }
        *lead, groups, _ = (sources.words(file, one) for one in split.sizes)
        flat, seen = f"reshape({', '.join([*lead, '-1'])})", f"reshape({', '.join([*lead, groups, '-1'])})"
        edits = []
        for node in (node for one in around for node in own(one) if isinstance(node, ast.Subscript)):
            part = _last(node) if _name(node.value) in names else None
            if part is not None:
                ends = [_times(sources, file, end, groups) for end in (part.lower, part.upper)]
                text = f"{sources.words(file, node.value)}.{flat}[..., {' : '.join(ends).strip()}].{seen}"
                edits.append(Edit(file, *sources.span(file, node), text))
        for value, call, _ in parts:
            if _name(value) in names:
                text, end, place = sources.text(file), sources.span(file, value)[1], sources.span(file, call)
                cut = f"{text[place[0] : end]}.{flat}{text[end : place[1]]}"
                edits.append(Edit(file, *place, f"(each.{seen} for each in {cut})"))
        yield from [tuple(edits)] if edits else []


def _split(node: ast.AST, imported: frozenset[str]) -> Optional[_Split]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or node.func.attr not in SEEING:
        return None
    value, given = worked_on(node, imported)
    sizes = list(given[0].elts) if len(given) == 1 and isinstance(given[0], (ast.Tuple, ast.List)) else given
    if value is None or len(sizes) < FEWEST or node.keywords or any(isinstance(one, ast.Starred) for one in sizes):
        return None
    return _Split(node, value, sizes)


def _last(node: ast.Subscript) -> Optional[ast.Slice]:
    """The part of the last axis that is taken: x[..., a:b], x[:, :, a:b]."""
    if not isinstance(node.slice, ast.Tuple):
        return None
    *before, last = node.slice.elts
    plain = before and all(ast.unparse(one) in (":", "...") for one in before)
    ends = isinstance(last, ast.Slice) and last.step is None and (last.lower or last.upper)
    return last if isinstance(last, ast.Slice) and plain and ends else None


def _parts(statement: ast.stmt, imported: frozenset[str]) -> Optional[_Parts]:
    """What is cut into equal parts along its last axis."""
    call = statement.value if isinstance(statement, ast.Assign) else None
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute) or call.func.attr != CUTTING[0]:
        return None
    value, given = worked_on(call, imported)
    axes = [*given[1:], *(one.value for one in call.keywords if one.arg in ("axis", "dim"))]
    names = [_name(one) for one in target.elts] if isinstance(target, ast.Tuple) else []
    return _Parts(value, call, names) if value is not None and [*map(whole_number, axes)] == [-1] else None


def _named(around: Sequence[ast.stmt]) -> Mapping[str, ast.expr]:
    """What a name was given to, once."""
    made = [(_name(one.targets[0]), one.value) for one in around if isinstance(one, ast.Assign)]
    names = [name for name, _ in made]
    return {name: value for name, value in made if name and names.count(name) == 1}


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _share(sources: Sources, file: str, end: Optional[ast.expr], groups: str) -> str:
    """n * a as a."""
    if end is None:
        return ""
    if isinstance(end, ast.BinOp) and isinstance(end.op, ast.Mult):
        for one, other in ((end.left, end.right), (end.right, end.left)):
            if sources.words(file, one) == groups:
                return sources.words(file, other)
    return f"{bracketed(sources.words(file, end))} // {bracketed(groups)}"


def _times(sources: Sources, file: str, end: Optional[ast.expr], groups: str) -> str:
    """a as n * a."""
    return "" if end is None else f"{groups} * {bracketed(sources.words(file, end))}"
