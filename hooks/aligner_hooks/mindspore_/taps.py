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

from mindspore import Tensor, ops
from mindspore import dtype as mstype

from aligner_hooks.mindspore_ import forms

ANNOUNCE = forms.Announce()
TELLS = forms.Tells()
BEGIN = forms.operator(forms.ARRIVAL.begin)
VALUE = forms.operator(forms.ARRIVAL.value)


def tell(value: Any) -> int:
    """Tell of each tensor inside a value, in order, as it is now."""
    if isinstance(value, Tensor):
        if TELLS(value):
            if value.dtype == mstype.bfloat16:  # the operator's memory has no such numbers; float32 holds them exactly
                VALUE(ops.stop_gradient(value.astype(mstype.float32)))
            elif value.dtype == mstype.bool_:
                VALUE(ops.stop_gradient(value.astype(mstype.uint8)))
            else:
                VALUE(ops.stop_gradient(value))
    elif isinstance(value, (tuple, list)):
        for item in value:
            if TELLS(item):
                tell(item)
    elif isinstance(value, dict):
        for item in value.values():
            if TELLS(item):
                tell(item)
    return 0


def construct(self: Any, *args: Any, **kwargs: Any) -> Any:
    """The cell's own construct between its two announcements."""
    BEGIN(Tensor([ANNOUNCE(self.aligner_number, True, args, kwargs)], mstype.int64))
    if TELLS(args):
        tell(args)
    if TELLS(kwargs):
        tell(kwargs)
    output = self.aligner_own(*args, **kwargs)
    BEGIN(Tensor([ANNOUNCE(self.aligner_number, False, output)], mstype.int64))
    if TELLS(output):
        tell(output)
    return output
