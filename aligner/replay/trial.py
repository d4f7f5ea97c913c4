"""One run of the port to see which of two orders its weights were meant in.

Layers that are alike in everything but their name are matched in the order they are defined. A port may define its
branches in another order than it runs them; then the order of execution is the other guess, and the run tells: the
layers give the reference's values, or they do not. A leaf that is given the right values, and has its counterpart's
weights, makes what that one made: it hands that on at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any, Optional

import numpy as np

from aligner.adapter import Adapter, Arguments, Handle
from aligner.dtypes import decode
from aligner.dump.reader import Dump, Entry
from aligner.record import Array, Key, Phase
from aligner.replay.answering import Due, answered, leaves
from aligner.replay.items import Item
from aligner.replay.sample import Sample
from aligner.replay.transfer import Transfer
from aligner.structure import Tensors, flatten_arguments, flatten_result, substitute_arguments

NEAR = 1e-3
"""An output agrees within this much of its own size: wrong weights are far beyond it, round-off far below."""


PIECE = 1 << 16
"""Elements looked at in one go."""


@dataclass
class Trial:
    """What a run showed: when each layer first ran, and how many outputs, the net's among them, agree."""

    order: dict[str, int] = field(default_factory=dict)
    made: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The shape of the first thing that it made."""
    single: dict[str, str] = field(default_factory=dict)
    """Its type, where that is one tensor and no more."""
    judged: int = 0
    agreeing: int = 0
    agreed: dict[str, bool] = field(default_factory=dict)
    """By layer, where what it made could be judged."""
    fitting: int = 0
    """Outputs that have as many elements as they should: behind a mistake nothing agrees, but that still tells."""

    @property
    def score(self) -> tuple[int, int]:
        """How well what was made agrees."""
        return self.agreeing, self.fitting

    def telling(self, layers: Collection[str]) -> Optional[str]:
        """The layer that tells what is made of these: the next one that is judged; None if there was none so far."""
        if any(layer not in self.order for layer in layers):
            return None
        last = max(self.order[layer] for layer in layers)
        return next((layer for layer, place in self.order.items() if place > last and layer in self.agreed), None)

    def shows(self, layers: Collection[str]) -> bool:
        """Whether what is made of these layers agrees."""
        layer = self.telling(layers)
        return layer is not None and self.agreed[layer]


class _EnoughError(Exception):
    """The run has told what was asked."""


def doubtful(transfer: Transfer) -> bool:
    """Whether some layers were matched by their order alone."""
    return any(match.by == "structure" and match.confidence < 1.0 for match in transfer.matches)


def run(
    reference: Dump,
    adapter: Adapter,
    model: Any,
    arguments: Any,
    transfer: Transfer,
    step: int,
    held: Mapping[str, Sequence[Entry]] = MappingProxyType({}),
) -> Trial:
    """Call the port once and watch its layers.

    Layers that are to be `held` are given one of these values, and the run ends once it is known what is made of them.
    Of a net that raises in the middle, what ran before tells; what it raises before that goes up.
    """
    trial = Trial()
    due: Due = {}

    def looked(path: str) -> None:
        if held and trial.telling(held) == path:
            raise _EnoughError

    counterparts: dict[str, str] = {}
    norms = transfer.norms
    for ours, theirs, _ in transfer.layers:  # of a convolution and its norm, what the norm makes
        counterparts.setdefault(norms[1].get(theirs, theirs), norms[0].get(ours, ours))
    args, kwargs = arguments
    own = {} if held else leaves(adapter, model)
    with ExitStack() as hooks, adapter.running(model):
        hooks.callback(answered(adapter, own, due).remove)
        for path, layer in adapter.layers(model):
            name = counterparts.get(path, "" if path == "" else None)

            def expected(slot: str, ours: Optional[str] = name) -> Optional[Entry]:
                return None if ours is None else reference.find(Key(step, Phase.FORWARD, ours, 0, slot))

            if path in held:
                hooks.callback(adapter.intervene(layer, partial(_given, adapter, held[path]), _as_made).remove)
            answer = _answer(reference, adapter, layer, name, step) if path in own and name else None
            hooks.callback(
                _watch(trial, adapter, path, layer, expected, looked, partial(_due, due, path, answer)).remove
            )
        try:
            model(*args, **kwargs)
        except Exception:  # what is raised in a hook may come back as another exception
            if trial.telling(held) is None if held else not trial.judged:
                raise
    return trial


def _given(
    adapter: Adapter, entries: Sequence[Entry], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> Arguments:
    """The arguments with the first of these values that could be meant in the place of the first tensor."""
    found: Tensors = []
    flatten_arguments(args, kwargs, adapter.is_tensor, found)
    for slot, tensor in found[:1]:
        shape, dtype = adapter.to_numpy(tensor).shape, adapter.dtype(tensor)
        for entry in entries:
            if math.prod(shape) == math.prod(entry.shape) and dtype == entry.dtype:
                other = adapter.from_numpy(entry.raw().reshape(shape), dtype)
                return substitute_arguments(args, kwargs, {slot: other})
    return args, kwargs


def _as_made(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
    return output


def _watch(
    trial: Trial,
    adapter: Adapter,
    path: str,
    layer: object,
    expected: Callable[[str], Optional[Entry]],
    looked: Callable[[str], None],
    began: Callable[[tuple[object, ...], Mapping[str, object]], None],
) -> Handle:
    """Hooks that note the layer's first call, which `began`, and judge what it gives; then it was `looked` at."""
    judged: list[str] = []

    def before(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        trial.order.setdefault(path, len(trial.order))
        if not judged:
            began(args, kwargs)

    def after(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
        if judged:
            return
        judged.append(path)
        found: Tensors = []
        flatten_result(output, adapter.is_tensor, found)
        if adapter.is_tensor(output):
            trial.single[path] = adapter.dtype(output)
        for slot, tensor in found:
            array = adapter.to_numpy(tensor)
            trial.made.setdefault(path, tuple(array.shape))
            entry = expected(slot)
            if entry is not None:
                agrees = _agrees(decode(array, adapter.dtype(tensor)), entry)
                trial.judged += 1
                trial.agreeing += agrees
                if array.size == math.prod(entry.shape):
                    trial.fitting += 1
                    trial.agreed[path] = trial.agreed.get(path, True) and agrees
        looked(path)

    return adapter.observe(layer, before, after)


_Answer = Callable[[tuple[object, ...], Mapping[str, object]], Optional[object]]


def _answer(reference: Dump, adapter: Adapter, layer: object, name: str, step: int) -> Optional[_Answer]:
    """What gives the value that the reference's layer made, where the arguments are as those of that one; None where
    the layer has other settings, which tell that another one is its counterpart, or where that one made more.
    """
    address = Key(step, Phase.FORWARD, name, 0, "input.0")
    wanted, made = reference.find(address), reference.find(address._replace(slot="output.0"))
    spec, more = reference.layers[name].spec, reference.find(address._replace(slot="output.1"))
    if wanted is None or made is None or more is not None or spec != adapter.spec(layer):
        return None

    def answer(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Optional[object]:
        found: Tensors = []
        flatten_arguments(args, kwargs, adapter.is_tensor, found)
        if len(found) != 1 or adapter.dtype(found[0][1]) != wanted.dtype:
            return None
        array = adapter.to_numpy(found[0][1])
        if array.shape != wanted.shape:
            return None
        off = Sample.of(array, wanted.dtype).off(Sample.of(wanted.raw(), wanted.dtype))
        return adapter.from_numpy(made.raw(), made.dtype) if off <= NEAR else None

    return answer


def _due(
    due: Due, path: str, answer: Optional[_Answer], args: tuple[object, ...], kwargs: Mapping[str, object]
) -> None:
    value = None if answer is None else answer(args, kwargs)
    if value is not None:
        due[path] = lambda: value


def _agrees(values: Array, expected: Entry) -> bool:
    wanted = expected.load()
    if values.size != wanted.size:
        return False
    one, other = wanted.reshape(-1), values.reshape(-1)
    with np.errstate(all="ignore"):  # NaN and Inf agree with nothing
        squares = sum(float(np.square(part.astype(np.float64)).sum()) for part, _ in _parts(one, other))
        scale = min(1.0, (squares / one.size) ** 0.5) if one.size else 1.0
        return all(
            bool((np.abs(b.astype(np.float64) - a.astype(np.float64)) <= NEAR * (scale + np.abs(a))).all())
            for a, b in _parts(one, other)
        )


def _parts(one: Array, other: Array) -> Iterator[tuple[Any, Any]]:
    """Both arrays a piece at a time, so that float64 copies stay small beside a tensor."""
    for at in range(0, one.size, PIECE):
        yield one[at : at + PIECE], other[at : at + PIECE]


def executed(reference: Dump, step: int) -> Mapping[str, int]:
    """When each of the reference's layers first ran."""
    order: dict[str, int] = {}
    for call in sorted(reference.calls, key=lambda call: call.first):
        if call.step == step and call.phase is Phase.FORWARD:
            order.setdefault(call.layer, len(order))
    return order


def in_order(items: Iterable[Item], order: Mapping[str, int]) -> list[Item]:
    """The parameters in the order in which their layers run; those of layers that never run follow the one before."""
    ranked: list[tuple[int, Item]] = []
    latest = -1
    for item in items:
        latest = order.get(item.slot.layer, latest)
        ranked.append((latest, item))
    return [item for _, item in sorted(ranked, key=lambda pair: pair[0])]


def same(one: Transfer, other: Transfer) -> bool:
    """Whether both plans load the same weights."""
    return _slots(one) == _slots(other)


def _slots(transfer: Transfer) -> Sequence[object]:
    return sorted((match.reference.slot, match.port.slot) for match in transfer.matches)
