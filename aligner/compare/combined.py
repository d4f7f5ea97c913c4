"""Parameters that are several on one side and fewer on the other: computed, and so set against each other.

A convolution and the BatchNorm behind it are one convolution with a bias; a weight is its direction (v) at its length
A convolution and the BatchNorm behind it are one convolution with a bias; a weight is a direction (v) at its length
carried so (aligner.replay.combining); what they come to is worked out here in float64, for loading and comparing alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from aligner.compare.formed import Formed
from aligner.dtypes import encode
from aligner.record import Array, Key, Phase

if TYPE_CHECKING:
    import numpy.typing as npt

    from aligner.dump.reader import Dump, Entry

    Numbers = npt.NDArray[np.float64]

FOLDED_WEIGHT, FOLDED_BIAS, NORMED, RAISED = "folded-weight", "folded-bias", "normed", "raised"

PARTS = {
    FOLDED_WEIGHT: frozenset({"weight", "scale", "variance"}),
    FOLDED_BIAS: frozenset({"bias", "scale", "shift", "mean", "variance"}),
    NORMED: frozenset({"length", "direction"}),
    RAISED: frozenset({"base"}),
}
"""By how something is made: what it may be made of."""

_NEEDED = {
    FOLDED_WEIGHT: frozenset({"weight", "variance"}),
    FOLDED_BIAS: frozenset({"mean", "variance"}),
    NORMED: frozenset({"length", "direction"}),
    RAISED: frozenset({"base"}),
}
_FACTS = 4
"""Word, parts, eps, axis."""


@dataclass(frozen=True)
class Recipe:
    """How a parameter is made of others of its side. `parts` are words with the layer and role of each."""

    word: str
    parts: tuple[tuple[str, str, str], ...]
    eps: float = 0.0
    """The norm's; of a weight that is raised, what is added."""
    axis: Optional[int] = 0
    """The axis of the channels; None: all of a weight has one length."""

    def made(self, values: Mapping[str, Numbers]) -> Numbers:
        """What the parts, by their words, come to."""
        if self.word == RAISED:
            return np.asarray(values["base"] + self.eps)
        with np.errstate(all="ignore"):  # a variance that is negative is a finding, and no trouble here
            if self.word == NORMED:
                direction = values["direction"]
                length = values["length"].reshape(self._beside(direction.shape))
                return np.asarray(direction * (length / self._length(direction)))
            factor = values.get("scale", np.float64(1.0)) / np.sqrt(values["variance"] + self.eps)
            if self.word == FOLDED_BIAS:
                bias, shift = values.get("bias", np.float64(0.0)), values.get("shift", np.float64(0.0))
                return np.asarray((bias - values["mean"]) * factor + shift)
            return np.asarray(values["weight"] * factor.reshape(self._beside(values["weight"].shape)))

    def apart(self, value: Numbers, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Numbers]:
        """Parts of these shapes that come to this value: a norm that does nothing but add, a length and a direction."""
        if self.word == RAISED:
            found = {"base": value - self.eps}
        elif self.word == NORMED:
            length = self._length(value)
            zero = length == 0.0  # of a direction without a length nothing can be made
            found = {"direction": np.where(zero, 1.0, value), "length": length}
        else:
            words = {word for word, *_ in self.parts}
            scaled, none = "scale" in words, np.zeros(())
            found = {"weight": value, "variance": np.asarray(1.0 if scaled else 1.0 - self.eps)}
            found["scale"] = np.sqrt(np.asarray(1.0 + self.eps))
            found["bias"] = value
            found["shift"] = none if "bias" in words else value
            found["mean"] = none if words & {"bias", "shift"} else -value
        return {
            word: found[word].reshape(shape) if found[word].size == math.prod(shape) else np.full(shape, found[word])
            for word, shape in shapes.items()
        }

    def shape(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
        """The shape of what is made of parts of these shapes."""
        return shapes[{NORMED: "direction", FOLDED_WEIGHT: "weight", FOLDED_BIAS: "mean", RAISED: "base"}[self.word]]

    def fits(self, shapes: Mapping[str, tuple[int, ...]]) -> bool:
        """Whether parts of these shapes can be taken together."""
        whole = self.shape(shapes)
        if self.word in (FOLDED_BIAS, RAISED):
            return all(shape == whole for shape in shapes.values())
        axis = self.axis
        if axis is not None and axis >= len(whole):
            return False
        channels = 1 if axis is None else whole[axis]
        small = [shape for word, shape in shapes.items() if word not in ("direction", "weight")]
        return all(math.prod(shape) == channels for shape in small)

    def _beside(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(size if place == self.axis else 1 for place, size in enumerate(shape))

    def _length(self, value: Numbers) -> Numbers:
        over = tuple(place for place in range(value.ndim) if place != self.axis)
        return np.asarray(np.sqrt(np.square(value).sum(axis=over, keepdims=True)))

    def facts(self) -> list[object]:
        """Plain facts for a dump."""
        return [self.word, [list(part) for part in self.parts], self.eps, -1 if self.axis is None else self.axis]

    @staticmethod
    def parsed(facts: Any) -> Optional[Recipe]:
        """From what `facts` gave; None for what is damaged."""
        if not isinstance(facts, (list, tuple)) or len(facts) != _FACTS:
            return None
        word, parts, eps, axis = facts
        if (
            not isinstance(word, str)
            or word not in PARTS
            or not isinstance(parts, (list, tuple))
            or type(axis) is not int
            or axis < -1
        ):
            return None
        if not isinstance(eps, (int, float)) or not math.isfinite(eps):
            return None
        rows = [tuple(part) for part in parts if isinstance(part, (list, tuple))]
        if not all(len(row) == 3 and all(isinstance(text, str) for text in row) for row in rows):
            return None
        words = {row[0] for row in rows}
        if len(words) != len(parts) or not _NEEDED[word] <= words <= PARTS[word]:
            return None
        return Recipe(word, tuple(rows), float(eps), None if axis < 0 else axis)

    def layer(self, word: str) -> str:
        """The layer that has this part; "" if none has."""
        return next((layer for known, layer, _ in self.parts if known == word), "")


class Computed(Formed):
    """What reads like a record of a parameter and is made of several."""

    def __init__(self, key: Key, recipe: Recipe, parts: Mapping[str, Entry]) -> None:
        shape = recipe.shape({word: entry.shape for word, entry in parts.items()})
        contents = tuple((word, entry.content) for word, entry in parts.items())
        super().__init__(key, next(iter(parts.values())), shape, (recipe, contents))
        self._recipe, self._parts = recipe, parts

    def raw(self) -> Array:
        """The exact bits."""
        values = {word: entry.load().astype(np.float64) for word, entry in self._parts.items()}
        return encode(self._recipe.made(values).reshape(self.shape), self.dtype)


@dataclass(frozen=True)
class Combined:
    """A side's parameters that are made of several, by layer and role."""

    recipes: Mapping[tuple[str, str], Recipe]
    find: Callable[[Key], Optional[Entry]]

    @classmethod
    def of(cls, side: int, header: Mapping[str, Any], dump: Dump) -> Combined:
        """What the port's header tells of this side; what cannot be read of it is left out."""
        table = header.get("combined")
        rows = table[side] if isinstance(table, (list, tuple)) and len(table) == 2 else ()
        found = {}
        for row in rows if isinstance(rows, (list, tuple)) else ():
            if isinstance(row, (list, tuple)) and len(row) == 3 and all(isinstance(text, str) for text in row[:2]):
                recipe = Recipe.parsed(row[2])
                if recipe is not None:
                    found[row[0], row[1]] = recipe
        return cls(found, dump.find)

    def entry(self, step: int, layer: str, role: str) -> Optional[Entry]:
        """The parameter: as it is recorded, or as what it is made of comes to; None where something of it lacks."""
        recipe = self.recipes.get((layer, role))
        if recipe is None:
            return self.find(Key(step, Phase.PARAMETER, layer, 0, role))
        parts = {word: self.find(key) for word, key in zip([p[0] for p in recipe.parts], self._keys(step, recipe))}
        known = {word: entry for word, entry in parts.items() if entry is not None}
        if len(known) < len(parts) or not recipe.fits({word: entry.shape for word, entry in known.items()}):
            return None
        norm = recipe.layer("variance").rpartition(".")[2]
        norm = f"{recipe.eps:+g}" if recipe.word == RAISED else norm
        slot = f"{role}[{norm}]" if norm else role
        made: Any = Computed(Key(step, Phase.PARAMETER, layer, 0, slot), recipe, known)
        return made  # type: ignore[no-any-return]  # it reads like a record

    def keys(self, step: int, layer: str, role: str) -> Sequence[Key]:
        """The records that are spoken for by a parameter."""
        recipe = self.recipes.get((layer, role))
        return [Key(step, Phase.PARAMETER, layer, 0, role)] if recipe is None else self._keys(step, recipe)

    def _keys(self, step: int, recipe: Recipe) -> Sequence[Key]:
        return [Key(step, Phase.PARAMETER, layer, 0, role) for _, layer, role in recipe.parts]

    def norms(self) -> Mapping[str, tuple[str, Recipe]]:
        """By layer the BatchNorm behind it that is taken together with it."""
        return {
            layer: (recipe.layer("variance"), recipe)
            for (layer, _), recipe in self.recipes.items()
            if recipe.word == FOLDED_BIAS
        }
