"""What each operator of MindSpore is given and what it makes, in the order they run, from 2.10 on.

The dispatch mode is told of neither slices of tensors nor of some quick operators (Concat), and of no operator that
is given what one of these made: their calls are replaced while somebody listens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import mindspore
from mindspore import Tensor

from aligner.adapter import Begun
from aligner.patches import Handle, Listeners, patch, together
from aligner_hooks.frames import Frames
from aligner_hooks.mindspore_.operations import is_muted, mute, supported, surround, unmute
from aligner_hooks.mindsporelike.classes import called, name_of
from aligner_hooks.mindsporelike.operators import is_crossing, is_question, word

_FRAMES = Frames(mindspore)


def tell(begun: Begun) -> Handle:
    """Tell of this thread's operators from now on; of none, where MindSpore does not tell."""
    if not supported():
        return Handle()
    ears = _Ears(begun)
    with together() as handle:
        handle.add(surround(ears.dispatched).remove)
        for name in _METHODS:
            handle.add(patch(Tensor, f"__{name}__", _METHODS[name], ears).remove)
        for kind in called():
            handle.add(patch(kind, "__call__", _calling, ears).remove)
        return handle


class _Ears:
    """Who listens, and how many operators have been told of; what runs inside one that was replaced is told instead."""

    def __init__(self, begun: Begun) -> None:
        self.begun = begun
        self.told = 0
        self.thread = threading.get_ident()

    def dispatched(self, name: str, args: tuple[Any, ...], kwargs: Any, operator: Callable[[], Any]) -> Any:
        """An operator that MindSpore tells of; older ones come after their primitive and its name."""
        given = args[2] if len(args) == 3 and isinstance(args[1], str) and isinstance(args[2], tuple) else args
        return self.run(name, given, kwargs, operator)

    def run(self, name: str, args: tuple[Any, ...], kwargs: Any, call: Callable[[], Any], outer: bool = False) -> Any:
        """Run one operator and tell of it; of an outer one only if nothing was told that ran inside it."""
        plain = word(name)
        if is_muted() or is_question(plain) or (is_crossing(plain) and plain not in _METHODS):
            return call()
        known = self.told
        made = self._aside(self.begun, plain, args, kwargs or {}, _FRAMES.line())
        output = call()
        if outer and self.told > known:
            return output
        self.told += 1
        if made is not None:
            self._aside(made, args[0] if output is None and args else output)
        return output

    @staticmethod
    def _aside(told: Callable[..., Any], *facts: Any) -> Any:
        """What others hear is the net's own."""
        mute()
        try:
            return told(*facts)
        finally:
            unmute()


def _method(name: str, original: Any, listeners: Listeners) -> Any:
    def method(self: Any, *args: Any) -> Any:
        return _run(listeners, name, (self, *args), {}, lambda: original(self, *args))

    return method


def _calling(original: Any, listeners: Listeners) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self) if listeners else ""
        if not name:
            return original(self, *args, **kwargs)
        return _run(listeners, name, args, kwargs, lambda: original(self, *args, **kwargs))

    return __call__


def _run(listeners: Listeners, name: str, args: tuple[Any, ...], kwargs: Any, call: Callable[[], Any]) -> Any:
    """Run what was replaced; those who listen in this thread are told of it."""
    here = threading.get_ident()
    for ears in list(listeners.values()):
        if ears.thread == here:
            call = partial(ears.run, name, args, kwargs, call, outer=True)
    return call()


_METHODS = {name: partial(_method, name) for name in ("getitem", "setitem")}
