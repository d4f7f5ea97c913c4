"""What a forced pass knows beforehand (Plan), and of each call that is under way (Frame)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Optional, Union

from aligner.compare.checks import OTHER_BORDER, Check
from aligner.compare.net import CallId, is_input
from aligner.compare.pairing import Pair
from aligner.dtypes import DTYPES
from aligner.record import Array, Key
from aligner.replay.forms import Axes
from aligner.replay.judgement import Place
from aligner.replay.repetition import Mistakes
from aligner.replay.uses import Uses

if TYPE_CHECKING:
    from aligner.dump.reader import Entry


@dataclass(frozen=True)
class Plan:
    """Which of the port's values stands for which of the reference's, by the free run."""

    entries: Mapping[Key, Entry]
    """The reference's record by the port's address."""
    calls: Mapping[CallId, CallId]
    """The reference's call by the port's; numbers count within a step."""
    missing: Mapping[tuple[int, CallId], Sequence[Entry]] = field(default_factory=dict)
    """Arguments that only the reference's call was given, by step and the port's call."""
    uneven: Set[tuple[int, CallId]] = frozenset()
    """Calls that are given more arguments than the reference's, fewer, or some of other sizes, by step."""
    results: Mapping[tuple[int, CallId], Sequence[Pair]] = field(default_factory=dict)
    """What calls made in the free run, on both sides, by step and the port's call."""
    layers: Mapping[str, str] = field(default_factory=dict)
    """The reference's layer by the port's."""
    short: Optional[str] = None
    """The short float type that the port usually computes in."""
    lowered: Mapping[str, str] = field(default_factory=dict)
    """What the reference's layers compute in, where it is known that this is a short float type."""
    cast: Mapping[str, str] = field(default_factory=dict)
    """What the port's layers compute in that AMP casts to a short type on purpose, by the reference's layer."""
    given: Optional[str] = None
    """The float type that all floats are handed on in; None keeps the reference's."""
    held: bool = True
    """Every layer is held to the reference; else only the net's inputs are, and rounding grows as it does."""
    uses: Uses = field(default_factory=Uses)
    """Where the port uses its values, and makes the reference's."""
    orders: Mapping[Key, Axes] = field(default_factory=dict)
    """By the port's address: the order of axes in which it has the reference's value, where that was seen."""

    objects: Mapping[tuple[int, CallId], Sequence[object]] = field(default_factory=dict)
    """What calls of the port were given that is neither a value nor a list of some, by step; None for what is lost."""
    numbers: Mapping[tuple[int, CallId], Mapping[str, Union[bool, int, float]]] = field(default_factory=dict)
    """Plain numbers that the reference's call is given where the port's is given others, by step and slot."""
    guessed: Set[str] = frozenset()
    """The port's layers without weights that likeness alone has paired."""
    recounted: Callable[[Plan, Set[str]], Plan] = lambda plan, layers: plan
    """The plan where layers inside of these of the port's are called as often as the reference's."""
    recalled: Callable[[Plan, Mapping[Key, Set[object]]], Plan] = lambda plan, like: plan
    """The plan where calls stand for those of the reference's that are given what they are given: these values."""
    of_other_calls: Callable[[Plan, Mapping[Key, Set[object]]], Set[Key]] = lambda plan, like: frozenset()
    """Of wrong arguments that may be these values of the reference's, those of calls that the port lacks."""
    made: Callable[[CallId, Array], bool] = lambda call, array: False
    """Whether the reference's code makes a value inside of a call of its own."""

    def without(self, layer: str) -> Plan:
        """The plan in which one of the port's layers stands for none."""
        layers = {path: other for path, other in self.layers.items() if path != layer}
        calls = {call: other for call, other in self.calls.items() if call.layer != layer}
        entries = {key: entry for key, entry in self.entries.items() if key.layer != layer}
        return replace(self, layers=layers, calls=calls, entries=entries)

    def learned(self, elsewhere: Mapping[Key, Optional[Entry]], orders: Mapping[Key, Axes]) -> Plan:
        """The plan with other counterparts for these values of the port, or none, and with these orders of axes."""
        entries = {key: elsewhere.get(key, entry) for key, entry in self.entries.items()} if elsewhere else self.entries
        known = {key: entry for key, entry in entries.items() if entry is not None}
        return replace(self, entries=known, orders=dict(orders))

    def coarsest(self, layer: str) -> Optional[str]:
        """The shortest type that a value of this layer of the reference may be rounded to, on either side."""
        known = (self.short, self.lowered.get(layer), self.cast.get(layer))
        words = [word for word in known if word in DTYPES]
        return max(words, key=lambda word: DTYPES[word].eps or 0.0, default=None)


@dataclass
class Frame:
    """A call of the port that is under way."""

    path: str
    number: int
    call: Optional[CallId]
    around: Optional[Frame]
    """The nearest call around it that has a counterpart."""
    inner: bool = False
    last: str = ""
    """The reference's layer of the last call inside that has ended."""
    loose: bool = False
    """Something in its hands could not be replaced by the reference's."""
    mistakes: Mistakes = field(default_factory=Mistakes)
    """What its own code has done wrong so far."""
    wrong: set[object] = field(default_factory=set)
    """Values of the reference that its code has got wrong so far, by their contents."""
    ended: Callable[[Place], None] = lambda place: None
    """What is to be done when it has ended, with the place of its code."""
    first: int = 0
    """Checks that were made before it began."""
    before: str = ""
    """The reference's layer that ended last before it, in the call around."""
    doubtful: list[int] = field(default_factory=list)
    """Checks of arguments that it got in another form: whether that is wrong, its results tell."""
    joined: bool = False
    """It was given in one piece what the reference's call was given in several."""
    takes_more: bool = True
    """Its call leaves an argument open."""
    own: list[tuple[int, ...]] = field(default_factory=list)
    """Shapes of the arguments that the port alone gives it."""
    misled: list[int] = field(default_factory=list)
    """Those of them that say other things than the reference's, whatever the form."""

    def is_sure(self, checks: Sequence[Check]) -> bool:
        """Whether it was given the reference's arguments, by these checks, none in another form or border."""
        places = (checks[at] for at in range(self.first, len(checks)))
        given = takewhile(lambda check: check.port.layer == self.path and is_input(check.port.slot), places)
        return not (self.doubtful or any(check.reason == OTHER_BORDER for check in given))

    @property
    def outer(self) -> Optional[tuple[str, int]]:
        """The call around it, as it is told."""
        return None if self.around is None else (self.around.path, self.around.number)
