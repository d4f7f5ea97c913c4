"""Those in a thread who want to hear what torch runs, and the mode of torch's through which they hear it."""

from __future__ import annotations

import threading
from typing import Any, Callable


class Ears(threading.local):
    """Who listens in this thread. `put_on` makes torch use a mode, or returns None where torch has no such mode;
    `take_off` ends that, and says whether it could.
    """

    def __init__(self, put_on: Callable[[], Any], take_off: Callable[[Any], bool]) -> None:
        self.listeners: tuple[Listener, ...] = ()
        self.mode: Any = None
        self._put_on = put_on
        self._take_off = take_off

    def listen(self, told: Callable[..., Any]) -> Listener:
        """Have `told` called from now on, in this thread."""
        listener = Listener(self, told)
        self.listeners = (*self.listeners, listener)
        if self.mode is None:
            self.mode = self._put_on()
        return listener

    def tell(self, *words: str) -> None:
        """Tell all who listen."""
        for listener in self.listeners:
            if listener.heard:
                listener.told(*words)

    def tidy(self) -> None:
        """Forget who was removed, in whatever thread, and take the mode away when nobody is left."""
        self.listeners = tuple(listener for listener in self.listeners if listener.heard)
        if not self.listeners and self.mode is not None and self._take_off(self.mode):
            self.mode = None


class Listener:
    """One who is told; a handle."""

    def __init__(self, ears: Ears, told: Callable[..., Any]) -> None:
        self._ears = ears
        self.told = told
        self.heard = True

    def remove(self) -> None:
        """Be told no longer; twice is harmless."""
        self.heard = False
        self._ears.tidy()
