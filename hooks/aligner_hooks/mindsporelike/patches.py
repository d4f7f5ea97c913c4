"""Replacing a function for a while: one replacement per place, many listeners, restored exactly."""

from __future__ import annotations

from functools import wraps
from typing import Any, Callable

Listeners = dict[object, Any]
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


def intercept(owner: Any, name: str, listener: Any, make: Make) -> Callable[[], None]:
    """Replace `owner.name` by `make(original, listeners)` unless that was done already, and join the listeners.

    `owner` is a class or a module. Returns what takes the listener away; the last one to leave restores what stood
    there, so that it does not matter in which order they leave.
    """
    stood = vars(owner)[name]
    listeners: Listeners = getattr(stood, "aligner_listeners", {})
    if not listeners:
        replacement = wraps(stood)(make(stood, listeners))
        replacement.aligner_listeners = listeners  # type: ignore[attr-defined]  # found by the next to intercept
        replacement.aligner_restores = stood  # type: ignore[attr-defined]  # likewise
        setattr(owner, name, replacement)
    token = object()
    listeners[token] = listener

    def leave() -> None:
        listeners.pop(token, None)
        standing = vars(owner)[name]
        # Somebody may have replaced our replacement: then it stays, as a detour that nobody listens to.
        if not listeners and getattr(standing, "aligner_listeners", None) is listeners:
            setattr(owner, name, standing.aligner_restores)

    return leave
