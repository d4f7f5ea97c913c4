"""One run of the port to see which of two orders its weights were meant in.

Layers that are alike in everything but their name are matched in the order they are defined. A port may define its
branches in another order than it runs them; then the order of execution is the other guess, and the run tells: the
layers give the reference's values, or they do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Optional

import numpy as np

from aligner.adapter import Adapter, Handle
from aligner.dtypes import decode
from aligner.dump.reader import Dump, Entry
from aligner.record import Array, Key, Phase
from aligner.replay.transfer import Item, Transfer
from aligner.structure import Tensors, flatten_result

NEAR = 1e-3
"""An output agrees within this much of its own size: wrong weights are far beyond it, round-off far below."""


PIECE = 1 << 16
"""Elements looked at in one go."""


@dataclass
class Trial:
    """What a run showed: when each layer first ran, and how many outputs, the net's among them, agree."""

    order: dict[str, int] = field(default_factory=dict)
    judged: int = 0
    agreeing: int = 0


def doubtful(transfer: Transfer) -> bool:
    """Whether some layers were matched by their order alone."""
    return any(match.by == "structure" and match.confidence < 1.0 for match in transfer.matches)


def run(reference: Dump, adapter: Adapter, model: Any, arguments: Any, transfer: Transfer, step: int) -> Trial:
    """Call the port once and watch its layers. Whatever the net raises goes up."""
    trial = Trial()
    counterparts: dict[str, str] = {}
    for ours, theirs, _ in transfer.layers:
        counterparts.setdefault(theirs, ours)
    args, kwargs = arguments
    with ExitStack() as hooks, adapter.running(model):
        for path, layer in adapter.layers(model):
            name = counterparts.get(path, "" if path == "" else None)

            def expected(slot: str, ours: Optional[str] = name) -> Optional[Entry]:
                return None if ours is None else reference.find(Key(step, Phase.FORWARD, ours, 0, slot))

            hooks.callback(_watch(trial, adapter, path, layer, expected).remove)
        model(*args, **kwargs)
    return trial


def _watch(
    trial: Trial, adapter: Adapter, path: str, layer: object, expected: Callable[[str], Optional[Entry]]
) -> Handle:
    """Hooks that note the layer's first call and judge what it gives."""
    judged: list[str] = []

    def before(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        trial.order.setdefault(path, len(trial.order))

    def after(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
        if judged:
            return
        judged.append(path)
        found: Tensors = []
        flatten_result(output, adapter.is_tensor, found)
        for slot, tensor in found:
            entry = expected(slot)
            if entry is not None:
                trial.judged += 1
                trial.agreeing += _agrees(adapter, tensor, entry)

    return adapter.observe(layer, before, after)


def _agrees(adapter: Adapter, tensor: object, expected: Entry) -> bool:
    values = decode(adapter.to_numpy(tensor), adapter.dtype(tensor))
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
