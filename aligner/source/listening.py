"""Who is told of what the user's code does while it runs in the form that tells, and who runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Optional, Protocol

Place = tuple[str, int, int, int, int]
"""The file, and where in it something begins and ends: line and column, twice."""


class Listener(Protocol):
    """Who is told of what the code does."""

    def begun(
        self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place
    ) -> Optional[Callable[[object], None]]:
        """An operation begins; what is returned is to be called with what it made."""

    def handed(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place, to: Optional[object]) -> None:
        """Values go into a layer, or are returned."""

    def kept(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place) -> None:
        """Values go into a list, a dictionary or the like, or get a name."""

    def entered(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], where: Place) -> None:
        """Values go into a function of the user's."""

    def came(self, output: object, where: Place, of: Optional[object]) -> None:
        """A layer gives this, or a function of the user's."""


class Deaf:
    """A listener that is told nothing."""

    def begun(self, *_: Any) -> None:
        """An operation."""

    def handed(self, *_: Any) -> None:
        """Into a layer."""

    kept = handed

    def entered(self, *_: Any) -> None:
        """Into a function."""

    def came(self, *_: Any) -> None:
        """Out of one, or of a layer."""


@dataclass
class Inside:
    """What is noted of a call of a user's function while it is under way."""

    used: set[FunctionType] = field(default_factory=set)
    touched: dict[int, object] = field(default_factory=dict)
    """Python's own containers that may be written into, by identity."""
    created: list[object] = field(default_factory=list)
    """Objects of the user's that are made in it."""
    owners: dict[tuple[object, int], object] = field(default_factory=dict)
    """Objects whose methods are called in it, by the method and their identity."""
    effects: bool = False
    """A layer writes into what it is given."""


class Runner(Protocol):
    """Who runs the operations."""

    def within(
        self, ear: Any, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], run: Callable[[], Any]
    ) -> Any:
        """What a user's function gives."""

    def run(
        self, word: str, function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], compute: Callable[[], Any]
    ) -> Any:
        """What `compute` gives."""


class Plainly:
    """Runs them."""

    def within(self, ear: Any, function: Any, args: Any, kwargs: Any, run: Callable[[], Any]) -> Any:
        """What `run` gives."""
        return run()

    def run(self, word: str, function: Any, args: Any, kwargs: Any, compute: Callable[[], Any]) -> Any:
        """What `compute` gives."""
        return compute()
