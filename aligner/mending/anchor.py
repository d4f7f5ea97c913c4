"""A place of the port's code where a value of the reference may be written."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
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


class Parts:
    """What the parts of an expression have made."""

    def __init__(self, heard: Sequence[Event]) -> None:
        self._order = {event: number for number, event in enumerate(heard)}
        self._made: dict[ast.AST, list[Event]] = {}
        for event in heard:
            if event.node is not None and len(event.results) == 1 and not event.part:
                self._made.setdefault(event.node, []).append(event)

    def of(self, anchor: Anchor) -> Iterator[tuple[ast.AST, int]]:
        """Each part of what stands there, with its value in this turn."""
        end = self._order.get(anchor.event, len(self._order))
        for node in ast.walk(anchor.node):
            made = [one for one in self._made.get(node, ()) if self._order[one] < end]
            yield from [(node, made[-1].results[0])] if made else []
