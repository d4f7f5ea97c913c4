"""What the other framework calls the parameters of a checkpoint, where no net is at hand to ask.

A norm's weight is gamma, its statistics moving_mean and moving_variance, an embedding's table embedding_table, and a
one-dimensional kernel has one axis more; num_batches_tracked has no counterpart. Where names and shapes do not tell
what a layer is, the word is a guess, and is told as one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from aligner.ingest.kinds import FLAT_KERNELS, ROLES
from aligner.replay.items import Item
from aligner.replay.transfer import IGNORED_ROLES

TORCH, MINDSPORE = "torch", "mindspore"

KEPT, RULE, GUESS = "kept", "rule", "guess"

NORM = re.compile(r"norm|(^|[._])(ln|bn|gn|rms)[_\d]*($|[._])|layernorm|(^|\.)ln")
EMBEDDING = re.compile(r"embed|(^|[._])(emb|wte|wpe|tok|pos|token|shared|lookup)[_\w]*$")
SLOPE = re.compile(r"prelu|(^|[._])act[_\w]*$")
CONVOLUTION = re.compile(r"conv|proj|(^|[._])c\d")

_AXIS = 2
"""Where MindSpore's one-dimensional kernels have an axis of one."""

_AFFINE = {"weight": "gamma", "bias": "beta"}
_STATISTICS = {"running_mean": "moving_mean", "running_var": "moving_variance"}
_BACK: Mapping[str, str] = {other: own for own, other in {**_AFFINE, **_STATISTICS}.items()}


@dataclass(frozen=True)
class Renamed:
    """What an item is called there, in which shape, and what that rests on: KEPT, RULE or GUESS."""

    item: Item
    name: str
    shape: tuple[int, ...]
    by: str


def words_of(items: Iterable[Item]) -> str:
    """Whose words the names are: MindSpore's where one is that only MindSpore has."""
    own = set(ROLES) - {"gamma", "beta"}
    roles = {item.name.rpartition(".")[2] for item in items}
    return MINDSPORE if roles & own or {"gamma", "beta"} <= roles else TORCH


def renamed(items: Sequence[Item], words: str) -> tuple[list[Renamed], list[Item]]:
    """The items in these words, and those that have no counterpart there."""
    layers: dict[str, dict[str, Item]] = {}
    for item in items:
        layers.setdefault(item.slot.layer, {})[item.slot.role] = item
    found, dropped = list[Renamed](), list[Item]()
    for item in items:
        if item.slot.role in IGNORED_ROLES and words == MINDSPORE:
            dropped.append(item)
        elif words == words_of(items):
            found.append(_called(item, item.name.rpartition(".")[2], item.whole, KEPT))
        else:
            own = layers[item.slot.layer]
            found.append(_to_mindspore(item, own) if words == MINDSPORE else _to_torch(item, own))
    return found, dropped


def _called(item: Item, role: str, shape: tuple[int, ...], by: str) -> Renamed:
    return Renamed(item, f"{item.slot.layer}.{role}".lstrip("."), shape, by)


def with_flat_axis(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A one-dimensional kernel's shape as MindSpore has it."""
    return (*shape[:_AXIS], 1, *shape[_AXIS:])


def _to_mindspore(item: Item, own: Mapping[str, Item]) -> Renamed:
    role, shape, path = item.slot.role, item.whole, item.slot.layer.lower()
    if role in _STATISTICS:
        return _called(item, _STATISTICS[role], shape, RULE)
    weight = own.get("weight")
    if weight is None or role not in _AFFINE:
        return _called(item, role, shape, KEPT)
    axes, named = len(weight.whole), bool(NORM.search(path))
    if "running_mean" in own or (axes == 1 and "bias" in own):
        return _called(item, _AFFINE[role], shape, RULE)
    if axes == 1:  # a norm without bias, or the slope of a PReLU
        return _called(item, "gamma" if named else "w" if SLOPE.search(path) else "weight", shape, GUESS)
    if axes == 2 and "bias" not in own:
        table = weight.kind == "Embedding" or bool(EMBEDDING.search(path))
        return _called(item, "embedding_table" if table else "weight", shape, GUESS if table else KEPT)
    if axes == 3 and role == "weight" and (weight.kind in FLAT_KERNELS or _is_kernel(path, own)):
        return _called(item, role, with_flat_axis(shape), RULE)
    return _called(item, role, shape, KEPT)


def _is_kernel(path: str, own: Mapping[str, Item]) -> bool:
    """Whether a weight of three axes is that of a convolution: its bias is as long as one of the first two."""
    bias = own.get("bias")
    return bool(CONVOLUTION.search(path)) or (
        bias is not None and bias.whole in [(n,) for n in own["weight"].whole[:2]]
    )


def _to_torch(item: Item, own: Mapping[str, Item]) -> Renamed:
    role, path = item.slot.role, item.slot.layer.lower()
    spoken = item.name.rpartition(".")[2]
    if spoken == "embedding_table" or role in _STATISTICS.values():
        return _called(item, _BACK.get(role, "weight"), item.whole, RULE)
    if role in _BACK:
        norm = {"gamma", "beta"} <= own.keys() or "moving_mean" in own
        return _called(item, _BACK[role] if norm or NORM.search(path) else role, item.whole, RULE if norm else GUESS)
    if role == "w" and len(own) == 1 and len(item.whole) == 1:
        return _called(item, "weight", item.whole, GUESS)
    flat = len(item.whole) == 4 and item.whole[_AXIS] == 1 and item.whole[-1] > 1
    return _called(item, role, item.whole, GUESS if flat else KEPT)
