"""The edits of a comparison as one unified diff, for `git apply` or `patch -p1` in the user's folder.

What a dump says is not trusted: only files inside that folder are named, and only where the lines stand there as the
dump has them.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from aligner.compare.verdict import Comparison
from aligner.explain.edit import Hunk


@dataclass(frozen=True)
class Patch:
    """A diff, the files that it changes, and edits that could not be taken in: message id and facts."""

    text: str
    files: tuple[str, ...]
    left: tuple[tuple[str, Mapping[str, object]], ...]


def patch(comparison: Comparison, folder: Path) -> Patch:
    """Of all edits that are right wherever their lines run."""
    wanted: dict[Path, dict[tuple[int, str], Hunk]] = {}
    left: list[tuple[str, Mapping[str, object]]] = []
    for hunk in _hunks(comparison):
        file = _inside(folder, hunk.file)
        facts = {"file": hunk.file, "line": hunk.line, "folder": os.path.realpath(folder)}
        if file is None:
            left.append(("patch-outside", facts))
        elif any(not text.isprintable() for text in (*hunk.before.split("\n"), *hunk.after.expandtabs().split("\n"))):
            left.append(("patch-unprintable", facts))
        elif not _stands(file, hunk):
            left.append(("patch-changed", facts))
        else:
            wanted.setdefault(file, {})[hunk.line, hunk.before] = hunk  # a later edit of a line has the earlier in it
    texts = [_diff(file, folder, hunks.values()) for file, hunks in wanted.items()]
    return Patch("".join(texts), tuple(file.relative_to(folder).as_posix() for file in wanted), tuple(left))


def _hunks(comparison: Comparison) -> Iterator[Hunk]:
    seen: set[Hunk] = set()
    for origin in (*comparison.origins, *comparison.suspects):
        if origin.edit is not None and not origin.edit.broken:
            yield from (hunk for hunk in origin.edit.hunks if hunk not in seen)
            seen.update(origin.edit.hunks)


def _inside(folder: Path, name: str) -> Optional[Path]:
    """The file of the folder that is meant: by its path, or, where the folder lay elsewhere, by the end of it."""
    real = Path(os.path.realpath(folder))
    parts = Path(name).parts
    for start in range(len(parts)):
        file = Path(os.path.realpath(real.joinpath(*parts[start:]) if start else name))
        if real in file.parents and file.is_file():
            return Path(folder) / file.relative_to(real)
    return None


def _stands(file: Path, hunk: Hunk) -> bool:
    """Whether the lines are there as they were when the edit was run."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False
    before = hunk.before.split("\n") if hunk.before else []
    return lines[hunk.line - 1 : hunk.line - 1 + len(before)] == before


def _diff(file: Path, folder: Path, hunks: Iterable[Hunk]) -> str:
    with open(file, encoding="utf-8", newline="") as opened:
        old = opened.read()
    ending = "\r\n" if "\r\n" in old else "\n"
    lines = old.splitlines(keepends=True)
    for hunk in sorted(hunks, key=lambda one: one.line, reverse=True):
        count = len(hunk.before.split("\n")) if hunk.before else 0
        new = [f"{line}{ending}" for line in hunk.after.split("\n")] if hunk.after else []
        lines[hunk.line - 1 : hunk.line - 1 + count] = new
    name = file.relative_to(folder).as_posix()
    found = []
    for line in difflib.unified_diff(old.splitlines(keepends=True), lines, f"a/{name}", f"b/{name}"):
        found.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(found)
