"""A place of the port's code where a value of the reference may be written."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass, field

from aligner.mending.events import Event
from aligner.words.calls import Operand


@dataclass(eq=False)
class Anchor:
    """An expression of the port that may be replaced. `value` is what it has, `late` how far down it stands."""

    node: ast.AST
    value: Operand
    event: Event
    late: int
    inputs: Sequence[tuple[ast.AST, Operand]]
    said: dict[int, tuple[str, int]] = field(default_factory=dict)
    """What is known already of values there, with how many operations deep it is, ..."""
    unsaid: dict[int, int] = field(default_factory=dict)
    """... and at which depth it is known that there is nothing."""
    named: bool = False
    """A name is told rather than what stands there, where both have the value: in a first turn they may."""
    whole: bool = False
    """What the reference does in vain on its line is told as well: `> 0` of what is 0 or 1."""

    @property
    def is_array(self) -> bool:
        """Whether numpy computes there."""
        return self.node in self.event.arrays
