"""Parameters taken together, so that one side's are as many as the other's (aligner.compare.combined tells how).

    lengths   a weight kept as direction and length (weight norm): found by roles and shapes
    raised    the weights of norms of which one side multiplies by 1 + weight: found by what the port holds of its own
    norms     a BatchNorm behind a convolution: found by values, which the one makes and the other is given

Each gives a side's items with some of them in the place of several.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Optional

import numpy as np

from aligner.adapter import Adapter
from aligner.compare.combined import FOLDED_BIAS, FOLDED_WEIGHT, NORMED, PARTS, RAISED, Recipe
from aligner.dump.reader import Dump
from aligner.record import Key, LayerSpec, Phase
from aligner.replay.items import Item, Match, Slot
from aligner.structure import Tensors, flatten_arguments, flatten_result

BATCH_NORM = "BatchNorm"

FEW = 3
"""Different numbers that a weight has at least that somebody has learnt."""

MATRIX = 2
"""Axes of the weight of a Linear, and of what it makes where a BatchNorm behind it has the same channels."""

LENGTH = {
    "weight_g": ("weight_v", "weight"),
    "g": ("v", "weight"),
    "parametrizations.weight.original0": ("parametrizations.weight.original1", "weight"),
    "original0": ("original1", "weight"),
    "magnitude": ("direction", "weight"),
}
"""What the length is called; then the direction, and what both are."""

_NORM = {"scale": "weight", "shift": "bias", "mean": "running_mean", "variance": "running_var"}


@dataclass(frozen=True)
class Fold:
    """A layer and the BatchNorm behind it. `training`: the norm went by its batch, and cannot be folded."""

    layer: str
    norm: str
    eps: float
    training: bool
    transposed: bool


def lengths(items: Sequence[Item]) -> list[Item]:
    """The items, with weights in the place of their lengths and directions."""
    slots = {item.slot: item for item in items}
    taken: dict[Slot, Item] = {}
    for item in items:
        other, role = LENGTH.get(item.slot.role, ("", ""))
        direction = slots.get(Slot(item.slot.layer, other))
        whole = Slot(item.slot.layer, role)
        if direction is None or whole in slots or len(direction.whole) < MATRIX:
            continue
        parts = (("length", *item.slot), ("direction", *direction.slot))
        for axis in _axes(item.whole, direction.whole):
            name = f"{item.slot.layer}.{role}".lstrip(".")
            recipe = Recipe(NORMED, parts, 0.0, axis)
            taken[item.slot] = replace(direction, slot=whole, name=name, recipe=recipe)
            taken[direction.slot] = taken[item.slot]
            break
    return _replaced(items, taken)


def _axes(length: tuple[int, ...], direction: tuple[int, ...]) -> Iterable[Optional[int]]:
    """The axis each of whose places has a length of its own; None where there is one for all."""
    sizes = [size for size in length if size != 1]
    if not sizes and direction[0] != 1:
        yield None
    for axis, size in enumerate(direction):
        own = size if len(length) == 1 else length[axis] if len(length) == len(direction) else None
        if own == size and len(sizes) <= 1 and sizes in ([size], []):
            yield axis


def raised(matches: Sequence[Match], values: Callable[[Match], Optional[tuple[Any, Any, float]]]) -> list[Match]:
    """The matches, those of norms with 1 more or less where all of a class hold so much of their own.

    `values` gives a match's numbers in the reference, those the port held before it was loaded, and their rounding.
    """
    apart: dict[tuple[str, str], set[float]] = {}
    own = [m for m in matches if not m.reformed and m.reference.role == "weight" and len(m.reference.whole) == 1]
    for match in own:
        apart.setdefault((match.reference.kind, match.port.kind), set()).add(_apart(values(match)))
    added = {group: found.pop() for group, found in apart.items() if len(found) == 1}
    result = []
    for match in matches:
        one = match.reference
        more = added.get((one.kind, match.port.kind), 0.0) if any(match is other for other in own) else 0.0
        recipe = Recipe(RAISED, (("base", *one.slot),), more) if more else None
        result.append(match._replace(reference=replace(one, recipe=recipe)) if recipe is not None else match)
    return result


def _apart(values: Optional[tuple[Any, Any, float]]) -> float:
    """1 or -1 where the port's own numbers are so far from the reference's everywhere; 0 else."""
    if values is None or values[0].shape != values[1].shape or np.unique(values[0]).size < FEW:
        return 0.0
    ours, theirs, rounding = values
    near = 4 * rounding * (1.0 + np.abs(ours))
    return next((step for step in (1.0, -1.0) if (np.abs(theirs - ours - step) <= near).all()), 0.0)


def with_norms(
    side: int, folds: Sequence[Fold], sides: tuple[Sequence[Item], Sequence[Item]]
) -> tuple[Sequence[Item], Sequence[Item]]:
    """Both sides' items, those of one with its norms folded."""
    return (sides[0], norms(sides[1], folds)) if side else (norms(sides[0], folds), sides[1])


