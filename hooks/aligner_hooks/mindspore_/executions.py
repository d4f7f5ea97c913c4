"""What each operator of MindSpore is given and what it makes, in the order they run, from 2.10 on.

The dispatch mode is told of neither slices of tensors nor of some quick operators (Concat), and of no operator that
is given what one of these made: their calls are replaced while somebody listens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Optional

import mindspore
from mindspore import Tensor

from aligner.adapter import Begun
from aligner_hooks.frames import Frames
from aligner_hooks.mindspore_.operations import is_muted, mute, supported, surround, unmute
from aligner_hooks.mindsporelike.classes import called, name_of
from aligner_hooks.mindsporelike.operators import is_crossing, is_question, word
from aligner_hooks.mindsporelike.patches import Handle

_FRAMES = Frames(mindspore)
_METHODS = ("getitem", "setitem")


def tell(begun: Begun) -> Handle:
    """Tell of the operators from now on; of none, where MindSpore does not tell."""
    if not supported():
        return Handle()
    ears = _Ears(begun)
    handle = surround(ears.dispatched)
    for undo in _replaced(ears):
        handle.add(undo)
    return handle


class _Ears:
    """Who listens, and how many operators have been told of; what runs inside one that was replaced is told instead."""

    def __init__(self, begun: Begun) -> None:
        self.begun = begun
        self.told = 0

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


def _replaced(ears: _Ears) -> Iterator[Callable[[], None]]:
    for name in _METHODS:
        yield _replace(Tensor, f"__{name}__", _method(ears, name, getattr(Tensor, f"__{name}__")))
    for kind in called():
        yield _replace(kind, "__call__", _calling(ears, vars(kind)["__call__"]))


def _replace(owner: Any, name: str, ours: Any) -> Callable[[], None]:
    stood: Optional[Any] = vars(owner).get(name)
    setattr(owner, name, ours)

    def undo() -> None:
        if vars(owner).get(name) is not ours:  # somebody has wrapped it since
            return
        if stood is None:
            delattr(owner, name)
        else:
            setattr(owner, name, stood)

    return undo


def _method(ears: _Ears, name: str, original: Any) -> Any:
    def method(self: Any, *args: Any) -> Any:
        return ears.run(name, (self, *args), {}, lambda: original(self, *args), outer=True)

    return method


def _calling(ears: _Ears, original: Any) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self)
        if not name:
            return original(self, *args, **kwargs)
        return ears.run(name, args, kwargs, lambda: original(self, *args, **kwargs), outer=True)

    return __call__
