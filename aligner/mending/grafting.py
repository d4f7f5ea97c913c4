"""What the reference does, statement by statement, in the port's words before the line that it is for: where no smaller
edit is right, and one expression would be too long.
"""

from __future__ import annotations

import ast
import builtins
import keyword
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple, Optional

from aligner.mending.anchor import Anchor
from aligner.mending.candidate import MISSING, Candidate
from aligner.mending.events import LAYER, Event, values_of
from aligner.mending.matching import Matching
from aligner.mending.sources import Edit, Sources, balanced, bare, edit_of
from aligner.mending.texts import DEEPEST, Texts
from aligner.mending.variations import statements
from aligner.source.written import walked
from aligner.words.spelling import bracketed
from aligner.words.templates import TORCH

LEAST, MOST = 3, 48
"""Steps of the reference's that are written so."""

VALUES, PLACES = 6, 12
"""Values of the reference's from either end that are written, and places at which they are."""

HIGH = 4
"""Steps in one expression, at most."""

_PLAIN = (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Return, ast.Expr)
_INNER = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class _Place(NamedTuple):
    """Where statements may be written: the offset in the file's text, what stands before it on its line, the statements
    of the function, and names that it has.
    """

    start: int
    indent: str
    statements: Sequence[ast.stmt]
    names: set[str]


def grafted(
    matching: Matching, texts: Texts, sources: Sources, anchors: Sequence[Anchor], until: float
) -> Iterator[Candidate]:
    """Steps on the way to the wrong value, its last ones and its first ones, where expressions of their shape stand; as
    long as there is time.
    """
    lacking = [value for value, made in reversed(matching.missing) if made is not None and made.word != LAYER]
    for number, value in enumerate(dict.fromkeys([*lacking[:VALUES], *lacking[: -VALUES - 1 : -1]])):
        alike = [one for one in anchors if _shape(matching, one) == matching.ours.shapes[value]]
        for anchor in alike[:PLACES]:
            if time.monotonic() > until:
                return
            edits = _graft(matching, texts, sources, replace(anchor, said={}, unsaid={}), value)
            if edits is not None:
                lines = edits[0].new.count("\n") + sum(len(edit.new) for edit in edits[1:]) / 100
                whole = anchor.node is anchor.event.node and bool(anchor.event.results)
                move = anchor.event, None if whole else anchor.node, value, None
                yield Candidate(10.0 + lines + 0.1 * number, edits, MISSING, (move,))


def _shape(matching: Matching, anchor: Anchor) -> Optional[tuple[int, ...]]:
    return matching.theirs.shapes[anchor.value] if isinstance(anchor.value, int) else None


def _graft(
    matching: Matching, texts: Texts, sources: Sources, anchor: Anchor, value: int
) -> Optional[tuple[Edit, ...]]:
    """The statements, and what is made of them there; what nobody reads any more goes, and its names are free then."""
    site = anchor.event.site
    place = None if site is None else _place(sources, site.file, site.line, anchor)
    order = [] if place is None else _steps(matching, texts, anchor, value)
    if site is None or place is None or not LEAST <= len(order) <= MOST:
        return None
    try:
        lines, last = _written(matching, texts, anchor, order, place, ())
        gone = _unread(sources, site.file, place, anchor.node, f"{lines} {last}")
        lines, last = _written(matching, texts, anchor, order, place, gone)
    except LookupError:
        return None
    text, end = sources.text(site.file), edit_of(sources, site.file, anchor.node, last)
    if not lines or (end is not None and end.start < place.start):
        return None
    edits = [] if end is None else [end]
    for one in gone:
        start, stop = sources.span(site.file, one)
        edits.append(Edit(site.file, text.rfind("\n", 0, start) + 1, text.find("\n", stop) + 1, ""))
    written = "".join(f"{line}\n{place.indent}" for line in lines)
    return Edit(site.file, place.start, place.start, written), *edits


def _written(
    matching: Matching, texts: Texts, anchor: Anchor, order: Sequence[int], place: _Place, gone: Sequence[ast.stmt]
) -> tuple[list[str], str]:
    """Statements that make these values one after the other, and the last one's text; names of what is `gone` are free.

    Raises:
        LookupError: there are no words for one.
    """
    anchor, free = replace(anchor, said={}, unsaid={}), {name for one in gone for name in _made(one)}
    free -= {name for one in place.statements if one not in gone for name in _made(one)}
    taken = {*place.names, *anchor.event.scope, *dir(builtins), *keyword.kwlist} - free
    makers = matching.makers[0]
    uses = Counter(operand for one in order for operand in values_of(makers[one]))
    said, lines, own = _names(matching, order), list[str](), set[str]()

    def name_of(value: int) -> str:
        name = said.get(value, "part")
        while name in taken:
            name += "_"
        taken.add(name)
        return name

    for one in order:
        written = _into(texts, anchor, makers[one])
        if written is not None:  # a statement of its own
            into = anchor.said.get(values_of(makers[one])[0], ("", 0))[0]
            lone = into in own and uses[values_of(makers[one])[0]] == 1
            anchor.said[one] = into if lone else name_of(one), 0
            own.add(anchor.said[one][0])
            lines += [line.format(anchor.said[one][0]) for line in written[lone:]]
            continue
        text = texts.text(one, anchor)
        if one == order[-1]:
            continue
        if uses[one] > 1 or one in said or anchor.said[one][1] >= HIGH:
            name = name_of(one)
            whole = text.startswith("(") and text.endswith(")") and balanced(text[1:-1])
            lines.append(f"{name} = {bare(text[1:-1] if whole else text)}")
            anchor.said[one] = name, 0
    return lines, texts.text(order[-1], anchor)


