"""The code of a parent run again, in another float type, with every layer inside held to the reference.

What comes of it is the code's own doing: nothing that layers inside do wrong, or in a short type, goes into it. Those
of the framework's own that hand on a value of the reference's need not compute it.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Optional

from aligner.adapter import Adapter, Arguments
from aligner.compare.casts import is_short
from aligner.compare.checks import Check
from aligner.compare.formed import due
from aligner.compare.net import CallId, is_input
from aligner.dtypes import DTYPES, decode, encode
from aligner.dump.reader import Entry
from aligner.explain.case import distance
from aligner.record import Array, Call, Key, Phase
from aligner.replay.answering import Due, Made, answered, leaves
from aligner.replay.forms import AXES, takes_together
from aligner.replay.frames import Plan
from aligner.structure import Tensors, flatten_arguments, flatten_result, substitute_arguments, substitute_result

ORDERS = 24
"""Orders of axes that are looked at, at most."""

NEARLY = 1e-3
"""Two arrays are as far apart at most that are taken for the same numbers in another shape."""


@dataclass(frozen=True)
class Again:
    """What became of a value. `short`: something was computed in a short float type all the same."""

    tensor: object
    dtype: str
    array: Array
    short: bool


class _EnoughError(Exception):
    """What was asked for is made."""


@dataclass
class Code:
    """A copy of a parent, to be run once. `path` is the parent's, `numbers` the calls made of each layer before it."""

    adapter: Adapter
    plan: Plan
    copy: object
    call: Call
    numbers: Mapping[str, int]
    given: Optional[str]
    """The float type in which layers inside hand on the reference's values; None keeps the reference's."""
    single: Container[Made] = ()
    """Calls of the port's that hand on one tensor, of the type and shape of the reference's."""

    def value(self, check: Check, run: Callable[[], object]) -> Again:
        """The value of the check's address; `run` runs the copy.

        Raises:
            LookupError: it was not made.
        """
        address, seen, short = check.port, list[Again](), list[str]()
        counts: dict[str, int] = {}
        due: Due = {}
        inside = 0

        def enter(path: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
            nonlocal inside
            found: Tensors = []
            flatten_arguments(args, kwargs, self.adapter.is_tensor, found)
            number = self.numbers.get(path, 0) + counts.get(path, 0)
            counts[path] = counts.get(path, 0) + 1
            if (path, number, is_input(address.slot)) == (address.layer, address.call, True):
                seen.extend(map(self._seen, (t for slot, t in found if slot == address.slot)))
                if seen:
                    raise _EnoughError
            inside += CallId(path, number) in self.plan.calls and path != self.call.layer
            due.pop(path, None)  # of a call that somebody else has answered
            entry = self._entry(path, number, "output.0") if self._is_single(path, number) else None
            if entry is not None:
                due[path] = partial(self._whole, entry)
            others = self.others(path, number, found, None) if path != self.call.layer else {}
            return substitute_arguments(args, kwargs, others)

        def leave(path: str, args: object, kwargs: object, output: object) -> object:
            nonlocal inside
            found: Tensors = []
            flatten_result(output, self.adapter.is_tensor, found)
            if path == self.call.layer:
                if not is_input(address.slot):
                    seen.extend(map(self._seen, (t for slot, t in found if slot == address.slot)))
                return output
            number = self.numbers.get(path, 0) + counts[path] - 1
            inside -= CallId(path, number) in self.plan.calls
            return substitute_result(output, self.others(path, number, found, self.given))

        def told(name: str, dtype: str) -> None:
            if not inside and is_short(dtype) and not seen:
                short.append(name)

        with ExitStack() as stack:
            for below, layer in self.adapter.layers(self.copy):
                path = self._path(below)
                hooks = partial(enter, path), partial(leave, path)
                stack.callback(self.adapter.intervene(layer, *hooks).remove)
            own = leaves(self.adapter, self.copy).items()
            stack.callback(answered(self.adapter, {self._path(p): leaf for p, leaf in own if p}, due).remove)
            stack.callback(self.adapter.computations(told).remove)
            try:
                run()
            except Exception:  # what is raised in a hook may come back as another exception
                if not seen:
                    raise
        if not seen:
            raise LookupError(address.slot)
        return Again(seen[0].tensor, seen[0].dtype, seen[0].array, bool(short))

    def _seen(self, tensor: object) -> Again:
        return Again(tensor, self.adapter.dtype(tensor), self.adapter.to_numpy(tensor).copy(), False)

    def others(self, path: str, number: int, found: Tensors, dtype: Optional[str]) -> dict[str, object]:
        """The reference's values for those of one call, in the float type `dtype` or in its own."""
        entries = {slot: (self._entry(path, number, slot), tensor) for slot, tensor in found}
        others = {
            slot: self._value(entry, self._address(path, number, slot), tensor, dtype)
            for slot, (entry, tensor) in entries.items()
            if entry
        }
        return {slot: value for slot, value in others.items() if value is not None}

    def _is_single(self, path: str, number: int) -> bool:
        return (self.call.step, CallId(path, number)) in self.single

    def _path(self, below: str) -> str:
        return ".".join(filter(None, (self.call.layer, below)))

    def _entry(self, path: str, number: int, slot: str) -> Optional[Entry]:
        """The reference's value for one of the port's, if layers are held to it."""
        entry = self.plan.entries.get(self._address(path, number, slot))
        return None if entry is None or DTYPES[entry.dtype].exact or "complex" in entry.dtype else entry

    def _value(self, entry: Entry, address: Key, tensor: object, dtype: Optional[str]) -> Optional[object]:
        array = self.adapter.to_numpy(tensor)
        rows, shape = due(entry, array), array.shape
        value = entry.raw() if rows is None else rows
        if (own := DTYPES.get(self.adapter.dtype(tensor))) is not None and own.exact:
            return None  # a mask in other words: the layer may not take it so
        if value.shape != shape and value.size != array.size:
            return None
        if (order := self.plan.orders.get(address)) is not None and len(order) == value.ndim:
            value = value.transpose(order)
        elif value.shape != shape and (sorted(value.shape) == sorted(shape) or not takes_together(value.shape, shape)):
            value = self._turned(entry, tensor)
        return self._tensor(entry, value, shape, dtype)

    def _turned(self, entry: Entry, tensor: object) -> Array:
        """The reference's value with its axes as the port's has them, which is the order in which it is nearest to it:
        to read the same numbers in another shape would be another value."""
        own, word, value = self.adapter.to_numpy(tensor), self.adapter.dtype(tensor), entry.raw()
        found, wanted = decode(own, word), decode(value, entry.dtype)
        every = permutations(range(value.ndim)) if value.ndim <= AXES else ()
        orders = [p for p in every if takes_together(wanted.transpose(p).shape, own.shape)][:ORDERS]
        orders = [order for order in orders if order[0] == 0] or orders  # of a batch each item stays together
        apart = [distance(found, wanted.transpose(order).reshape(own.shape)) for order in orders]
        if not orders or distance(found, wanted.reshape(own.shape)) <= min(NEARLY, *apart):
            return value  # reshaped by mistake, all the numbers are there
        return value.transpose(orders[apart.index(min(apart))])

    def _address(self, path: str, number: int, slot: str) -> Key:
        return Key(self.call.step, Phase.FORWARD, path, number, slot)

    def _whole(self, entry: Entry) -> object:
        return self._tensor(entry, entry.raw(), entry.shape, self.given)

    def _tensor(self, entry: Entry, value: Array, shape: tuple[int, ...], dtype: Optional[str]) -> object:
        word = dtype or entry.dtype
        return self.adapter.from_numpy(encode(decode(value, entry.dtype), word).reshape(shape), word)


def numbers_before(calls: Iterable[Call], parent: Call) -> dict[str, int]:
    """How often each layer had run in this step when the parent's call began."""
    found: dict[str, int] = {}
    for call in calls:
        if call.step == parent.step and call.first < parent.first and call.layer != parent.layer:
            found[call.layer] = found.get(call.layer, 0) + 1
    return found
