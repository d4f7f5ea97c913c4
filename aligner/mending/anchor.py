"""A place of the port's code where a value of the reference may be written."""

from __future__ import annotations

import ast
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

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
    loose: bool = False
    """Axes of one are left as the port has them: what a part is made of and what stands around it go together so."""
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
        self._made: dict[ast.AST, tuple[list[int], list[int]]] = {}
        """When, and which values."""
        for number, event in enumerate(heard):
            if event.node is not None and len(event.results) == 1 and not event.part:
                turns, values = self._made.setdefault(event.node, ([], []))
                turns.append(number)
                values.append(event.results[0])
        self._known: dict[tuple[ast.AST, Event], Sequence[tuple[ast.AST, int]]] = {}

    def of(self, anchor: Anchor) -> Sequence[tuple[ast.AST, int]]:
        """Each part of what stands there, with its value in this turn."""
        place = anchor.node, anchor.event
        if place not in self._known:
            end, found = self._order.get(anchor.event, len(self._order)), list[tuple[ast.AST, int]]()
            for node in islice(ast.walk(anchor.node), 1, None):
                turns, values = self._made.get(node, ((), ()))
                at = bisect_left(turns, end)
                found += [(node, values[at - 1])] if at else []
            self._known[place] = found
        return self._known[place]
