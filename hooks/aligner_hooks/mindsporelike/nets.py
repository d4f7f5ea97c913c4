"""Nets among cells: what stands around them, and which of them a function works with."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import CellType, FunctionType, MethodType
from typing import Any

from mindspore import ParameterTuple, nn

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


def is_optimizer(value: object) -> bool:
    """Whether it is one: nn's, or one with param_groups."""
    return isinstance(value, nn.Optimizer) or (isinstance(value, nn.Cell) and "param_groups" in vars(value))


def is_helper(cell: nn.Cell) -> bool:
    """Whether the cell is called by itself and is no net: an optimizer, a schedule, or one without layers that keeps
    tuples of parameters alone (gradients that are added up, averages of weights).
    """
    if is_optimizer(cell) or isinstance(cell, nn.learning_rate_schedule.LearningRateSchedule):
        return True
    tuples = [value for value in vars(cell).values() if isinstance(value, ParameterTuple)]
    kept = {id(parameter) for one in tuples for parameter in one}
    own = cell._params.items()  # one that is an attribute has no dot in its name there
    return bool(kept) and not registered(cell) and all(id(one) in kept and "." in name for name, one in own)


def is_loop(cell: nn.Cell) -> bool:
    """Whether the cell runs the net as a part of training or evaluation: MindSpore's own, or one that has an optimizer.

    build_train_network has a WithLossCell of its own that is no subclass of the public one.
    """
    if isinstance(cell, LOOPS) or (type(cell).__module__.startswith("mindspore.train") and is_wrapper(cell)):
        return True
    return not is_optimizer(cell) and _optimizes(cell)


def _optimizes(cell: nn.Cell) -> bool:
    """Whether it has an optimizer, at any depth: wrappers that cast the net's layers are no loops of its."""
    return any(is_optimizer(one) or _optimizes(one) for one in registered(cell).values())


def looped(cell: nn.Cell) -> nn.Cell:
    """The net inside a loop, which is compiled together with it in GRAPH_MODE."""
    while is_loop(cell):
        children = registered(cell)
        inner = [children[name] for name in ("network", "_network", WRAPPED) if name in children]
        inner += [one for one in children.values() if not is_helper(one) and any(True for _ in one.get_parameters())]
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
        if not is_helper(value):
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
