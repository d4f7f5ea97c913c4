"""The corpus as data: which nets there are, and how each planted bug is made and what must be said of it.

Nothing here imports a framework; the form of the corpus is held by tests/endtoend/test_portbugs_corpus.py.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Optional

NETS = Path(__file__).with_name("nets")
KINDS = ("attribute", "default", "approximation", "glue", "parameter", "dtype")
PLACES = ("layer", "glue", "parameters")
_BUG_KEYS = {"id", "kind", "edits", "origins", "below", "allow_missing", "note"}
_ORIGIN_KEYS = {"layer", "where", "between", "causes", "also"}


class CorpusError(ValueError):
    """A bugs.json that does not keep to the form."""


@dataclass(frozen=True)
class Origin:
    """One place where the port is wrong by itself, in the reference's words.

    `where` holds the places that a fair reader accepts; `also` names, as patterns, other layers where the same
    mistake shows because their code is shared.
    """

    layer: str
    where: tuple[str, ...]
    causes: tuple[str, ...]
    between: Optional[tuple[str, str]] = None
    also: tuple[str, ...] = ()

    def is_at(self, layer: str) -> bool:
        """Whether `layer` is this origin or another place of the same mistake."""
        return layer == self.layer or any(fnmatchcase(layer, pattern) for pattern in self.also)


@dataclass(frozen=True)
class Edit:
    """A piece of port.py and what a careless engineer writes in its place."""

    old: str
    new: str
    count: int = 1


@dataclass(frozen=True)
class Bug:
    """A planted bug: the mistake, the edits that make it, and the origins that must be named."""

    id: str
    net: str
    kind: str
    note: str
    edits: tuple[Edit, ...]
    origins: tuple[Origin, ...]
    below: bool = False
    allow_missing: bool = False

    @property
    def double(self) -> bool:
        """Whether two bugs were planted at once."""
        return len(self.origins) > 1


def nets(folder: Path = NETS) -> list[Path]:
    """The folders of all nets, by name."""
    return sorted(path.parent for path in folder.glob("*/bugs.json"))


def bugs(net: Path) -> Iterator[Bug]:
    """The bugs of one net, in the order of its file.

    Raises:
        CorpusError: says which entry does not keep to the form.
    """
    for entry in json.loads((net / "bugs.json").read_text(encoding="utf-8")):
        try:
            yield _bug(net.name, entry)
        except (KeyError, TypeError, ValueError) as error:
            raise CorpusError(f"{net.name}/bugs.json: {entry.get('id', entry)}: {error}") from error


def planted(text: str, bug: Bug) -> str:
    """The port's text with the bug in it.

    Raises:
        CorpusError: a piece to be replaced does not occur as often as it should.
    """
    for edit in bug.edits:
        found = text.count(edit.old)
        if found != edit.count:
            raise CorpusError(f"{bug.id}: {edit.old!r} occurs {found} times in port.py, not {edit.count}")
        text = text.replace(edit.old, edit.new)
    return text


def changed(before: str, after: str) -> frozenset[int]:
    """The lines of the statements in `after` that a bug has changed; where it took some away, those around the gap."""
    lines: set[int] = set()
    matcher = SequenceMatcher(None, before.splitlines(), after.splitlines(), autojunk=False)
    for kind, _, _, first, last in matcher.get_opcodes():
        if kind != "equal":
            lines.update(range(first + 1, last + 1) if last > first else (first, first + 1))
    for node in ast.walk(ast.parse(after)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            rows = set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            lines |= rows if rows & lines else set()
    return frozenset(lines)


def _bug(net: str, entry: Mapping[str, Any]) -> Bug:
    _known(entry, _BUG_KEYS)
    if entry["kind"] not in KINDS:
        raise CorpusError(f"kind {entry['kind']!r} is none of {', '.join(KINDS)}")
    return Bug(
        entry["id"],
        net,
        entry["kind"],
        entry["note"],
        tuple(Edit(*edit) for edit in entry["edits"]),
        tuple(_origin(origin) for origin in entry["origins"]),
        entry.get("below", False),
        entry.get("allow_missing", False),
    )


def _origin(entry: Mapping[str, Any]) -> Origin:
    _known(entry, _ORIGIN_KEYS)
    where = (entry["where"],) if isinstance(entry["where"], str) else tuple(entry["where"])
    if not where or any(place not in PLACES for place in where):
        raise CorpusError(f"where {entry['where']!r} is none of {', '.join(PLACES)}")
    between = entry.get("between")
    if between is not None:
        before, after = between
        between = (before, after)
    return Origin(entry["layer"], where, tuple(entry["causes"]), between, tuple(entry.get("also", ())))


def _known(entry: Mapping[str, Any], keys: set[str]) -> None:
    unknown = sorted(set(entry) - keys)
    if unknown:
        raise CorpusError(f"unknown key {', '.join(unknown)}")
