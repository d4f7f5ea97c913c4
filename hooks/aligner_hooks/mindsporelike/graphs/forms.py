"""How the values of a compiled call are nested, and their arrival one by one while the graph runs.

A graph is compiled for values of known nesting, shape and dtype. At that time MindSpore shows them to `Announce`,
which keeps a Form and gives its number into the graph. When the graph runs, the number comes first and the values of
all tensors after it, in order; with the last one the call is put together again and told of.

MindSpore runs this in a thread of its own while the one that called the graph waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, Callable, Optional

import numpy as np
from mindspore import Tensor, ops
from mindspore import dtype as mstype
from mindspore.ops.primitive import PrimitiveWithInfer, prim_attr_register

from aligner.dtypes import DTYPES
from aligner.record import Array
from aligner_hooks.mindsporelike.graphs import native
from aligner_hooks.mindsporelike.seen import Seen

NOTHING = np.zeros(1, np.uint8)
# The shape of a tensor of which not even the number of axes is known.
NO_RANK = -2
# A tensor whose shape only the run knows is told of in pieces of so many elements: operators of ours must know theirs.
PIECE = 1 << 12


@dataclass(frozen=True)
class Leaf:
    """A tensor's place."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def empty(self) -> bool:
        """Operators do not run on tensors without elements: their values are known."""
        return 0 in self.shape

    @property
    def fixed(self) -> bool:
        """Whether its shape is known before the graph runs."""
        return all(length >= 0 for length in self.shape)

    @property
    def plain(self) -> bool:
        """Whether the operator can be given it as it is."""
        return self.fixed and not self.empty and self.shape != () and self.dtype not in ("bool", "bfloat16")


class Unknown:
    """A value that is no tensor and is known only while the graph runs."""


@dataclass(frozen=True)
class Form:
    """What is told when one cell begins (its args and kwargs) or ends (its output)."""

    number: int
    entering: bool
    values: tuple[Any, ...]
    """The values with a Leaf in the place of each tensor."""
    leaves: tuple[Leaf, ...]

    @property
    def untyped(self) -> bool:
        """Whether it holds a value whose type is not known: MindSpore takes it for a tensor of no known rank."""
        return any(NO_RANK in leaf.shape for leaf in self.leaves)

    @property
    def keyed(self) -> bool:
        """Whether a tensor lies in a dict. Keyword arguments are none: they are gone when the graph runs."""
        values = (self.values[0], *self.values[1].values()) if self.entering else self.values
        return any(_keyed(value) for value in values)


FORMS: list[Form] = []


class Announce(PrimitiveWithInfer):
    """At compile time: `Announce()(number, entering, *values)` is the number of the values' form, in a tensor."""

    @prim_attr_register  # type: ignore[untyped-decorator]  # as above
    def __init__(self) -> None:
        """Nothing to set."""

    def __infer__(self, number: Any, entering: Any, *values: Any) -> Mapping[str, Any]:
        leaves: list[Leaf] = []
        nested = tuple(_nested(value["shape"], value["dtype"], value["value"], leaves) for value in values)
        FORMS.append(Form(number["value"], entering["value"], nested, tuple(leaves)))
        # A tensor here, not a number: MindSpore takes longer over `Tensor([number])` in a graph than over all else.
        chosen = Tensor([len(FORMS) - 1], mstype.int64)
        return {"shape": [1], "dtype": mstype.TensorType(mstype.int64), "value": chosen}


class Tells(PrimitiveWithInfer):
    """At compile time: whether there is a tensor with elements in a value."""

    @prim_attr_register  # type: ignore[untyped-decorator]  # as above
    def __init__(self) -> None:
        """Nothing to set."""

    def __infer__(self, value: Any) -> Mapping[str, Any]:
        leaves: list[Leaf] = []
        _nested(value["shape"], value["dtype"], value["value"], leaves)
        return {"shape": (), "dtype": mstype.bool_, "value": any(not leaf.empty for leaf in leaves)}


class Single(PrimitiveWithInfer):
    """At compile time: whether the first of some values is a tensor that can be told of as it is, and the only one."""

    @prim_attr_register  # type: ignore[untyped-decorator]  # as above
    def __init__(self) -> None:
        """Nothing to set."""

    def __infer__(self, values: Any) -> Mapping[str, Any]:
        leaves: list[Leaf] = []
        nested = _nested(values["shape"], values["dtype"], values["value"], leaves)
        single = len(leaves) == 1 and isinstance(nested[0], Leaf) and leaves[0].plain
        return {"shape": (), "dtype": mstype.bool_, "value": single}


class Fixed(PrimitiveWithInfer):
    """At compile time: whether the shape of a tensor is known."""

    @prim_attr_register  # type: ignore[untyped-decorator]  # as above
    def __init__(self) -> None:
        """Nothing to set."""

    def __infer__(self, value: Any) -> Mapping[str, Any]:
        return {"shape": (), "dtype": mstype.bool_, "value": Leaf(tuple(value["shape"]), "").fixed}


