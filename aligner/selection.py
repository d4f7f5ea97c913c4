"""Which layers a user's patterns name: `--layers "encoder.*"`."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

EVERYTHING = ("*",)


def matches(path: str, patterns: Iterable[str]) -> bool:
    """Whether a pattern names this layer; a pattern without wildcards also names everything inside."""
    return any(fnmatch.fnmatchcase(path, pattern) or path.startswith(f"{pattern}.") for pattern in patterns)
