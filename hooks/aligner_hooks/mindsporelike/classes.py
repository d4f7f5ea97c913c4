"""The classes of MindSpore operators that Python calls: a call that MindSpore does not tell of can be replaced."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

from mindspore.ops import Primitive

# What the names of those begin with that are no primitives: "_PyboostConcatPrim".
_QUICK = "_Pyboost"


def called() -> Iterator[Any]:
    """Those with a `__call__` of their own."""
    yield from (kind for kind in (*_kinds(Primitive), *_quick()) if "__call__" in vars(kind))


def name_of(operator: Any) -> str:
    """An operator's name; "" for a function that MindSpore calls when it compiles."""
    name = type(operator).__name__
    name = name[len(_QUICK) :] if name.startswith(_QUICK) else str(operator.name)
    return name if name[:1].isupper() else ""


def _kinds(kind: Any) -> Iterator[Any]:
    yield kind
    for other in kind.__subclasses__():
        yield from _kinds(other)


def _quick() -> Iterator[Any]:
    try:
        module = import_module("mindspore.ops.auto_generate.pyboost_inner_prim")
    except ImportError:
        return
    yield from (kind for name, kind in vars(module).items() if name.startswith(_QUICK) and isinstance(kind, type))
