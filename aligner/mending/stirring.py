"""Runs operations so that each rounds otherwise: what code makes of rounding is seen by how far it comes out then.

A kernel that approximates (MindSpore's exp: 5e-6) is off by more than rounding: where an operation runs in float64, its
result is that one's. What is not rounded, as a whole number, stays: beside a border it would be another one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from aligner.adapter import Adapter
from aligner.dtypes import DTYPES, decode, encode
from aligner.mending.care import Care
from aligner.noise import Change
from aligner.record import Array
from aligner.structure import Tensors, flatten_arguments, flatten_result, substitute_arguments, substitute_result
from aligner.values import Values, is_array
from aligner.words.operations import may_write, row

_EXACT = """
reshape transpose getitem split expand same table meshgrid cat stack where pad tile repeat_interleave gather embedding
index_select roll flip triu tril fill cast arange one_hot max min maximum minimum relu neg abs sort topk masked_fill
"""
EXACT = frozenset(_EXACT.split())
"""Words of operations that hand on numbers as they are."""

WIDE = "float64"

LARGE = 1 << 24
"""Elements of a value that is not made anew in it."""


class Stirring(Care):
    """Of code that is trusted: it ran as it is."""

    def __init__(self, values: Values, adapter: Adapter, change: Change) -> None:
        super().__init__(values, empty=True, trusts=True)
        self._adapter, self._change = adapter, change

    def run(
        self, word: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """What the operation makes, and a little more or less."""
        known = row(word)
        asked = (known is None or known.word not in EXACT) and not may_write(word)
        exact = self._exact(function, args, kwargs) if asked else {}
        output = super().run(word, function, args, kwargs, compute)
        if not asked:
            return output
        found: Tensors = []
        flatten_result(output, self._adapter.is_tensor, found)
        given = {id(one) for one in self.of(args, kwargs)}
        others = {slot: self._other(tensor, exact.get(slot)) for slot, tensor in found if id(tensor) not in given}
        return substitute_result(output, {slot: one for slot, one in others.items() if one is not None})

    def _exact(self, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Mapping[str, Array]:
        """What it makes in float64; nothing where it does not run so."""
        given: Tensors = []
        made: Tensors = []
        flatten_arguments(args, kwargs, self._adapter.is_tensor, given)
        others = {slot: wide for slot, tensor in given if (wide := self._wide(tensor)) is not None}
        with suppress(Exception):  # whatever the framework raises
            taken, named = substitute_arguments(args, dict(kwargs), others)
            if self.values.holds(getattr(function, "__self__", None)):
                function, taken = getattr(taken[0], function.__name__), taken[1:]
            flatten_result(self.settled(function(*taken, **named)), self._adapter.is_tensor, made)
        return {slot: self._adapter.to_numpy(one) for slot, one in made if self._adapter.dtype(one) == WIDE}

    def _wide(self, tensor: Any) -> Any:
        word = self._adapter.dtype(tensor)
        array = self._adapter.to_numpy(tensor) if word in DTYPES and not DTYPES[word].exact else None
        if array is None or array.size > LARGE:
            return None
        return self._adapter.from_numpy(decode(array, word).astype(np.float64), WIDE)

    def _other(self, tensor: Any, exact: Any) -> Any:
        word = self._adapter.dtype(tensor)
        if is_array(tensor) or word not in DTYPES or DTYPES[word].exact:
            return None
        array = decode(self._adapter.to_numpy(tensor), word)
        known = exact is not None and exact.shape == array.shape
        near = exact.astype(array.dtype) if known else array
        found = np.where(near == (exact if known else np.rint(array)), near, self._change(near, word))
        return self._adapter.from_numpy(encode(found.astype(array.dtype), word), word)
