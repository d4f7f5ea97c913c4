"""What tells one step from others: where it stands, and what it does to which values."""

from __future__ import annotations

from typing import Any

from aligner.mending.events import Event
from aligner.words.operations import COMMUTING


def place_of(event: Event) -> Any:
    """Equal for what the same expression does, whenever."""
    return (event.site, event.word) if event.site is not None and not event.part else id(event)


def step_of(event: Event, operands: list[Any]) -> Any:
    """Equal for steps that make the same of the same."""
    word, operands = _as_product(event.word, operands)
    taken = sorted(operands, key=repr) if word in COMMUTING else operands
    plain = sorted((key, repr(value)) for key, value in event.arguments.items() if key not in ("shape", "dtype"))
    return word, event.layer, tuple(plain) if word == event.word else (), tuple(taken)


def _as_product(word: str, operands: list[Any]) -> tuple[str, list[Any]]:
    """A division by a number is a product with its inverse, a square one with itself."""
    if word == "square" or (word == "pow" and operands[1:] == [("number", "2")]):
        return "mul", [operands[0], operands[0]]
    if word == "div" and len(operands) == 2 and isinstance(operands[1], tuple) and float(operands[1][1]):
        return "mul", [operands[0], ("number", f"{1.0 / float(operands[1][1]):.6g}")]
    return word, operands
