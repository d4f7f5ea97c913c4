"""Which operations right ports write in place of each other, and what one side has more of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from aligner.words import plain

_COMPARISONS = {"lt", "le", "gt", "ge", "eq", "ne"}

_MOVED = {"transpose", "flip", "roll"}
"""What moves values and can be forgotten, whatever the shapes."""

_ALIKE = {
    "div": "mul",
    "reciprocal": "mul",
    "sub": "add",
    "and": "mul",
    "maximum": "clamp",
    "minimum": "clamp",
    "neg": "",
    "not": "",
    "where": "add",
}
"""A quotient as a product, a mask as a sum."""


def work(word: str) -> str:
    """What an operation does, in fewer words."""
    return "compare" if word in _COMPARISONS else word


def coarse(word: str) -> str:
    """What it does, whatever right ports write in its place."""
    return _ALIKE.get(word, word)


def apart(ours: Sequence[str], theirs: Sequence[str]) -> tuple[Counter[str], Counter[str]]:
    """What only one of two sides does."""
    words = [[word for name in names if (word := coarse(name))] for names in (ours, theirs)]
    return plain.apart(*words)


def only(word: str, mine: Counter[str], its: Counter[str]) -> bool:
    """Whether it moves values once more on this side than on the other; two may be there and back."""
    return word in _MOVED and mine[word] == its[word] + 1
