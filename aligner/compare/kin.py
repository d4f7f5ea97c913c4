"""Origins that are one line of code: the same class of layer, wrong at the same place of its code.

The first is explained in full. What explained it is asked of the others, and nothing else if it tells them the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from aligner.compare.net import unnumbered
from aligner.compare.verdict import Origin
from aligner.explain.case import Case
from aligner.explain.inquiry import Inquiry

EXAMPLES = 3
"""Of one line so many are explained in full; the next that is like none of them is asked what explained the last."""

TWICE = 2
"""What nothing was found of is looked into once more, in another layer, before the others are left alone."""


Told = tuple[tuple[str, bool], ...]
"""Names of causes, and whether each is proved."""


@dataclass(frozen=True)
class Example:
    """A place that was looked into in full, and the rules that told something of it."""

    layer: str
    rules: tuple[str, ...]
    told: Told

    @property
    def proved(self) -> bool:
        """Whether a cause was."""
        return any(confirmed for _, confirmed in self.told)


@dataclass
class Kin:
    """Those of one line so far."""

    examples: list[Example] = field(default_factory=list)
    fruitless: int = 0

    @property
    def usable(self) -> Sequence[Example]:
        """Examples that others may be explained by."""
        return [example for example in self.examples if example.proved or self.fruitless >= TWICE]

    @property
    def many(self) -> bool:
        """Whether so many were that the search goes to other lines, and there is one to go by."""
        return len(self.examples) >= EXAMPLES and bool(self.usable)

    def add(self, layer: str, told: Told, inquiry: Inquiry) -> None:
        """One that was looked into in full; a search that was too long is not made twice."""
        example = Example(layer, tuple(inquiry.told), told)
        if not example.proved:
            self.fruitless += TWICE if inquiry.untried else 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(example)


def line_of(origin: Origin, case: Case) -> object:
    """Equal for origins that the same code makes; a layer of the framework's is known by what is set otherwise."""
    key = origin.place.key if origin.place is not None else None
    spot = origin.line.port if origin.line is not None and origin.line.sure else None
    at = None if spot is None or origin.line is None else (spot.file, spot.line, origin.line.kind)
    between = origin.between and tuple(_inside(name, origin.layer) for name in origin.between)
    return (
        *(origin.where, origin.phase, origin.cast, between, at, class_of(case)),
        None if key is None else (_inside(key.layer, origin.layer), key.slot),
    )


def class_of(case: Case) -> object:
    """Equal for layers of one class with the same settings wrong, whatever their sizes.

    What only one side has is no setting that is wrong: often it is a size.
    """
    ours, theirs = case.reference, case.port
    names = dict.fromkeys((*ours.attributes, *theirs.attributes))
    pairs = ((name, ours.attributes.get(name), theirs.attributes.get(name)) for name in names)
    both = [(name, one, other) for name, one, other in pairs if one is not None and other is not None]
    apart = tuple((name, repr(one), repr(other)) for name, one, other in both if one != other)
    form = None if case.actual is None else (case.actual.dtype, len(case.actual.shape))
    return case.types, ours.kind, theirs.kind, apart, form


def _inside(path: str, parent: str) -> Optional[str]:
    """The path as the parent's code has it, its numbers left out: blocks.0 and blocks.1 are one line."""
    prefix = f"{parent}." if parent else ""
    own = path[len(prefix) :] if path.startswith(prefix) else path
    return unnumbered(own)
