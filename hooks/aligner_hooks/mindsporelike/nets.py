"""Nets among cells: what stands around them, and which of them a function works with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from mindspore import nn

# Loss and AMP wrappers hold the cell they are around under this name.
WRAPPED = "_backbone"


def _present(*names: str) -> tuple[type, ...]:
    """Those of these classes that this MindSpore has."""
    return tuple(getattr(nn, name) for name in names if hasattr(nn, name))


# Cells around a net in MindSpore's training and evaluation loops. They are looked through, so that the net and the
# loss are roots of their own, as they are where the loop is written by hand and as they are in torch.
LOOPS = _present(
    "TrainOneStepCell",
    "TrainOneStepWithLossScaleCell",
    "WithLossCell",
    "WithEvalCell",
    "WithGradCell",
    "ForwardValueAndGrad",
)
# What these loops call besides: it works on gradients.
REDUCERS = _present("Identity", "DistributedGradReducer", "PipelineGradReducer")
# Cells that are called by themselves and are no nets.
HELPERS = (nn.Optimizer, nn.learning_rate_schedule.LearningRateSchedule)
# How many functions away a compiled function's net is looked for: step -> value_and_grad's -> forward -> net.
DEEPEST = 6


def registered(cell: nn.Cell) -> dict[str, nn.Cell]:
    """The children MindSpore knows of."""
    return {name: child for name, child in cell._cells.items() if child is not None}


def is_wrapper(cell: nn.Cell) -> bool:
    """Whether MindSpore put this cell around another one: an AMP cast, or a loss for a loop of its own.

    A net of the user's may call a part of itself `_backbone`: that is no wrapper. Nor is WithLossCell, which people
    write themselves: it is a net that gives a loss.
    """
    library = next(base for base in type(cell).__mro__ if base.__module__.startswith("mindspore."))
    return library not in (nn.Cell, nn.WithLossCell) and isinstance(registered(cell).get(WRAPPED), nn.Cell)


def is_loop(cell: nn.Cell) -> bool:
    """Whether the cell is MindSpore's and runs the net as a part of training or evaluation.

    build_train_network has a WithLossCell of its own that is no subclass of the public one.
    """
    return isinstance(cell, LOOPS) or (type(cell).__module__.startswith("mindspore.train") and is_wrapper(cell))


def looped(cell: nn.Cell) -> nn.Cell:
    """The net inside one of MindSpore's loops, which is compiled together with it in GRAPH_MODE."""
    while is_loop(cell):
        children = registered(cell)
        inner = [children[name] for name in ("network", "_network", WRAPPED) if name in children]
        if not inner:
            break
        cell = inner[0]
    return cell


def reached(function: object) -> Iterator[nn.Cell]:
    """The nets that a function works with."""
    return _reached(function, set(), 0)


def _reached(value: Any, seen: set[int], depth: int) -> Iterator[nn.Cell]:
    """The nets that a function works with: what it closes over, is bound to, and names among its globals."""
    if id(value) in seen or depth > DEEPEST:
        return
    seen.add(id(value))
    if isinstance(value, nn.Cell):
        if not isinstance(value, HELPERS):
            yield looped(value)
        return
    inner: list[Any] = []
    if isinstance(value, FunctionType):
        names = value.__code__.co_names
        inner = [value.__globals__[name] for name in names if name in value.__globals__]
        empty = CellType()  # of a variable that has no value yet
        inner += [held.cell_contents for held in value.__closure__ or () if held != empty]
    elif isinstance(value, MethodType):
        inner = [value.__self__, value.__func__]
    elif isinstance(value, partial):
        inner = [value.func, *value.args, *value.keywords.values()]
    elif isinstance(value, (list, tuple)):
        inner = list(value)
    for item in inner:
        yield from _reached(item, seen, depth + 1)
