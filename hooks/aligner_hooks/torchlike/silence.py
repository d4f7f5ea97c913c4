"""Dropout made inactive without touching the net, in a package that has torch's interface.

The functions that draw are replaced while anybody wants silence. Layers that drop by themselves are put into eval mode,
each alone. All is put back when the last one who wanted it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any


class Silencing:
    """What is replaced while anybody wants silence, and how many want it.

    `replace_functions` is called with this when the first one wants it; `assign` is how the package's modules have
    an attribute set.
    """

    def __init__(
        self,
        replace_functions: Callable[[Silencing], None],
        assign: Callable[[Any, str, Any], None] = setattr,
    ) -> None:
        self._replace_functions = replace_functions
        self._assign = assign
        self._wanted = 0
        self._undo = ExitStack()

    def replace(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Put another function in the place of `owner.name`, if there is one."""
        original = getattr(owner, name, None)
        if original is None:
            return
        if name in vars(owner):
            self._undo.callback(setattr, owner, name, original)
        else:  # torch._VF answers for names it does not hold
            self._undo.callback(delattr, owner, name)
        setattr(owner, name, make(original))

    def want(self, layers: Iterable[Any]) -> Silence:
        """Silence, of functions and of these layers, until it is removed."""
        self._wanted += 1
        silence = Silence(self)
        try:
            if self._wanted == 1:
                self._replace_functions(self)
            for layer in layers:
                self._undo.callback(self._assign, layer, "training", layer.training)
                self._assign(layer, "training", False)
        except BaseException:
            silence.remove()
            raise
        return silence

    def leave(self) -> None:
        """One less wants it."""
        self._wanted -= 1
        if self._wanted == 0:
            self._undo.close()


class Silence:
    """One who wants silence; a handle."""

    def __init__(self, silencing: Silencing) -> None:
        self._silencing = silencing
        self._wanted = True

    def remove(self) -> None:
        """Want it no longer; twice is harmless."""
        if self._wanted:
            self._wanted = False
            self._silencing.leave()
