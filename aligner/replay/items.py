"""Parameters as they are matched: what must be known of each, and pairs of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import NamedTuple, Optional

from aligner.compare.combined import Recipe
from aligner.compare.net import ancestors
from aligner.compare.views import WHOLE, View, squeezed

MEANINGS = {
    **dict.fromkeys(("gamma", "scale", "a_2", "g", "w", "gain"), "weight"),
    **dict.fromkeys(("beta", "shift", "b_2", "b", "offset"), "bias"),
    "in_proj_weight": "weight",
    "in_proj_bias": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
"""What people call parameters in classes of their own; an attention's one projection is like a Linear's."""


STATISTICS = frozenset({"running_mean", "running_var"})
"""What a norm has seen in training; one that takes each batch's own has none."""


class Slot(NamedTuple):
    """A parameter's place on one side."""

    layer: str
    role: str


@dataclass(frozen=True, eq=False)
class Item:
    """What must be known of a parameter to find its counterpart. `name` is the framework's own."""

    slot: Slot
    whole: tuple[int, ...]
    """Its shape."""
    name: str
    kind: str
    required: bool
    """False for buffers that nets recompute (masks, tables): left over, they are told but do not fail."""
    idle: bool = False
    """Its layer never ran where the values come from: a head that is for training only."""
    view: View = WHOLE
    """What is meant of it."""
    loose: bool = False
    """Axes of one do not count."""
    flat: bool = False
    """All axes but the first count as one."""
    meaning: str = ""
    """What its role means, where it is another word for it."""
    recipe: Optional[Recipe] = None
    """How it is made of others; None: it is one of the net's own."""
    outer: str = ""
    """The outermost layer around its own that holds nothing else."""

    @property
    def role(self) -> str:
        """Its role in everybody's words."""
        return self.meaning or self.slot.role

    @property
    def place(self) -> str:
        """The path that tells where it stands, and what it is called."""
        return self.outer or self.slot.layer

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape in which it is matched."""
        seen = self.view.shape(self.whole)
        seen = squeezed(seen) if self.loose or self.flat else seen
        return (seen[0], math.prod(seen[1:])) if self.flat and seen else seen


class Match(NamedTuple):
    """A parameter of the reference, the port's that gets it, and why: "name", "rename", "structure" or "parts"."""

    reference: Item
    port: Item
    by: str
    confidence: float

    @property
    def reformed(self) -> bool:
        """Whether its numbers stand there in another form."""
        plain = self.reference.view.plain and self.port.view.plain and self.reference.whole == self.port.whole
        combined = self.reference.recipe is not None or self.port.recipe is not None
        return not plain or combined or self.reference.slot.role != self.port.slot.role


def with_meanings(items: Sequence[Item]) -> list[Item]:
    """The items, with what their roles mean where no other parameter of the layer is called or means the same, and
    with their places."""
    layers: dict[str, list[str]] = {}
    for item in items:
        layers.setdefault(item.slot.layer, []).append(MEANINGS.get(item.slot.role, item.slot.role))
    inside = Counter(around for layer in layers for around in ancestors(layer))
    result = []
    for item in items:
        meaning = MEANINGS.get(item.slot.role, "")
        alone = layers[item.slot.layer].count(meaning) == 1
        around = takewhile(lambda one: one and inside[one] == 1 and one not in layers, ancestors(item.slot.layer))
        place = [item.slot.layer, *around][-1]
        result.append(replace(item, outer=place, meaning=meaning if alone else ""))
    return result


def without(reference: Sequence[Item], port: Sequence[Item], matches: Sequence[Match]) -> tuple[list[Item], list[Item]]:
    used = {match.reference.slot for match in matches}, {match.port.slot for match in matches}
    return [i for i in reference if i.slot not in used[0]], [i for i in port if i.slot not in used[1]]
