"""The layer an operator belongs to, by its full name: `Default/blocks-CellList/1-Block/norm-LayerNorm/LayerNorm-op0`.

In a file's name "/" is "_", which layers have in their names as well. Where the folder tells of full names (the
execution order, the graph), or the net is known, these say where the borders are; else each "-" belongs to a layer and
its class.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

WRAPPED = "_backbone"
ROOTS = ("Default", "Gradients")
TRAINED = "network"
"""The net inside TrainOneStepCell."""
# Casts behind a cell that MindSpore put around one of the user's (amp levels O2 and O3).
CASTS = frozenset({"_OutputTo16", "_OutputTo32", "_OutputToBF16"})
ATOMS = frozenset({"LSTM", "GRU", "RNN", "BatchNorm3d"})
"""Classes that MindSpore builds of cells and torch does not: they are one layer."""
FULL_NAME = re.compile(r"Fullname with scope: \(([^()\n]{1,2000})\)|full_name_with_scope: \(([^()\n]{1,2000})\)")


@dataclass(frozen=True)
class Scope:
    """`classes` has the class of each part of `path`; `backward`: it computes a gradient."""

    path: tuple[str, ...]
    classes: tuple[str, ...]
    backward: bool = False
    known: bool = True
    """Not so for operators whose place MindSpore has forgotten ("Expand/_SiLU/Sigmoid-op0")."""

    @property
    def layer(self) -> str:
        """The dotted path."""
        return ".".join(self.path)


class Scopes:
    """Scopes by the names in files' names."""

    def __init__(self, full_names: Iterable[str]) -> None:
        """`full_names` as the folder tells them, or the net."""
        self._borders: dict[str, str] = {}
        self._tails: dict[str, str] = {}
        """Scopes by the operator's own name, "" where several have it: older MindSpores write no more into a file's."""
        for name in full_names:
            whole, _, tail = name.strip().rpartition("/")
            self._tails[plain(tail)] = whole if self._tails.get(plain(tail), whole) == whole else ""
            while whole:
                self._borders.setdefault(plain(whole), whole)
                whole = whole.rpartition("/")[0]
        self._found: dict[str, Scope] = {}

    def of(self, name: str) -> Scope:
        """The scope of an operator, from a file's name."""
        if name not in self._found:
            scope = name.rpartition("_")[0]
            outer, _, rest = scope.rpartition("_")
            if scope not in self._borders and "-" not in rest and outer in self._borders:
                scope = outer  # the operator has a "_" in its own name
            whole = self._borders.get(scope) or self._tails.get(name) or guessed(scope)
            self._found[name] = of_parts(whole.split("/"))
        return self._found[name]


def plain(name: str) -> str:
    """A name as it stands in a file's name."""
    return re.sub(r"[/.:]", "_", name)


def guessed(scope: str) -> str:
    """Borders put back: what has no class yet goes on."""
    first, _, rest = scope.partition("_")
    parts = [first]
    pending: list[str] = []
    for word in rest.split("_") if rest else []:
        inside = bool(pending) and pending[-1].endswith("-")  # "norm-_OutputTo16"
        pending.append(word)
        if inside or ("-" in word and not word.endswith("-")):
            parts.append("_".join(pending))
            pending = []
    if pending:
        parts.append("_".join(pending))
    return "/".join(parts)


def of_parts(parts: list[str]) -> Scope:
    """The layer that these parts name, without what MindSpore put around the user's."""
    root, cells = parts[0], [part.rpartition("-") for part in parts[1:]]
    backward = root == "Gradients" or any(part.startswith("Gradients") for part in parts)
    if root not in ROOTS or not all(name and kind and "." not in name for name, _, kind in cells):
        return Scope((), (), backward, known=False)
    named = [(name, kind) for name, _, kind in cells]
    if named and named[0][0] == TRAINED:
        named = named[1:]
    path: list[str] = []
    classes: list[str] = []
    for at, (name, kind) in enumerate(named):
        if name == WRAPPED:
            if path:
                classes[-1] = kind
            continue
        if kind in CASTS and at + 1 == len(named):  # the cast behind the layer is the code's around it
            break
        path.append(name)
        classes.append(kind)
        if kind in ATOMS:
            break
    return Scope(tuple(path), tuple(classes), backward)


def full_names(texts: Iterable[str]) -> list[str]:
    """Operators' full names from execution orders and graphs."""
    found: dict[str, None] = {}
    for text in texts:
        for match in FULL_NAME.finditer(text):
            found[match[1] or match[2]] = None
        if text.startswith("NodeExecutionOrder"):
            found.update(dict.fromkeys(line.strip() for line in text.splitlines()[1:]))
    return list(found)
