"""Dropout made inactive in train mode, wherever MindSpore keeps it, and given back."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import partial, wraps
from typing import Any, Callable

import mindspore
from mindspore import nn, ops

from aligner_hooks.mindspore_.layers import parts, places
from aligner_hooks.mindspore_.spec import is_a
from aligner_hooks.mindsporelike.patches import Handle

CELLS = tuple(
    getattr(nn, name)
    for name in ("Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "DropoutExt", "Dropout2dExt")
    if hasattr(nn, name)
)
PRIMITIVES = (ops.Dropout, ops.Dropout2D, ops.Dropout3D)
# Functions that drop, and the argument that makes them keep everything.
FUNCTIONS: dict[str, tuple[str, object]] = {
    "dropout": ("training", False),
    "dropout1d": ("training", False),
    "dropout2d": ("training", False),
    "dropout3d": ("training", False),
    "scaled_dot_product_attention": ("dropout_p", 0.0),
    "flash_attention_score": ("keep_prob", 1.0),
}


def silence(model: nn.Cell) -> Handle:
    """Every dropout of the model keeps everything until the handle is removed."""
    handle = Handle()
    try:
        for _, cell, _ in places(model):
            for each in (cell, *(part for _, part in parts(cell))):
                _silence_cell(handle, each)
        _silence_functions(handle)
    except BaseException:
        handle.remove()
        raise
    return handle


def _silence_cell(handle: Handle, cell: nn.Cell) -> None:
    if is_a(cell, CELLS):
        _hold(handle, cell, "training", False)
        return
    if is_a(cell, nn.MultiheadAttention):
        _hold(handle, cell, "dropout", 0.0)
    for primitive in vars(cell).values():
        if isinstance(primitive, PRIMITIVES):
            _hold(handle, primitive, "keep_prob", 1.0)


def _hold(handle: Handle, owner: Any, name: str, value: object) -> None:
    """Set an attribute and note how to set it back."""
    before = getattr(owner, name)
    object.__setattr__(owner, name, value)
    handle.add(lambda: object.__setattr__(owner, name, before))


def _silence_functions(handle: Handle) -> None:
    """Replace the functions wherever a module holds them: users write `from mindspore.ops import dropout`."""
    found: dict[int, Any] = {}
    for function, argument, value in _functions():
        quiet = function if hasattr(function, "aligner_holders") else _with(function, argument, value)
        found[id(function)] = quiet
        token = object()
        quiet.aligner_holders.add(token)
        handle.add(partial(_release, quiet, token))
    for module in list(sys.modules.values()):
        for name, value in list(getattr(module, "__dict__", {}).items()):
            quiet = found.get(id(value))
            if quiet is not None and quiet is not value:
                setattr(module, name, quiet)
                quiet.aligner_places.append((module, name, value))


def _release(quiet: Any, token: object) -> None:
    """The last one to leave puts the function back where it stood."""
    quiet.aligner_holders.discard(token)
    if not quiet.aligner_holders:
        while quiet.aligner_places:
            setattr(*quiet.aligner_places.pop())


def _functions() -> Iterator[tuple[Any, str, object]]:
    for home in (ops, ops.function.nn_func, getattr(getattr(mindspore.mint, "nn", None), "functional", None)):
        for name, (argument, value) in FUNCTIONS.items():
            function = getattr(home, name, None)
            if inspect.isfunction(function) and argument in inspect.signature(function).parameters:
                yield function, argument, value


def _with(function: Callable[..., Any], argument: str, value: object) -> Any:
    """The function with that argument fixed, for as long as somebody holds it.

    A module imported meanwhile may keep it for good; it is the plain function again once it is released.
    """
    signature = inspect.signature(function)
    holders: set[object] = set()

    @wraps(function)
    def quiet(*args: object, **kwargs: object) -> object:
        if not holders:
            return function(*args, **kwargs)
        bound = signature.bind(*args, **kwargs)
        bound.arguments[argument] = value
        return function(*bound.args, **bound.kwargs)

    quiet.aligner_holders = holders  # type: ignore[attr-defined]  # found by whoever silences it a second time
    quiet.aligner_places = []  # type: ignore[attr-defined]  # where it stands: (module, name, what stood there)
    return quiet
