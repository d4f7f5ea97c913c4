"""In which precision a net computes: MindSpore's casts taken back, and a net put into another dtype.

Casts come in five ways: `to_float` (a flag on the cell and one inside it), wrappers around a cell (AMP O2, O3),
rewritten classes (O1), a strategy around `construct` (auto), and weights that are short themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import mindspore
from mindspore import Tensor, nn

from aligner.dtypes import decode, encode
from aligner_hooks.mindspore_ import parameters, tensors
from aligner_hooks.mindspore_.layers import hidden
from aligner_hooks.mindsporelike import casts
from aligner_hooks.mindsporelike.nets import WRAPPED, is_wrapper, registered
from aligner_hooks.mindsporelike.rewritten import is_rewritten, written

FLOATS = ("float64", *casts.FLAGS)
# Cells whose operators level "auto" always casts.
_PRODUCTS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Conv1dTranspose, nn.Conv2dTranspose, nn.Conv3dTranspose, nn.Dense)


def cast(model: nn.Cell, dtype: str) -> None:
    """Put weights and buffers into this dtype and have the net compute in it, whatever its casts were."""
    if dtype not in FLOATS or dtype not in tensors.types():
        raise ValueError(f"a net cannot be put into {dtype}; known are {', '.join(FLOATS)}")
    undo(model)
    for cell in everything(model):
        casts.flag(cell, dtype)
        for _, tensor, _ in parameters.owned(cell):
            if tensors.dtype(tensor) in FLOATS and tensors.dtype(tensor) != dtype:
                convert(tensor, dtype)


def widened(value: Any, dtype: str) -> Any:
    """The floating tensors of a nested value in this dtype."""
    if isinstance(value, Tensor):
        known = tensors.dtype(value)
        return value.astype(tensors.types()[dtype]) if known in FLOATS and known != dtype else value
    if isinstance(value, dict):
        return {name: widened(item, dtype) for name, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(widened(item, dtype) for item in value)
    return value


def told(model: nn.Cell, cell: nn.Cell) -> Optional[tuple[str, str]]:
    """The dtype that this cell was told to compute in, and by what; see aligner.adapter.Adapter.precision.

    Of a rewritten class, and of a strategy, only what it does to products is known here.
    """
    word = casts.cast_of(cell)
    if word:
        return word, "to_float"
    if is_rewritten(type(cell)):
        code = getattr(type(cell).construct, "__code__", None)
        used = code.co_names if code is not None else ()
        if "amp_cast" in used:
            return ("bfloat16" if "bfloat16" in used else "float16"), "O1"
    strategy = vars(model).get(casts.STRATEGY)
    if strategy is not None and isinstance(cell, _PRODUCTS):
        return str(strategy.get_amp_dtype()).lower(), "auto"
    return None


def undo(model: nn.Cell) -> None:
    """Take back every cast that was put around or into the net, in place; weights stay as they are."""
    if is_wrapper(model):  # whoever holds it goes on holding it: it only hands on
        inner = unwrapped(model)
        object.__setattr__(model, "construct", inner.__call__)
    for cell in list(everything(model)):
        casts.undo_strategy(cell)
        object.__setattr__(cell, "_amp_level", "")
        casts.flag(cell, "")
        if written(type(cell)) is not type(cell):
            cell.__class__ = written(type(cell))
        for name, child in registered(cell).items():
            if is_wrapper(child):
                cell._cells[name] = unwrapped(child)
        if isinstance(cell, nn.SequentialCell):
            cell.cell_list = list(cell._cells.values())


def unwrapped(cell: nn.Cell) -> nn.Cell:
    """The cell inside MindSpore's wrappers."""
    while is_wrapper(cell):
        cell = registered(cell)[WRAPPED]
    return cell


def everything(model: nn.Cell) -> Iterator[nn.Cell]:
    """Every cell once, whatever it is for: layers, their parts, wrappers, those in plain lists."""
    seen: set[int] = set()
    waiting = [model]
    while waiting:
        cell = waiting.pop()
        if id(cell) not in seen:
            seen.add(id(cell))
            yield cell
            waiting += [*registered(cell).values(), *(child for _, _, child in hidden(cell))]


def convert(tensor: Any, dtype: str) -> None:
    """By way of the host: inside a cell that casts, an operator would not give the bits that it is asked for."""
    values = decode(tensors.to_numpy(tensor).copy(), tensors.dtype(tensor))
    bits = tensors.from_numpy(encode(values, dtype), dtype)
    tensor.set_dtype(tensors.types()[dtype])
    if isinstance(tensor, mindspore.Parameter):
        tensor.set_data(bits)
    else:  # a buffer
        tensor.assign_value(bits)