def norms(items: Sequence[Item], folds: Iterable[Fold]) -> list[Item]:
    """The items, with a weight and a bias in the place of those of a layer and of the norm behind it."""
    slots = {item.slot: item for item in items}
    taken: dict[Slot, Item] = {}
    for fold in folds:
        places = {"weight": (fold.layer, "weight"), "bias": (fold.layer, "bias")}
        places.update((word, (fold.norm, role)) for word, role in _NORM.items())
        parts = {word: slots[Slot(*place)] for word, place in places.items() if Slot(*place) in slots}
        taken.update(_folded(fold, parts))
    return _beside(_replaced(items, taken))


def _folded(fold: Fold, parts: Mapping[str, Item]) -> Mapping[Slot, Item]:
    """By what it takes the place of: the weight and the bias of both; nothing where they do not fit."""
    if not {"weight", "mean", "variance"} <= parts.keys():
        return {}
    recipes = []
    for word, axis in ((FOLDED_WEIGHT, 1 if fold.transposed else 0), (FOLDED_BIAS, 0)):
        own = {part: item for part, item in parts.items() if part in PARTS[word]}
        recipes.append(Recipe(word, tuple((part, *item.slot) for part, item in own.items()), fold.eps, axis))
        if not recipes[-1].fits({part: item.whole for part, item in own.items()}):
            return {}
    weight, bias = parts["weight"], parts.get("bias", parts["weight"])
    whole = replace(weight, recipe=recipes[0])
    slot, name = Slot(fold.layer, "bias"), f"{fold.layer}.bias"
    added = replace(bias, slot=slot, whole=parts["mean"].whole, name=name, required=True, recipe=recipes[1])
    return {item.slot: whole if item is weight else added for item in parts.values()}


def _replaced(items: Sequence[Item], taken: Mapping[Slot, Item]) -> list[Item]:
    """Each in the place of the first of those that it is made of."""
    found: dict[Slot, Item] = {}
    for item in items:
        chosen = taken.get(item.slot, item)
        found.setdefault(chosen.slot, chosen)
    return [*found.values()]


def _beside(items: Sequence[Item]) -> list[Item]:
    """A bias that its norm had stands beside the weight, as in the other net's order."""
    added = {item.slot.layer: item for item in items if item.recipe is not None and item.recipe.word == FOLDED_BIAS}
    rest = [item for item in items if added.get(item.slot.layer) is not item]
    found = []
    for item in rest:
        found.append(item)
        if item.recipe is not None and item.recipe.word == FOLDED_WEIGHT:
            found.append(added[item.slot.layer])
    return found


