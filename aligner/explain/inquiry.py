"""What may be asked about one origin: rules one by one, each within a bound on its work.

Work is counted in elements touched, so that the same dumps give the same answer on a slow machine as on a fast one;
the clock is asked only as the last guard. A rule says what it is going to touch by `spend`, and is left where that is
more than it may have: what it has found until then stays, and its name is told as not tried to the end.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Optional, TypeVar

Found = TypeVar("Found")

NUMBERS, WHOLE = "numbers", "whole"
"""What may be left out besides single rules: to look into numbers at all, and into all of a large value."""

ORIGIN, NET = 2e9, 8e9
"""Elements that may be touched for one origin and for all by who has time: some ten and forty seconds of one core."""

QUICK = 8e8
"""The same for all origins of a comparison, for which somebody waits: some four seconds."""

ASKING = 5e4
"""What it costs to touch anything at all, in elements: small values are asked as many questions as large ones."""

SECONDS, NET_SECONDS = 60.0, 300.0
"""The same by the clock, which only a much slower machine meets; then what is told depends on it."""

SHARE = 0.5
"""Of what is left a single rule may take this part, so that a long search leaves something for the rules behind it."""


class Spent(Exception):  # no error: it ends a rule
    """A rule has touched as many elements as it may."""


class Inquiry:
    """The questions about one origin. Without numbers there is no bound, and everything is asked."""

    def __init__(
        self, elements: float = math.inf, until: float = math.inf, only: Optional[Collection[str]] = None
    ) -> None:
        self.left = elements
        self.only = only
        """The rules that are asked; None: all."""
        self.told: list[str] = []
        """Rules that found something."""
        self.untried: list[str] = []
        """Rules that were not asked to the end."""
        self._until = until
        self._floor = 0.0

    def ask(self, name: str, rule: Callable[[], Iterable[Found]], elements: float = 0.0) -> list[Found]:
        """All that a rule finds; what it found until then where it is too much work. `elements` is touched at least."""
        if self.only is not None and name not in self.only:
            return []
        found: list[Found] = []
        outer, self._floor = self._floor, max(self._floor, self.left * (1.0 - SHARE))
        mark = _NOW.set(self)
        try:
            self.spend(elements)
            found.extend(rule())
        except Spent:
            self.leave_out(name)
        finally:
            _NOW.reset(mark)
            self._floor = outer
        if found and name not in self.told:
            self.told.append(name)
        return found

    def leave_out(self, name: str) -> None:
        """Say what was not asked."""
        if name not in self.untried:
            self.untried.append(name)

    @contextmanager
    def narrowed(self, rules: Optional[Collection[str]]) -> Iterator[None]:
        """Inside, of the rules only these are asked; None: all the same."""
        before = self.only
        if rules is not None:
            self.only = rules if before is None else [name for name in before if name in rules]
        try:
            yield
        finally:
            self.only = before

    def spend(self, elements: float) -> None:
        """Say that so many elements are going to be touched.

        Raises:
            Spent: that is more than there is.
        """
        elements += ASKING
        if self.left - elements < self._floor or time.monotonic() > self._until:
            raise Spent
        self.left -= elements


class Allowance:
    """What all inquiries of one comparison, or of one capture's trials, may cost together."""

    def __init__(self, elements: Optional[float] = None) -> None:
        self._left = NET if elements is None else elements
        self._until = time.monotonic() + NET_SECONDS

    @contextmanager
    def inquiry(self, only: Optional[Collection[str]] = None) -> Iterator[Inquiry]:
        """The questions about one origin; what they cost is taken from the whole."""
        given = min(ORIGIN, self._left)
        inquiry = Inquiry(given, min(self._until, time.monotonic() + SECONDS), only)
        try:
            yield inquiry
        finally:
            self._left -= given - inquiry.left


_NOW: ContextVar[Optional[Inquiry]] = ContextVar("_NOW", default=None)
_CURRENT: ContextVar[Optional[Inquiry]] = ContextVar("_CURRENT", default=None)


def spend(elements: float) -> None:
    """Count work against the rule that is being asked, if one is.

    Raises:
        Spent: it may not do so much.
    """
    inquiry = _NOW.get()
    if inquiry is not None:
        inquiry.spend(elements)


@contextmanager
def held(inquiry: Inquiry) -> Iterator[None]:
    """What is asked inside is asked within this inquiry."""
    mark = _CURRENT.set(inquiry)
    try:
        yield
    finally:
        _CURRENT.reset(mark)


def current() -> Inquiry:
    """The inquiry that is going on; one without bounds where there is none."""
    return _CURRENT.get() or Inquiry()
