"""Objects of a program's own that calls are given, as they were then: a cache before anything is in it.

What the code of a layer has put into one may be wrong when it is called again, so tensors are kept for first calls
only: then others have put them there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FunctionType, ModuleType
from typing import Optional

from aligner.compare.net import CallId
from aligner.structure import opaque

MOST = 1000
"""Values in an object, at most."""

TENSORS = 64
"""Tensors in one, at most; they are shared, and not copied."""

Lost = LookupError


class Objects:
    """Those of the calls of a port."""

    def __init__(self, is_tensor: Callable[[object], bool]) -> None:
        self.known: dict[tuple[int, CallId], list[object]] = {}
        """By step and call, in the order of the arguments; None for what is lost."""
        self._is_tensor = is_tensor

    def keep(self, step: int, call: CallId, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """A call begins."""
        found = opaque(args, kwargs, self._is_tensor)
        if found and (step, call) not in self.known:
            tensors = TENSORS if call.number == 0 else 0
            self.known[step, call] = [copied(one, self._is_tensor, tensors) for one in found]


def copied(value: object, is_tensor: Callable[[object], bool], tensors: int = TENSORS) -> Optional[object]:
    """Another object that holds the same; None for what is of a framework's, is large, or holds more tensors."""
    known: dict[int, object] = {}
    left = [MOST, tensors]

    def copy(one: object) -> object:
        left[is_tensor(one)] -= 1
        if min(left) >= 0 and is_tensor(one):
            return one
        if min(left) < 0 or isinstance(one, (type, ModuleType, FunctionType)) or callable(one):
            raise Lost
        if one is None or isinstance(one, (bool, int, float, str, bytes)):
            return one
        if id(one) in known:
            return known[id(one)]
        if type(one) is tuple:
            return tuple(map(copy, one))
        if type(one) is list:
            row: list[object] = []
            known[id(one)] = row
            row += map(copy, one)
            return row
        if type(one) is dict:
            table: dict[object, object] = {}
            known[id(one)] = table
            table.update((key, copy(item)) for key, item in one.items())
            return table
        if type(one).__reduce_ex__ is not object.__reduce_ex__ or not hasattr(one, "__dict__"):
            raise Lost
        made = known[id(one)] = object.__new__(type(one))
        made.__dict__.update((key, copy(item)) for key, item in vars(one).items())
        return made

    try:
        return copy(value)
    except (Lost, TypeError, RecursionError):
        return None
