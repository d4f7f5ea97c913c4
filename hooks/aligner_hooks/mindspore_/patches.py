"""Replacing a function for a while: one replacement per place, many listeners, restored exactly."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable

Listeners = list[Any]
Make = Callable[[Callable[..., Any], Listeners], Callable[..., Any]]


class Handle:
    """Undoes what was installed, the last first, once."""

    def __init__(self, *undo: Callable[[], object]) -> None:
        self._undo = list(undo)

    def add(self, undo: Callable[[], object]) -> None:
        """One thing more to undo."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Undo everything; a second call finds nothing to do."""
        while self._undo:
            self._undo.pop()()


def intercept(owner: Any, name: str, listener: object, make: Make) -> Callable[[], None]:
    """Replace `owner.name` by `make(original, listeners)` unless that was done already, and join the listeners.

    `owner` is a class, a module or an instance. Returns what takes the listener away; the last one to leave
    restores what stood there, so that it does not matter in which order they leave.
    """
    stood = vars(owner).get(name)
    listeners: Listeners = getattr(stood, "aligner_listeners", [])
    if not listeners:
        original = getattr(owner, name)
        replacement = wraps(original)(make(original, listeners))
        replacement.aligner_listeners = listeners  # type: ignore[attr-defined]  # found by the next to intercept
        replacement.aligner_restores = stood  # type: ignore[attr-defined]  # likewise
        _set(owner, name, replacement)
    entry = (listener,)
    listeners.append(entry)

    def leave() -> None:
        listeners[:] = [other for other in listeners if other is not entry]
        standing = vars(owner).get(name)
        # Somebody may have replaced our replacement: then it stays, as a detour that nobody listens to.
        if not listeners and getattr(standing, "aligner_listeners", None) is listeners:
            _set(owner, name, standing.aligner_restores)

    return leave


def _set(owner: Any, name: str, value: object) -> None:
    if isinstance(owner, type):
        setattr(owner, name, value)
    elif value is None:  # an instance that had no such attribute of its own
        object.__delattr__(owner, name)
    else:
        object.__setattr__(owner, name, value)
