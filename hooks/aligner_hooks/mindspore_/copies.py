"""Copies of cells with other settings, for trials: the same weights and state, sharing nothing.

Most settings of MindSpore's cells live in primitives that are made once: setting the cell's attribute would change
what it says and not what it does. So a layer of MindSpore's is made anew, and takes over the old one's weights and
state. A cell of the user's own is copied and gets the attribute, if it has it.
"""

from __future__ import annotations

import copy
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache
from types import MethodType
from typing import Any, Optional

import numpy as np
from mindspore import nn, ops

from aligner.record import Attribute, LayerSpec
from aligner.vocabulary import settled
from aligner_hooks.mindspore_ import construction, parameters, precision
from aligner_hooks.mindspore_.spec import library_class, spec
from aligner_hooks.mindsporelike import casts
from aligner_hooks.mindsporelike.nets import is_wrapper, registered


def respecified(cell: nn.Cell, changes: Mapping[str, Attribute], dtype: Optional[str]) -> nn.Cell:
    """A copy with some settings changed, computing in `dtype` if that is said."""
    before = spec(cell)
    unknown = [name for name in changes if name not in before.attributes]
    if unknown:
        known = ", ".join(before.attributes) or "none"
        raise ValueError(f"{before.kind} has no setting {unknown[0]}; its settings: {known}")
    wanted = {**before.attributes, **changes}
    aim = LayerSpec(before.kind, settled(before.kind, wanted) if library_class(cell) is not None else wanted)
    if aim == before:
        made = duplicate(cell)
    elif library_class(cell) is not None:
        made = _made_anew(cell, aim)
    else:
        made = duplicate(cell)
        for name, value in changes.items():
            setattr(made, name, value)
    if dtype is not None:
        precision.cast(made, dtype)
        if not isinstance(vars(made).get("construct"), MethodType):  # somebody's own, which is left alone
            made.construct = _CastInputs(made, dtype)
    found = spec(made)
    if found != aim:
        odd = [name for name in changes if found.attributes.get(name) != changes[name]]
        raise ValueError(f"the copy of {before.kind} does not show the change of {', '.join(odd) or 'its settings'}")
    return made


def duplicate(cell: nn.Cell) -> nn.Cell:
    """A deep copy without hooks, in the same state.

    It shares the primitives: MindSpore copies them as they were made (and some not at all), not as they are now.
    """
    memo: dict[int, Any] = {}
    for each in precision.everything(cell):
        for name, value in vars(each).items():
            if name in _hook_attributes() and isinstance(value, dict):
                memo[id(value)] = OrderedDict()
            elif name in _hook_attributes() and callable(value):
                memo[id(value)] = None
            elif name == casts.STRATEGY or isinstance(value, ops.Primitive):
                memo[id(value)] = value
    try:
        made: nn.Cell = copy.deepcopy(cell, memo)
    except Exception as error:  # whatever the user's objects raise, there is no copy
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(f"{type(cell).__name__} cannot be copied: {reason}") from error
    for each in precision.everything(made):
        if each.mixed_precision_type is not None:  # a copy keeps the attribute and forgets the flag behind it
            each.set_mixed_precision_type(each.mixed_precision_type)
    return made


@cache
def _hook_attributes() -> frozenset[str]:
    """Where every cell keeps hooks."""
    return frozenset(name for name in vars(nn.Cell()) if "hook" in name)


def _made_anew(cell: nn.Cell, aim: LayerSpec) -> nn.Cell:
    made = construction.build(cell, aim.attributes)
    _take_over_weights(made, cell)
    _take_over_state(made, cell)
    if isinstance(made, nn.LayerNorm) and made.begin_norm_axis < -1:
        made.layer_norm = _LastAxes(made)
    return made


def _take_over_weights(made: nn.Cell, cell: nn.Cell) -> None:
    """Those that both have; a bias that the copy is to have for the first time is zero."""
    given = {(p.layer, p.role): p for p in parameters.parameters(cell)}
    for parameter in parameters.parameters(made):
        twin = given.get((parameter.layer, parameter.role))
        if twin is None:
            if parameter.role.startswith("bias"):
                parameters.load(parameter, np.zeros(parameter.shape, np.float32), "float32")
            continue
        if twin.shape != parameter.shape:
            raise ValueError(f"{twin.role} would have the shape {parameter.shape} and not {twin.shape} any more")
        tensor: Any = parameter.tensor
        if twin.dtype != parameter.dtype:
            precision.convert(tensor, twin.dtype)
        parameters.load(parameter, parameters.read(twin).copy(), twin.dtype)
        if not parameter.buffer:
            tensor.requires_grad = twin.trainable


def _take_over_state(made: nn.Cell, cell: nn.Cell) -> None:
    """Modes and casts of the cell and of all inside it; MindSpore's wrappers are put around the same children."""
    made.set_train(cell.training)
    word = casts.cast_of(cell)
    casts.flag(made, word)
    inside = registered(made)
    for name, child in registered(cell).items():
        if name not in inside:
            continue
        _take_over_state(inside[name], precision.unwrapped(child))
        if is_wrapper(child):
            core = precision.unwrapped(child)
            made._cells[name] = copy.deepcopy(child, {id(core): inside[name]})


class _CastInputs:
    """A copy's `construct`, which first puts its inputs into the copy's own type.

    LayerNorm would round its weights to the type of a short input. The copy is not held, so that it goes when it is
    no longer used; a copy of it gets one of these for itself.
    """

    def __init__(self, made: nn.Cell, dtype: str) -> None:
        self._cell = weakref.ref(made)
        self._dtype = dtype

    def __deepcopy__(self, memo: dict[int, Any]) -> _CastInputs:
        return _CastInputs(memo[id(self._cell())], self._dtype)

    def __call__(self, *args: object, **kwargs: object) -> object:
        cell: Any = self._cell()
        args, kwargs = precision.widened((args, kwargs), self._dtype)
        return type(cell).construct(cell, *args, **kwargs)


class _LastAxes:
    """What normalises over the last axes, however many there are before them.

    MindSpore's operator wants the first of them counted from the front, unless it is the last.
    """

    def __init__(self, cell: Any) -> None:
        self._count = -cell.begin_norm_axis
        self._epsilon = cell.epsilon

    def __call__(self, x: Any, gamma: Any, beta: Any) -> Any:
        first = x.ndim - self._count
        return ops.LayerNorm(begin_norm_axis=first, begin_params_axis=first, epsilon=self._epsilon)(x, gamma, beta)
