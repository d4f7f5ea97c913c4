"""Tensors of a checkpoint as replay matches parameters: layer, role, shape, and what kind of layer they tell of.

The names are those of the file; wrappers of amp, of compilers and of DataParallel are left out of the layers' paths.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from aligner.compare.naming import canonical
from aligner.compare.net import STATISTICS
from aligner.dtypes import DTYPES
from aligner.ingest.kinds import ROLES
from aligner.replay.items import MEANINGS, Item, Slot
from aligner.replay.transfer import IGNORED_ROLES
from aligner.weights.stored import Weight

CONVOLUTIONS: Mapping[int, str] = {3: "Conv1d", 4: "Conv2d", 5: "Conv3d"}
"""Axes of a weight -> the layer that has it."""

_PARAMETRIZED = ".parametrizations."

PREFIX = 3
"""Parts of a prefix, at most, that one side has and the other has not, or otherwise."""

_Key = tuple[str, ...]


def items_of(weights: Sequence[Weight], known: bool = True) -> list[Item]:
    """An item for each, in their order; `name` tells which is whose.

    Args:
        weights: in the order of their file.
        known: what kinds of layers a dump knows counts; else all are told by names and shapes alike.
    """
    slots = [_slot(weight) for weight in weights]
    layers: dict[str, dict[str, tuple[int, ...]]] = {}
    for weight, slot in zip(weights, slots):
        layers.setdefault(slot.layer, {})[slot.role] = weight.shape
    slots = [_spoken(slot, layers[slot.layer]) for slot in slots]
    kinds = {layer: kind_of(table) for layer, table in layers.items()}
    found = []
    for weight, slot in zip(weights, slots):
        kind = weight.kind if known and weight.kind else kinds[slot.layer]
        found.append(Item(slot, weight.shape, weight.name, kind, is_required(weight.dtype, slot.role)))
    return found


def is_required(dtype: str, role: str) -> bool:
    """Whether it must have a counterpart: whole numbers and truth values are tables that nets work out anew."""
    return role in STATISTICS or (role not in IGNORED_ROLES and not DTYPES[dtype].exact)


def _slot(weight: Weight) -> Slot:
    if weight.role:
        return Slot(weight.layer, weight.role)
    before, mark, behind = weight.name.partition(_PARAMETRIZED)
    if mark:  # what a weight is made of stands with its layer
        return Slot(canonical(before), mark[1:] + behind)
    layer, _, role = weight.name.rpartition(".")
    return Slot(canonical(layer) if layer else "", role)


def _spoken(slot: Slot, roles: Mapping[str, object]) -> Slot:
    """With the role that only MindSpore calls so in torch's word; what others mean too, matching knows by itself."""
    if slot.role == "embedding_table" and "weight" not in roles:
        return Slot(slot.layer, ROLES["embedding_table"])
    return Slot(slot.layer, "weight") if slot.role == "a" and len(roles) == 1 else slot


def kind_of(roles: Mapping[str, tuple[int, ...]]) -> str:
    """The kind of layer that has these parameters, as far as names and shapes tell."""
    meant = {MEANINGS.get(role, role): shape for role, shape in roles.items()}
    recurrent = next((shape for role, shape in meant.items() if role.startswith("weight_hh")), None)
    if "running_mean" in meant:
        return "BatchNorm"
    if recurrent is not None and len(recurrent) == 2 and recurrent[1]:
        word = {4: "LSTM", 3: "GRU", 1: "RNN"}.get(recurrent[0] // recurrent[1], "RNN")
        return word if any("_l0" in role for role in meant) else f"{word}Cell"
    weight = meant.get("weight", meant.get("embedding_table"))
    if weight is None:
        return ""
    if len(weight) == 1:
        return "LayerNorm" if meant.get("bias") == weight else "RMSNorm"
    return CONVOLUTIONS.get(len(weight), "Linear")


def without_prefixes(reference: Sequence[Item], port: Sequence[Item]) -> tuple[list[Item], list[Item], tuple[str, str]]:
    """Both sides without what stands before all names of one of them, where that brings the names together."""
    pairs: Counter[tuple[_Key, _Key]] = Counter()
    theirs: dict[_Key, list[_Key]] = {}
    for prefix, rest in _cut(port):
        theirs.setdefault(rest, []).append(prefix)
    for prefix, rest in _cut(reference):
        pairs.update((prefix, other) for other in theirs.get(rest, ()))
    plain = pairs[(), ()]
    best = max(pairs, key=lambda pair: (pairs[pair], -len(pair[0]) - len(pair[1])), default=((), ()))
    if pairs[best] <= plain or 2 * pairs[best] < min(len(reference), len(port)):
        return list(reference), list(port), ("", "")
    ours, others = ".".join(best[0]), ".".join(best[1])
    return _stripped(reference, ours), _stripped(port, others), (ours, others)


def _cut(items: Iterable[Item]) -> Iterable[tuple[_Key, _Key]]:
    for item in items:
        parts = (*item.slot.layer.split("."), MEANINGS.get(item.slot.role, item.slot.role))
        for count in range(min(PREFIX, len(parts) - 2) + 1):
            yield parts[:count], parts[count:]


def _stripped(items: Sequence[Item], prefix: str) -> list[Item]:
    """Without the prefix, but for what would be taken for another one then."""
    if not prefix:
        return list(items)
    known = {item.slot for item in items}
    found = []
    for item in items:
        slot = Slot(item.slot.layer[len(prefix) + 1 :], item.slot.role)
        inside = item.slot.layer.startswith(f"{prefix}.") and slot not in known
        found.append(replace(item, slot=slot) if inside else item)
    return found
