"""The texts of the port's files, as they stand or with edits, and where in them an expression is."""

from __future__ import annotations

import ast
import difflib
import io
import itertools
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Optional

from aligner.mending.events import Site
from aligner.source.written import changed, parsed, source, walked
from aligner.words.spelling import bracketed


@dataclass(frozen=True, order=True)
class Edit:
    """What stands from `start` to `end` in a file's text, and what shall."""

    file: str
    start: int
    end: int
    new: str


class Sources:
    """Texts by file; those without edits are read when they are asked for."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = dict(texts)

    def text(self, file: str) -> str:
        """What stands there."""
        return self.texts.get(file) or source(file)

    def edited(self, edits: Iterable[Edit]) -> Sources:
        """The texts with these edits.

        Raises:
            SyntaxError: it is no Python then.
        """
        texts = dict(self.texts)
        for edit in sorted(edits, reverse=True):
            text = texts.get(edit.file) or source(edit.file)
            texts[edit.file] = text[: edit.start] + edit.new + text[edit.end :]
        for file in {edit.file for edit in edits}:
            if changed(source(file), texts[file]) is None:
                parsed(texts[file])
        return Sources(texts)

    def words_at(self, edit: Edit) -> str:
        """What stands where an edit is made."""
        return self.text(edit.file)[edit.start : edit.end]

    def line(self, edit: Edit) -> str:
        """The line that an edit begins in, with single spaces."""
        text = self.text(edit.file)
        start, stop = text.rfind("\n", 0, edit.start) + 1, text.find("\n", edit.start)
        return " ".join(text[start : stop if stop >= 0 else len(text)].split())

    def added(self) -> set[str]:
        """Names of what the edits call once more than the files do: "norm" for `self.norm(x)`."""
        return {name for file, text in self.texts.items() for name in _called(text) - _called(source(file))}

    def removed(self) -> set[str]:
        """The same of what they call less often."""
        return {name for file, text in self.texts.items() for name in _called(source(file)) - _called(text)}

    def node(self, site: Site) -> Optional[ast.AST]:
        """The expression or statement that stands there."""
        text, own = self.text(site.file), source(site.file)
        part = changed(own, text)
        if part is None:
            return _nodes(parsed(text)).get(site[1:])
        inside = part.new.lineno <= site.line <= (part.new.end_lineno or 0)
        return _nodes(part.new if inside else parsed(own)).get(site[1:])

    def span(self, file: str, node: ast.AST) -> tuple[int, int]:
        """Where in the text it begins and ends; columns of a tree count bytes."""
        text = self.text(file)
        first, last = (
            (node.lineno, node.col_offset),  # type: ignore[attr-defined]  # each expression has them
            (node.end_lineno, node.end_col_offset),  # type: ignore[attr-defined]  # as above
        )
        return _offset(text, *first), _offset(text, *last)

    def function(self, file: str, line: int) -> tuple[str, int]:
        """The innermost function around a line: its file, and the line on which it begins."""
        return file, max((first for first, last in _functions(self.text(file)) if first < line <= last), default=0)

    def name(self, file: str, node: Optional[ast.AST]) -> Optional[str]:
        """The variable that an assignment makes of an expression as it is."""
        return _named(self.text(file)).get((node.lineno, node.col_offset)) if isinstance(node, ast.expr) else None

    def words(self, file: str, node: ast.AST) -> str:
        """The source of an expression."""
        start, end = self.span(file, node)
        return self.text(file)[start:end]


_CALL = re.compile(r"\bself\.(?:\w+\.)*(\w+)(?:\[[^\]]*\])*\(")


@lru_cache(maxsize=32)
def _called(text: str) -> Counter[str]:
    return Counter(_CALL.findall(text))


@lru_cache(maxsize=32)
def _named(text: str) -> Mapping[tuple[int, int], str]:
    """By where the right sides of assignments begin."""
    found = (one for one in walked(parsed(text)) if isinstance(one, ast.Assign))
    return {
        (one.value.lineno, one.value.col_offset): t.id for one in found if isinstance(t := one.targets[0], ast.Name)
    }


@lru_cache(maxsize=32)
def _functions(text: str) -> Sequence[tuple[int, int]]:
    kinds = ast.FunctionDef, ast.AsyncFunctionDef
    return [(one.lineno, one.end_lineno or 0) for one in walked(parsed(text)) if isinstance(one, kinds)]


@lru_cache(maxsize=32)
def _nodes(tree: ast.AST) -> Mapping[tuple[int, ...], ast.AST]:
    """Expressions and statements by where they stand; of those of one place the outermost expression."""
    found: dict[tuple[int, ...], ast.AST] = {}
    for node in walked(tree):
        if isinstance(node, (ast.expr, ast.Return, ast.Assign, ast.AugAssign)):
            place = node.lineno, node.col_offset, node.end_lineno or 0, node.end_col_offset or 0
            found.setdefault(place, node)
    return found


@lru_cache(maxsize=32)
def _lines(text: str) -> tuple[Sequence[str], Sequence[int]]:
    lines = text.splitlines(keepends=True)
    return lines, [0, *itertools.accumulate(map(len, lines))]


def _offset(text: str, line: int, column: int) -> int:
    lines, starts = _lines(text)
    return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())


def change(old: str, new: str) -> float:
    """How much an edit changes: words that come weigh more than those that go."""
    codes = difflib.SequenceMatcher(None, _tokens(old), _tokens(new), autojunk=False).get_opcodes()
    return sum((d - c) + 0.25 * (b - a) for kind, a, b, c, d in codes if kind != "equal") + 0.01 * len(new)


@lru_cache(maxsize=4096)
def _tokens(text: str) -> list[str]:
    try:
        found = [one.string for one in tokenize.generate_tokens(io.StringIO(f"({text})").readline)]
    except (tokenize.TokenError, SyntaxError):
        return text.split()
    return [one for one in found if one.strip()][1:-1]


def balanced(text: str) -> bool:
    """Whether no bracket in it closes one outside."""
    depth = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            return False
    return depth == 0


def edit_of(sources: Sources, file: str, node: ast.AST, new: str) -> Optional[Edit]:
    """The edit that puts this text in an expression's place, without brackets that are not needed; None if it is the
    same.
    """
    text = sources.text(file)
    start, end = sources.span(file, node)
    new = bare(new)
    signs = tuple("+-*/@.%&|^~")
    whole = new.startswith("(") and new.endswith(")") and balanced(new[1:-1]) and not _is_tuple(new)
    if whole and not text[:start].rstrip().endswith(signs) and text[end : end + 2].strip()[:1] not in (*signs, "["):
        new = new[1:-1]
    before = text[:start].rstrip()
    last = before[:-1].rstrip()[-1:]
    lone = before.endswith("(") and text[end:].lstrip().startswith(")") and not (last.isalnum() or last in tuple("_)]"))
    if lone and bracketed(new) == new:
        start, end = len(before) - 1, text.index(")", end) + 1
    return None if new == text[start:end] else Edit(file, start, end, new)


def bare(text: str) -> str:
    """Without brackets that change nothing inside it; those around it may."""
    if text.startswith("(") and text.endswith(")") and balanced(text[1:-1]) and not _is_tuple(text):
        return f"({bare(text[1:-1])})"
    try:
        plain = ast.unparse(ast.parse(text, mode="eval").body)
    except SyntaxError:
        return text
    said, left = ([one for one in _tokens(words) if one not in "()"] for words in (text, plain))
    if len(said) != len(left) or plain.count("(") >= text.count("(") or _is_tuple(text):
        return text
    at = 0
    for one, other in zip(said, left):
        if one != other and not _is_same_number(one, other):
            return text
        at = plain.index(other, at)
        plain = f"{plain[:at]}{one}{plain[at + len(other) :]}"  # 0.30 stays as it was written
        at += len(one)
    return plain


def _is_same_number(one: str, other: str) -> bool:
    try:
        return float(one) == float(other)
    except ValueError:
        return False


def _is_tuple(text: str) -> bool:
    try:
        return isinstance(ast.parse(text, mode="eval").body, ast.Tuple)
    except SyntaxError:
        return False


def less(sources: Sources, file: str, call: ast.Call, value: ast.AST) -> Edit:
    """A call without an argument that it is given by name."""
    end = sources.span(file, value)[1]
    ends = [sources.span(file, one)[1] for one in (*call.args, *(each.value for each in call.keywords))]
    before = max((one for one in ends if one < end), default=0)
    return Edit(file, before or sources.span(file, call.func)[1] + 1, end, "")
