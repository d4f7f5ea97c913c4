"""Objects of a program's own that calls are given, as they were then: a cache before anything is in it, the types of
named tuples and dataclasses.

What the code of a layer has put into one may be wrong when it is called again: with tensors they are kept for the first
call, when others have put them there, and for the second, if nothing was wrong before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Optional

import numpy as np

from aligner.compare.net import CallId
from aligner.record import Call, Key
from aligner.source.functions import plain, remade
from aligner.structure import Form, kept

MOST = 1000
"""Values in an object, at most."""

TENSORS, BYTES = 64, 1 << 20
"""Tensors in one, at most; they are shared, and not copied. What numpy's arrays in one may take, which are copied."""

Lost = LookupError


class Objects:
    """Those of the calls of a port, by step and call in the order of the arguments; None for what is lost."""

    def __init__(self, is_tensor: Callable[[object], bool]) -> None:
        self._known: dict[tuple[int, CallId], list[object]] = {}
        self._grown: set[tuple[int, CallId]] = set()
        """Second calls that are given some with tensors."""
        self._is_tensor = is_tensor

    def keep(self, step: int, call: CallId, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """A call begins."""
        found = kept(args, kwargs, self._is_tensor)
        if (step, call) in self._known or all(isinstance(one, Form) and one.plain for one in found):
            return
        plain = [copied(one, self._is_tensor, 0) for one in found]
        if any(one is None for one in plain) and call.number <= 1:
            self._grown |= {(step, call)} if call.number else set()
            plain = [copied(one, self._is_tensor) for one in found]
        self._known[step, call] = plain

    def trusted(self, calls: Iterable[Call], wrong: Iterable[Key]) -> Mapping[tuple[int, CallId], Sequence[object]]:
        """Without those that may be wrong, as values of the port's are wrong that were made before."""
        order = {(call.step, CallId(call.layer, call.number)): call.first for call in calls}
        places = [order.get((key.step, CallId(key.layer, key.call)), 0) for key in wrong]
        first = min(places, default=max(order.values(), default=0))
        stale = {call for call in self._grown if order.get(call, 0) > first}
        return {call: found for call, found in self._known.items() if call not in stale}


def copied(value: object, is_tensor: Callable[[object], bool], tensors: int = TENSORS) -> Optional[object]:
    """Another object that holds the same; None for what is of a framework's, is large, or holds more tensors.

    A function is another one that sees what this one sees by now: its caller goes on. Layers are shared.
    """
    if isinstance(value, Form):
        return value
    known: dict[int, object] = {}
    left = [MOST, tensors, BYTES]

    def copy(one: object) -> object:
        left[is_tensor(one)] -= 1
        left[2] -= one.nbytes if isinstance(one, np.ndarray) else 0
        if min(left) >= 0 and is_tensor(one):
            return one
        if min(left) < 0 or isinstance(one, ModuleType):
            raise Lost
        if one is None or isinstance(one, (bool, int, float, str, bytes, type, np.generic, BuiltinFunctionType)):
            return one
        if id(one) in known:
            return known[id(one)]
        if isinstance(one, np.ndarray) and not one.dtype.hasobject:
            known[id(one)] = array = one.copy()
            return array
        if isinstance(one, FunctionType):
            return anew(one)
        if isinstance(one, MethodType):
            return MethodType(one.__func__, copy(one.__self__))
        if callable(one):
            return one
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

    def anew(one: FunctionType) -> FunctionType:
        written = plain(one)
        if written is None:
            raise Lost
        old = written.__closure__ or ()
        if not old:
            return written
        cells = tuple(CellType() for _ in old)
        made = known[id(one)] = remade(written, written.__code__, cells)
        for cell, seen in zip(cells, old):
            cell.cell_contents = copy(seen.cell_contents)
        return made

    try:
        return copy(value)
    except (Lost, TypeError, ValueError, RecursionError):  # of a cell in which nothing is
        return None