def _nested(shape: Any, dtype: Any, value: Any, leaves: list[Leaf]) -> Any:
    """A value as the compiler knows it, with a Leaf for each tensor."""
    if isinstance(dtype, mstype.TensorType) or shape == [NO_RANK]:
        leaves.append(Leaf(tuple(shape), _word(dtype)))
        return leaves[-1]
    if isinstance(dtype, (tuple, list)):
        known = value if isinstance(value, (tuple, list, dict)) and len(value) == len(dtype) else [None] * len(dtype)
        names = list(known) if isinstance(known, Mapping) else None
        items = list(known.values()) if isinstance(known, Mapping) else known
        parts = [_nested(*part, leaves) for part in zip(shape, dtype, items)]
        if names is not None:
            return dict(zip(names, parts))
        return type(dtype)(parts)
    if value is None and dtype is not None and dtype != mstype.type_none:
        return Unknown()
    return value


def _word(dtype: Any) -> str:
    return str(dtype.element_type()).lower() if isinstance(dtype, mstype.TensorType) else ""


def _keyed(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(isinstance(item, Leaf) or _keyed(item) for item in value.values())
    return isinstance(value, (tuple, list)) and any(_keyed(item) for item in value)


class Arrival:
    """The values of a graph that runs, as they come in."""

    def __init__(self) -> None:
        self.deliver: Callable[[Form, tuple[Any, ...]], None] = lambda form, values: None
        """Who gets the values when they are all here."""
        self._form: Optional[Form] = None
        self._arrived: list[Array] = []
        self._due: list[Leaf] = []
        self._pieces: list[Array] = []
        """The shape of a tensor, and those pieces of it that are here."""

    def begin(self, array: Array) -> None:
        """The number of the form of the values that will come."""
        self._form, self._arrived, self._pieces = FORMS[int(array.reshape(-1)[0])], [], []
        self._due = [leaf for leaf in self._form.leaves if not leaf.empty]
        self._complete()

    def value(self, array: Array) -> None:
        """One of them, or a piece. The memory is the graph's and used again: only the last can be told of as it is."""
        if self._form is None or not self._due:
            return
        if self._due[0].fixed:
            self._arrived.append(array if len(self._due) == 1 else np.array(array))
        elif not self._whole(array):
            return
        self._due.pop(0)
        self._complete()

    def _whole(self, array: Array) -> bool:
        """Whether a tensor that comes in pieces is all here now."""
        self._pieces.append(np.array(array))
        pieces = self._pieces[1:]
        shape = [int(length) for length in self._pieces[0]]
        size = prod(shape)
        if sum(piece.size for piece in pieces) < size:
            return False
        values = np.concatenate(pieces)[:size] if pieces else np.zeros(0)
        self._arrived.append(values.reshape(shape))
        self._pieces = []
        return True

    def _complete(self) -> None:
        form = self._form
        if form is None or self._due:
            return
        self._form = None
        arrays = iter(self._arrived)
        seen = iter([_seen(leaf, arrays) for leaf in form.leaves])
        self._arrived = []
        self.deliver(form, tuple(_filled(value, seen) for value in form.values))


ARRIVAL = Arrival()


def _seen(leaf: Leaf, arrays: Any) -> Seen:
    storage = DTYPES[leaf.dtype].storage if leaf.dtype in DTYPES else np.dtype(leaf.dtype)
    if leaf.empty:
        return Seen(np.zeros(leaf.shape, storage), leaf.dtype)
    array: Array = next(arrays)
    if leaf.fixed:  # a number comes as an array of one
        array = array.reshape(leaf.shape)
    if leaf.dtype == "bfloat16" and array.size:
        array = (array.view(np.uint32) >> 16).astype(np.uint16)
    return Seen(array.astype(storage, copy=False), leaf.dtype)


def _filled(value: Any, seen: Any) -> Any:
    """The value with what was seen in the places of its leaves."""
    if isinstance(value, Leaf):
        return next(seen)
    if isinstance(value, Mapping):
        return {name: _filled(item, seen) for name, item in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_filled(item, seen) for item in value)
    return value


def operator(receive: Callable[[Array], None]) -> Any:
    """An operator that tells `receive` of its input when it runs, in the order of the program.

    Its result is one byte that nobody uses: a copy of the input would stay in memory until the graph has run.
    """
    shown = native.operator(receive)
    return copying(receive) if shown is None else _ordered(shown)


def copying(receive: Callable[[Array], None]) -> Any:
    """The same by MindSpore's operator for Python functions, which keeps a copy of its input wherever it stands."""

    def received(array: Array) -> Array:
        receive(array)
        return NOTHING

    made = ops.Custom(received, out_shape=lambda shape: (1,), out_dtype=lambda dtype: mstype.uint8, func_type="pyfunc")
    return _ordered(made)


def _ordered(made: Any) -> Any:
    made.add_prim_attr("side_effect_io", True)
    made.add_prim_attr("primitive_target", "CPU")  # there is no other; on Ascend the graph hands its values to the host
    return made
