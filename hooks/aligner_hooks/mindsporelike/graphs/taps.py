"""What stands in a compiled graph: the `construct` of an observed cell and the operators that tell of its values.

MindSpore reads the source of these functions and compiles it, so they are written in what its graph mode knows, and
the first argument of a `construct` must be called `self`. What the operators do is `forms.py`'s affair; `graph.py` puts
`aligner_number` (which cell this is) and `aligner_own` (its own construct) on a cell while a graph is compiled.

    announce(...)   at compile time: which cell, and how its values are nested; returns the number of this form
    BEGIN(form)     at run time: the values of a call are coming
    VALUE(tensor)   one of them
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mindspore import Tensor, ops
from mindspore import dtype as mstype

from aligner_hooks.mindsporelike.graphs import forms

ANNOUNCE = forms.Announce()
TELLS = forms.Tells()
SINGLE = forms.Single()
FIXED = forms.Fixed()
SHAPE = ops.TensorShape()
PLACES = Tensor(np.arange(forms.PIECE), mstype.int64)
BEGIN = forms.operator(forms.ARRIVAL.begin)
VALUE = forms.operator(forms.ARRIVAL.value)


def copy() -> None:
    """From now on, take operators that are given copies."""
    global BEGIN, VALUE
    BEGIN, VALUE = forms.copying(forms.ARRIVAL.begin), forms.copying(forms.ARRIVAL.value)


def tell(values: Any) -> int:
    """Tell of each tensor inside some values, in order, as it is now.

    Most often there is one. Every branch is a function for MindSpore, which takes its time over each: one will do then.
    """
    if SINGLE(values):
        VALUE(ops.stop_gradient(values[0]))
    else:
        search(values)
    return 0


def search(value: Any) -> int:
    """Tell of each tensor wherever it is."""
    if isinstance(value, Tensor):
        if TELLS(value):
            if value.dtype == mstype.bfloat16:  # the operator's memory has no such numbers; float32 holds them exactly
                show(value.astype(mstype.float32))
            elif value.dtype == mstype.bool_:
                show(value.astype(mstype.uint8))
            else:
                show(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            if TELLS(item):  # a call that does nothing makes MindSpore warn
                search(item)
    elif isinstance(value, dict):
        for item in value.values():
            if TELLS(item):
                search(item)
    return 0


def show(tensor: Any) -> int:
    """Tell of one tensor: whole, or where only the run knows its shape that and then piece by piece."""
    if not FIXED(tensor):
        VALUE(SHAPE(tensor))
        flat = ops.reshape(ops.stop_gradient(tensor), (-1,))
        size = SHAPE(flat)
        begin = Tensor([0], mstype.int64)
        while begin < size:
            flat, size, begin = piece(flat, size, begin)
    elif tensor.ndim == 0:  # the operator would be given a number of Python's
        VALUE(ops.stop_gradient(ops.reshape(tensor, (1,))))
    else:
        VALUE(ops.stop_gradient(tensor))
    return 0


def piece(flat: Any, size: Any, begin: Any) -> Any:
    """Tell of one piece. It returns what it was given: a loop must not use what stands outside, for MindSpore."""
    VALUE(ops.gather(flat, ops.minimum(PLACES + begin, size - 1), 0))
    return flat, size, begin + forms.PIECE


def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The cell's own construct between its two announcements.

    Without a branch: what follows one is a function of its own for MindSpore, which then fails on an output with None
    in it, and only when the graph runs ("Out of the size of the tuple").
    """
    BEGIN(ANNOUNCE(self.aligner_number, True, args, kwargs))
    tell((*args, kwargs))
    output = self.aligner_own(*args, **kwargs)
    BEGIN(ANNOUNCE(self.aligner_number, False, output))
    tell((output,))
    return output
