"""A layer's constructor call: run, it makes such a layer with settings wanted; spelled, it is Python to read."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Optional

import numpy as np
from mindspore import mint, nn, ops

from aligner.errors import Reason
from aligner.record import Attribute, LayerSpec
from aligner_hooks.mindspore_ import precision
from aligner_hooks.mindspore_.arguments import table
from aligner_hooks.mindspore_.spec import library_class, spec
from aligner_hooks.mindsporelike import casts
from aligner_hooks.mindsporelike.nets import registered

PREAMBLE = "import mindspore as ms\nfrom mindspore import mint, nn, ops"
_HOMES: Mapping[str, Any] = {"nn": nn, "mint.nn": mint.nn}
# Constructors that would draw random numbers for weights which are replaced at once.
_UNDRAWN = {"weight_init": "zeros", "embedding_table": "zeros", "param_init": "zeros"}
_ABSENT = object()
# What a constructor raises for arguments that it does not take.
_REFUSALS = (ValueError, TypeError, AttributeError, RuntimeError, LookupError)


class Construction(NamedTuple):
    """A class of MindSpore's under the name users write, and keyword arguments."""

    name: str
    kind: type[nn.Cell]
    arguments: Mapping[str, Any]


def build(cell: nn.Cell, wanted: Mapping[str, Attribute]) -> nn.Cell:
    """A new cell of the same library class with these settings; its weights mean nothing.

    Raises:
        ValueError: MindSpore has no such layer; the text says why.
    """
    return _settled(cell, wanted)[1]


def expression(cell: nn.Cell) -> str:
    """Python that builds a cell like this one, under PREAMBLE."""
    container = _container(cell)
    if container is not None:
        return container + _cast(cell)
    construction, _ = _settled(cell, spec(cell).attributes)
    return _spelled(construction) + _cast(cell)


def _settled(cell: nn.Cell, wanted: Mapping[str, Attribute]) -> tuple[Construction, nn.Cell]:
    """The first construction whose cell reads as wanted, and that cell."""
    kind = library_class(cell)
    if kind is None or kind not in table():
        raise Reason("why-unknown-constructor", type(cell).__name__)
    home, own, write = table()[kind]
    aim = LayerSpec(spec(cell).kind, wanted)
    called = f"{home}.{own}"
    reason = Reason("why-settings-differ", called)
    with _random_numbers_kept():
        for name, arguments in write(own, cell, dict(wanted)):
            maker = getattr(_HOMES[home], name, None)
            if maker is None:
                reason = Reason("why-no-class", called, f"{home}.{name}")
                continue
            construction = Construction(f"{home}.{name}", maker, arguments)
            try:
                made = maker(**arguments, **_undrawn(maker, arguments))
                if spec(made) == aim:
                    return construction, made
            except _REFUSALS as error:
                reason = Reason("why-not-made-so", called, f"{error}".strip().partition("\n")[0])
    raise reason


def _undrawn(maker: type[nn.Cell], arguments: Mapping[str, Any]) -> dict[str, str]:
    names = _parameters(maker)
    return {name: value for name, value in _UNDRAWN.items() if name in names and name not in arguments}


def _parameters(maker: type[nn.Cell]) -> Mapping[str, inspect.Parameter]:
    """Of the constructor: the class itself has a signature that says nothing, in some versions."""
    (_, *parameters) = inspect.signature(maker.__init__).parameters.values()
    return {parameter.name: parameter for parameter in parameters}


@contextmanager
def _random_numbers_kept() -> Iterator[None]:
    """MindSpore draws initial weights from numpy's global generator, which is the user's."""
    state = np.random.get_state()
    try:
        yield
    finally:
        np.random.set_state(state)


def _spelled(construction: Construction) -> str:
    """Required arguments by position, the rest by name where it is not the default."""
    names = _parameters(construction.kind)
    words: list[str] = []
    for name, value in construction.arguments.items():
        default = names[name].default if name in names else _ABSENT
        if default is inspect.Parameter.empty and len(words) == list(names).index(name):
            words.append(spelled(value))
        elif type(default) is not type(value) or default != value:
            words.append(f"{name}={spelled(value)}")
    return f"{construction.name}({', '.join(words)})"


def spelled(value: Any) -> str:
    """A value as Python."""
    if isinstance(value, nn.Cell):
        return expression(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f"float('{value}')"
    if isinstance(value, (bool, int, float, str, type(None))):
        return repr(value)
    if isinstance(value, tuple):
        return f"({', '.join(map(spelled, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, list):
        return f"[{', '.join(map(spelled, value))}]"
    name = getattr(value, "__name__", "")
    for home, module in (("ops", ops), ("mint.nn.functional", getattr(mint.nn, "functional", None))):
        if name and getattr(module, name, None) is value:
            return f"{home}.{name}"
    raise Reason("why-unspelled", name or type(value).__name__)


def _container(cell: nn.Cell) -> Optional[str]:
    """Containers, whose children are their arguments."""
    kind = library_class(cell)
    children = {name: precision.unwrapped(child) for name, child in registered(cell).items()}
    if kind is nn.SequentialCell:
        return f"nn.SequentialCell({', '.join(map(expression, children.values()))})"
    if kind is nn.CellList:
        return f"nn.CellList([{', '.join(map(expression, children.values()))}])"
    if kind is getattr(nn, "CellDict", None):
        items = (f"{name!r}: {expression(child)}" for name, child in children.items())
        return f"nn.CellDict({{{', '.join(items)}}})"
    return None


def _cast(cell: nn.Cell) -> str:
    word = casts.cast_of(cell)
    return f".to_float(ms.{word})" if word else ""
