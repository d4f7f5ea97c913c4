"""What a rule's facts may hold besides numbers, names and code: a phrase by its id, said in the reader's language."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Union

from aligner.record import Scalar


@dataclass(frozen=True)
class Phrase:
    """A phrase of aligner.explain.catalogue.phrases. `parts` fill its places, in order."""

    id: str
    parts: tuple[Fact, ...] = ()


Fact = Union[Scalar, Phrase, tuple["Fact", ...]]
"""A number, a name, code, a phrase; or several of these, which are said one after the other."""


def phrase(name: str, *parts: Fact) -> Phrase:
    """The phrase with its parts."""
    return Phrase(name, parts)
