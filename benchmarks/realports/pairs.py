"""The corpus as data: which pairs there are, what is truly different in them, and what is planted.

Nothing here imports a framework.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NETS = Path(__file__).with_name("nets")
HELD_OUT = 8
SEED = 13
_TRUTH_KEYS = {"note", "carry", "differences"}
_KEYS = {"id", "note", "edits", "layers", "lines", "causes", "small", "hidden"}


class CorpusError(ValueError):
    """A file of the corpus that does not keep to the form."""


def matches(pattern: str, path: str) -> bool:
    """Whether a layer's path fits: `*` and `?` stand for what is between two dots, `**` for anything."""
    wild = {"**": ".*", "*": "[^.]*", "?": "[^.]"}
    pieces = re.split(r"(\*\*|\*|\?|\[[^]]+\])", pattern)
    whole = "".join(wild.get(piece, piece if piece.startswith("[") else re.escape(piece)) for piece in pieces)
    return re.fullmatch(whole, path) is not None


@dataclass(frozen=True)
class Edit:
    """A piece of the port's package and what is written in its place."""

    file: str
    old: str
    new: str
    count: int = 1


@dataclass(frozen=True)
class Difference:
    """One thing in which the port is not the reference, and where a fair reader looks for it.

    For one that the port was published with, the edits mend it; for one that is planted, they make it.
    """

    id: str
    pair: str
    note: str
    edits: tuple[Edit, ...]
    layers: tuple[str, ...]  # patterns of paths, the reference's or the port's (see `matches`)
    lines: tuple[str, ...] = ()  # pieces of the port's wrong line
    causes: tuple[str, ...] = ()
    small: bool = False  # moves the last output by less than 1e-3 of its largest value
    hidden: bool = False  # a setting that is another and moves nothing here: naming it is no error, nor is silence

    def is_at(self, entry: Mapping[str, Any]) -> bool:
        """Whether this place that was called wrong is this difference's."""
        paths = [path for path in (entry["layer"], entry.get("port_layer")) if path is not None]
        if any(matches(pattern, path) for path in paths for pattern in self.layers):
            return True
        text = (entry.get("line") or {}).get("text") or ""
        return any(piece in text for piece in self.lines)


@dataclass(frozen=True)
class Pair:
    """A reference and its port, with what was found of them by hand."""

    name: str
    note: str
    differences: tuple[Difference, ...]
    planted: tuple[Difference, ...]
    carry: Mapping[str, Any] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        """Whether the port computes what the reference computes."""
        return not self.told

    @property
    def told(self) -> tuple[Difference, ...]:
        """The differences that must be named."""
        return tuple(one for one in self.differences if not one.hidden)

    @property
    def hidden(self) -> tuple[Difference, ...]:
        """Settings that are others without moving anything."""
        return tuple(one for one in self.differences if one.hidden)

    @property
    def folder(self) -> Path:
        """Where its two nets are built."""
        return NETS / self.name

    @property
    def mended(self) -> list[Edit]:
        """All edits that make the port right."""
        return [edit for difference in self.differences for edit in difference.edits]


def names() -> list[str]:
    """All pairs, by name."""
    return sorted(path.parent.name for path in NETS.glob("*/truth.json"))


def held_out() -> list[str]:
    """The pairs that nobody who works on aligner looks at; drawn before any of them was compared."""
    return sorted(random.Random(SEED).sample(sorted(path.parent.name for path in NETS.glob("*/port.py")), HELD_OUT))


def pair(name: str) -> Pair:
    """One pair.

    Raises:
        CorpusError: says what does not keep to the form.
    """
    folder = NETS / name
    try:
        truth = json.loads((folder / "truth.json").read_text(encoding="utf-8"))
        _known(truth, _TRUTH_KEYS)
        planted = folder / "planted.json"
        bugs = json.loads(planted.read_text(encoding="utf-8")) if planted.exists() else []
        differences = tuple(_differences(name, truth.get("differences", ())))
        return Pair(name, truth["note"], differences, tuple(_differences(name, bugs)), truth.get("carry", {}))
    except (KeyError, TypeError, ValueError) as error:
        raise CorpusError(f"{name}: {error!r}") from error


def _differences(name: str, entries: Any) -> Iterator[Difference]:
    for entry in entries:
        _known(entry, _KEYS)
        yield Difference(
            entry["id"],
            name,
            entry["note"],
            tuple(Edit(*edit) for edit in entry["edits"]),
            tuple(entry["layers"]),
            tuple(entry.get("lines", ())),
            tuple(entry.get("causes", ())),
            entry.get("small", False),
            entry.get("hidden", False),
        )


def _known(entry: Mapping[str, Any], keys: set[str]) -> None:
    unknown = sorted(set(entry) - keys)
    if unknown:
        raise CorpusError(f"unknown key {', '.join(unknown)}")