def folds_of_dump(reference: Dump, step: int) -> list[Fold]:
    """The reference's: each call of the norm is given what the layer's call of that number has made."""
    makers: dict[object, tuple[str, int, int]] = {}
    found: dict[str, set[Optional[str]]] = {}
    entries = [e for e in reference.entries if e.key.phase is Phase.FORWARD and e.key.step == step]
    for entry in sorted(entries, key=lambda entry: entry.order):
        key, layer = entry.key, reference.layers.get(entry.key.layer)
        if layer is None or not key.layer:
            continue
        if layer.spec.kind == BATCH_NORM:
            if key.slot == "input.0":
                maker, number, axes = makers.get((entry.content, entry.shape), ("", -1, 0))
                found.setdefault(key.layer, set()).add(
                    maker if number == key.call and _channels(axes, entry.shape) else None
                )
        elif key.slot == "output.0":
            weight = reference.find(Key(0, Phase.PARAMETER, key.layer, 0, "weight"))
            if weight is not None and len(weight.shape) >= MATRIX:
                makers[entry.content, entry.shape] = key.layer, key.call, len(weight.shape)
    folds = []
    for norm, before in found.items():
        one, own = next(iter(before)), reference.layers[norm]
        if len(before) == 1 and one:
            folds.append(_fold(one, reference.layers[one].spec, norm, own.spec, own.training))
    return _single(folds)


def folds_of_run(adapter: Adapter, model: Any, call: Callable[[], object]) -> list[Fold]:
    """The port's, as a run of it shows. Whatever the net raises goes up."""
    layers = dict(adapter.layers(model))
    weights = {p.layer: len(p.shape) for p in adapter.parameters(model) if p.role == "weight"}
    makers: dict[object, str] = {}
    found: dict[str, set[Optional[str]]] = {}

    def given(path: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        tensors: Tensors = []
        flatten_arguments(args, kwargs, adapter.is_tensor, tensors)
        mark, shape = _mark(adapter, tensors)
        maker = makers.get(mark)
        right = maker is not None and _channels(weights[maker], shape)
        found.setdefault(path, set()).add(maker if right else None)

    def made(path: str, args: object, kwargs: object, output: object) -> None:
        tensors: Tensors = []
        flatten_result(output, adapter.is_tensor, tensors)
        makers[_mark(adapter, tensors)[0]] = path

    kinds = {path: adapter.spec(layer) for path, layer in layers.items()}
    with ExitStack() as hooks:
        for path, layer in layers.items():
            if kinds[path].kind == BATCH_NORM:
                hooks.callback(adapter.observe(layer, partial(given, path), _nothing).remove)
            elif weights.get(path, 0) >= MATRIX:
                hooks.callback(adapter.observe(layer, _nothing, partial(made, path)).remove)
        call()
    pairs = [(next(iter(makers)), norm) for norm, makers in found.items() if len(makers) == 1]
    return _single([_fold(layer, kinds[layer], norm, kinds[norm], False) for layer, norm in pairs if layer is not None])


def _nothing(*_: object) -> None:
    """What is not asked for."""


def _mark(adapter: Adapter, tensors: Tensors) -> tuple[object, tuple[int, ...]]:
    """What tells a value from others, and its shape."""
    if not tensors:
        return None, ()
    array = adapter.to_numpy(tensors[0][1])
    return (hashlib.sha256(array.tobytes()).digest(), array.shape), tuple(array.shape)


def _channels(axes: int, shape: tuple[int, ...]) -> bool:
    """Whether what a layer with such a weight makes has its channels where a BatchNorm looks for them."""
    return axes > MATRIX or len(shape) == MATRIX


def _fold(layer: str, spec: LayerSpec, norm: str, normal: LayerSpec, training: bool) -> Fold:
    """With an eps below zero where the two cannot be taken together."""
    eps, transposed = normal.attributes.get("eps"), spec.kind.startswith("ConvTranspose")
    known = isinstance(eps, (int, float)) and not (transposed and spec.attributes.get("groups", 1) != 1)
    return Fold(layer, norm, float(eps) if known and isinstance(eps, (int, float)) else -1.0, training, transposed)


def _single(folds: Sequence[Fold]) -> list[Fold]:
    """Those whose layer has no other norm behind it, and whose eps is known."""
    layers = [fold.layer for fold in folds]
    return [fold for fold in folds if layers.count(fold.layer) == 1 and fold.eps >= 0.0]
