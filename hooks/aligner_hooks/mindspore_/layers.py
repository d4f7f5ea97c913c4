"""Which cells a net has and what they are called, including those MindSpore itself does not know of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from inspect import unwrap
from typing import Any, NamedTuple

from mindspore import nn

from aligner.record import Note, Scalar, display
from aligner_hooks.mindspore_.spec import is_a, unread
from aligner_hooks.mindsporelike.graphs.graph import untold
from aligner_hooks.mindsporelike.nets import WRAPPED, is_wrapper, registered

MAX_NESTING = 8
# What most of a cell's attributes are; to ask whether it is a Mapping takes longer.
PLAIN = (str, int, float, type(None))
# Cell.recompute() registers the cell that does it on the cell itself.
RECOMPUTED = "_recompute_cell"
# Cells that MindSpore builds some of its layers from and torch does not: they are parts of the layer, not layers.
PARTS: tuple[tuple[type[nn.Cell], tuple[str, ...]], ...] = (
    (nn.BatchNorm3d, ("bn2d",)),
    (nn.LSTM, ("rnn", "dropout_op")),
    (nn.GRU, ("rnn", "dropout_op")),
    (nn.RNN, ("rnn", "dropout_op")),
)


class Place(NamedTuple):
    """A cell and where it stands; `listed` is the path of the plain list, tuple or dict it stands in, else ""."""

    path: str
    cell: nn.Cell
    listed: str


def places(model: nn.Cell) -> Iterator[Place]:
    """Every cell once, under its first path, parents before children, registered children before hidden ones.

    A wrapper of MindSpore and the cell inside it have one path; the inner one, which the user wrote, is given.
    """
    seen: set[int] = set()
    paths: set[str] = set()

    def walk(path: str, cell: nn.Cell, listed: str) -> Iterator[Place]:
        if id(cell) in seen or isinstance(cell, nn.Optimizer):
            return
        seen.add(id(cell))
        children = registered(cell)
        for name, part in parts(cell):
            seen.add(id(part))
            children.pop(name)
        if is_wrapper(cell):
            yield from walk(path, children.pop(WRAPPED), listed)
        elif path not in paths:  # not so for a plain list that has the name of a registered child
            paths.add(path)
            yield Place(path, cell, listed)
        for name, child in children.items():
            yield from walk(_join(path, name), child, "")
        for attribute, name, child in hidden(cell):
            yield from walk(_join(path, name), child, _join(path, attribute))

    yield from walk("", model, "")


def parts(cell: nn.Cell) -> list[tuple[str, nn.Cell]]:
    """The cells that this one is made of and that are no layers of their own."""
    names = {name for kind, names in PARTS if is_a(cell, kind) for name in names} | {RECOMPUTED}
    return [(name, child) for name, child in registered(cell).items() if name in names]


def cautions(model: nn.Cell) -> Iterator[Note]:
    """What of this net cannot be seen, and why."""
    for path, cell, listed in places(model):
        facts: dict[str, Scalar] = {"layer": display(path), "type": type(cell).__name__}
        if listed:
            yield Note(path, "mindspore-plain-list", {"attribute": listed, **facts})
        if isinstance(cell, nn.GraphCell):
            yield Note(path, "mindspore-graph-cell", facts)
        elif untold(cell):
            yield Note(path, "mindspore-untold", {"reason": untold(cell), **facts})
        elif _bypasses_hooks(type(cell)):
            yield Note(path, "mindspore-own-call", facts)
        reason = unread(cell)
        if reason:
            yield Note(path, "mindspore-spec-unread", {"reason": reason, **facts})
        if _calls_construct(cell):
            yield Note(path, "mindspore-direct-construct", facts)


def _bypasses_hooks(kind: type[nn.Cell]) -> bool:
    """Whether the class has a `__call__` of its own that does not go on to MindSpore's, where hooks are run."""
    code = getattr(kind.__call__, "__code__", None)
    return kind.__call__ is not nn.Cell.__call__ and code is not None and "__call__" not in code.co_names


def _calls_construct(cell: nn.Cell) -> bool:
    """Whether the user's construct calls another cell's construct, past MindSpore and its hooks."""
    if type(cell).__module__.startswith("mindspore."):
        return False
    names = getattr(getattr(unwrap(type(cell).construct), "__code__", None), "co_names", ())
    return "construct" in names and "super" not in names


def hidden(cell: nn.Cell) -> Iterator[tuple[str, str, nn.Cell]]:
    """Cells in plain list, tuple and dict attributes as ("blocks", "blocks.0", cell).

    A SequentialCell keeps its children in such a list as well; they have been seen under their registered path.
    """
    for attribute, value in list(vars(cell).items()):
        if isinstance(value, (list, tuple, dict)) and attribute not in ("_cells", "_params", "_buffers"):
            for name, child in _within(attribute, value, 0):
                yield attribute, name, child


def _within(name: str, value: Any, depth: int) -> Iterator[tuple[str, nn.Cell]]:
    if isinstance(value, nn.Cell):
        yield name, value
    elif depth < MAX_NESTING and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if not isinstance(item, PLAIN):
                yield from _within(f"{name}.{index}", item, depth + 1)
    elif depth < MAX_NESTING and isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(item, PLAIN):
                yield from _within(f"{name}.{key}", item, depth + 1)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