def _into(texts: Texts, anchor: Anchor, made: Event) -> Optional[tuple[str, str]]:
    """Items of a value that are written into a copy of it, which has no name yet; nothing for other steps.

    Raises:
        LookupError: there are no words for what is written.
    """
    index = made.arguments.get("index", ())
    if made.word != "setitem" or "tensor" in index or len(made.operands) != 2:
        return None
    into, value = (texts.text(one, anchor).replace("{", "{{").replace("}", "}}") for one in made.operands)
    items = texts.argument(anchor.event, made, "index", index)
    copied = "clone" if texts.side == TORCH and not anchor.is_array else "copy"
    return f"{{}} = {bracketed(into)}.{copied}()", f"{{}}[{items}] = {bare(value)}"


def _steps(matching: Matching, texts: Texts, anchor: Anchor, value: int) -> list[int]:
    """Values that have no words there, what they are made of before them; none where there are too many."""
    order, seen, left = list[int](), set[int](), [(value, False)]
    while left and len(seen) <= 2 * MOST:
        one, over = left.pop()
        if over:
            order.append(one)
        elif one not in seen:
            seen.add(one)
            made = matching.makers[0].get(one)
            if made is not None and not _is_said(texts, anchor, one):
                left.append((one, True))
                left += [(other, False) for other in reversed(values_of(made))]
    return order if not left else []


def _is_said(texts: Texts, anchor: Anchor, value: int) -> bool:
    try:
        return bool(texts.text(value, anchor, DEEPEST))
    except LookupError:
        return False


def _names(matching: Matching, values: Sequence[int]) -> dict[int, str]:
    """What the reference calls those of them that it gives a name."""
    made = {value: matching.makers[0][value] for value in values}
    inner = {(operand, event.text) for event in made.values() for operand in values_of(event)}
    places = {event: number for number, event in enumerate(matching.ours.events)}
    found: dict[int, str] = {}
    for text in dict.fromkeys(event.text for event in made.values()):
        leaving = [v for v, event in made.items() if event.text == text and (v, text) not in inner]
        leaving.sort(key=lambda value: places[made[value]])
        targets = _targets(text)
        found.update(zip(leaving, targets) if len(leaving) == len(targets) else ())
    return found


def _targets(text: str) -> list[str]:
    try:
        tree = ast.parse(text).body
    except SyntaxError:
        return []
    target = tree[0].targets[0] if tree and isinstance(tree[0], ast.Assign) else None
    each = target.elts if isinstance(target, ast.Tuple) else [target]
    return [one.id for one in each if isinstance(one, ast.Name)] if len(tree) == 1 else []


def _unread(sources: Sources, file: str, place: _Place, node: ast.AST, written: str) -> list[ast.stmt]:
    """What nobody reads any more when this is written in the place of `node`."""
    before, inside = _dead(place, set(), set()), {*map(id, walked(node))}
    after = _dead(place, inside, set(re.findall(r"\w+", written)))
    return [one for one in after if one not in before and sources.span(file, one)[1] <= place.start]


def _dead(place: _Place, but: set[int], said: set[str]) -> list[ast.stmt]:
    """Statements beside the place that give names to what nobody reads, and call no layer; those `but` read nothing."""
    plain = [
        one
        for one in place.statements
        if isinstance(one, ast.Assign) and one.col_offset == len(place.indent) and all(map(_is_named, one.targets))
        if not any(isinstance(node, ast.Call) and ast.unparse(node.func).startswith("self.") for node in walked(one))
    ]
    dead: list[ast.stmt] = []
    while True:
        gone = {id(node) for one in dead for node in walked(one)} | but
        names = (node for one in place.statements for node in walked(one) if isinstance(node, ast.Name))
        read = {node.id for node in names if isinstance(node.ctx, ast.Load) and id(node) not in gone} | said
        more = [one for one in plain if one not in dead and not read & _made(one)]
        if not more:
            return dead
        dead += more


def _is_named(target: ast.expr) -> bool:
    each = target.elts if isinstance(target, ast.Tuple) else [target]
    return all(isinstance(one, ast.Name) for one in each)


def _made(statement: ast.stmt) -> set[str]:
    names = (node for node in walked(statement) if isinstance(node, ast.Name))
    return {node.id for node in names if isinstance(node.ctx, ast.Store)}


def _place(sources: Sources, file: str, line: int, anchor: Anchor) -> Optional[_Place]:
    """Before the statement that the expression is in; none where that is no plain one, or it has names of its own."""
    text, span = sources.text(file), sources.span(file, anchor.node)

    def around(node: ast.AST) -> bool:
        start, end = sources.span(file, node)
        return start <= span[0] and span[1] <= end

    found = statements(text, line)
    inside = [one for one in found if around(one)]
    innermost = max(inside, key=lambda one: (one.lineno, one.col_offset), default=None)
    if innermost is None or not isinstance(innermost, _PLAIN):
        return None
    if any(isinstance(node, _INNER) and around(node) for node in walked(innermost)):
        return None
    start = sources.span(file, innermost)[0]
    indent = text[text.rfind("\n", 0, start) + 1 : start]
    names = {node.id for one in found for node in walked(one) if isinstance(node, ast.Name)}
    return _Place(start, indent, found, {*names, *anchor.event.names}) if not indent.strip() else None
