"""The lines that edits have changed, and the numbers that came with them."""

from __future__ import annotations

import ast
import difflib
import inspect
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Optional

from aligner.mending.sources import Sources
from aligner.source.written import parsed, source

LEAST_SIZE = 4
"""Smaller numbers are axes and counts more often than sizes."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d*)?(?![\w.])")
_WHOLE = re.compile(r"(?<![\w.])\d+(?![\w.])")


def sizes(
    edits: Iterable[Mapping[str, Any]], shapes: Iterable[Sequence[int]], reference: Iterable[str] = ()
) -> list[int]:
    """Whole numbers that come with these edits and are sizes of values: right for this input, maybe for no other. What
    the reference's own lines write out is as right as they are.
    """
    came, went = Counter[int](), Counter[int]()
    for edit in edits:
        for lines, found in ((edit["after"], came), (edit["before"], went)):
            found.update(int(word) for line in lines for word in _WHOLE.findall(line))
    known = {size for shape in shapes for size in shape if size >= LEAST_SIZE}
    said = {float(word) for line in reference for word in _NUMBER.findall(line)}
    return sorted(({*(came - went)} & known) - said)


def hunks(old: Sources, new: Sources) -> Iterator[Mapping[str, Any]]:
    """The lines that were changed, as they stand and as they shall."""
    for file, text in sorted(new.texts.items()):
        known = _changes(source(file), old.text(file))
        for line, before, after in _changes(source(file), text):
            if (line, before, after) not in known:
                column = next((n for n, (x, y) in enumerate(zip(before, after)) if x != y), 0)
                lines = {"before": before.split("\n"), "after": after.split("\n")}
                yield {"file": file, "line": line, "column": column + 1, **lines}


def line_by_line(hunks: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """The same, each changed line by itself where as many stand in the place of as many."""
    for hunk in hunks:
        before, after = hunk["before"], hunk["after"]
        pairs = [*zip(before, after)] if len(before) == len(after) else []
        for more, (one, other) in enumerate(pairs):
            if one != other:
                yield {**hunk, "line": int(hunk["line"]) + more, "before": [one], "after": [other]}
        yield from [] if pairs else [hunk]


def shared(old: Sources, new: Sources) -> bool:
    """Whether something is changed outside of all classes, which any layer may use."""
    return any(not _in_class(old.text(one["file"]), int(one["line"])) for one in hunks(old, new))


def within(hunks: Sequence[Mapping[str, Any]], kind: type) -> bool:
    """Whether all of these lines stand in a class."""
    try:
        lines, first = inspect.getsourcelines(kind)
        file = inspect.getsourcefile(kind)
    except (OSError, TypeError):
        return False
    places = [(one["file"], int(one["line"])) for one in hunks]
    return bool(places) and all(where == file and first <= line < first + len(lines) for where, line in places)


def _in_class(text: str, line: int) -> bool:
    classes = (node for node in parsed(text).body if isinstance(node, ast.ClassDef))
    return any(node.lineno <= line <= (node.end_lineno or node.lineno) for node in classes)


def _changes(old: str, new: str) -> list[tuple[int, str, str]]:
    """Line, what stands there, what shall."""
    lines = old.splitlines(), new.splitlines()
    return [
        (a + 1, "\n".join(lines[0][a:b]), "\n".join(lines[1][c:d]))
        for kind, a, b, c, d in difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes()
        if kind != "equal"
    ]


def rebuilt(hunks: Iterable[Mapping[str, Any]]) -> Optional[Sources]:
    """The sources with these changes alone; None where some were made in lines that others had changed."""
    texts: dict[str, list[str]] = {}
    for hunk in sorted(hunks, key=lambda one: -int(one["line"])):
        lines = texts.setdefault(hunk["file"], source(hunk["file"]).splitlines())
        first, before = int(hunk["line"]) - 1, hunk["before"] if hunk["before"] != [""] else []
        if lines[first : first + len(before)] != before:
            return None
        lines[first : first + len(before)] = hunk["after"] if hunk["after"] != [""] else []
    return Sources({file: "\n".join(lines) + "\n" for file, lines in texts.items()})
