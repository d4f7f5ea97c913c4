"""Whether a value of the reference's is put where the port uses it for what the reference uses it for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set

from aligner.mending.candidate import Candidate
from aligner.mending.events import LAYER, Event
from aligner.mending.matching import Matching

LAYING = ("reshape", "transpose", "expand", "cast")
"""Words of operations that put the same numbers elsewhere."""


class Roles:
    """Of the values of both sides: `events` are the port's, with the one that uses the wrong value."""

    def __init__(self, matching: Matching, events: Iterable[Event]) -> None:
        self._users = _users(matching.ours.events), _users(events)
        self._known: tuple[dict[int, Set[str]], dict[int, Set[str]]] = ({}, {})

    def fits(self, one: Candidate) -> bool:
        """Whether one step at least that works on it there works on it in the reference, too."""
        for event, node, value, _ in one.moves[:1]:
            given = event.results[:1] if node is None else [its for other, its in event.inputs if other is node]
            words = self._words(1, given[0]) if given and isinstance(given[0], int) else set()
            return value is not None and bool(words & self._words(0, value))
        return False

    def _words(self, side: int, value: int) -> Set[str]:
        """What works on a value, wherever it is laid."""
        known = self._known[side]
        if value not in known:
            known[value] = found = set[str]()
            for event in self._users[side].get(value, ()):
                if event.word in LAYING:
                    found |= {word for result in event.results if result != value for word in self._words(side, result)}
                else:
                    found.add(f"{event.word} {event.layer}" if event.word == LAYER else event.word)
        return known[value]


def _users(events: Iterable[Event]) -> Mapping[int, list[Event]]:
    found: dict[int, list[Event]] = {}
    for event in events:
        for operand in event.operands:
            if isinstance(operand, int):
                found.setdefault(operand, []).append(event)
    return found
