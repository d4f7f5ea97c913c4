"""Which operators run, where MindSpore tells: by its dispatch mode, from 2.10 on."""

from __future__ import annotations

import re
from typing import Any, Callable

from aligner_hooks.mindspore_.patches import Handle

try:
    from mindspore._c_expression import _DispatchGuardStack
    from mindspore.utils import MsDispatchMode
except ImportError:  # before 2.10
    MsDispatchMode = None

Told = Callable[[str], None]

# Operators go by several names inside MindSpore; these are the words that users write.
_ENDINGS = re.compile(r"(Ext|View|Prim|V\d)+$")
_WORDS = {
    **{f"reduce{word}": word for word in ("mean", "sum", "max", "min", "std", "any", "all", "prod")},
    **{f"{word}s": word for word in ("add", "sub", "mul", "div")},
    "batchmatmul": "bmm",
    "reversev2": "flip",
}
# What MindSpore asks a tensor: nothing is computed.
_QUESTIONS = frozenset(("typeof", "shape", "dtype", "rank"))


def supported() -> bool:
    """Whether this MindSpore tells of its operators."""
    return MsDispatchMode is not None


def word(name: str) -> str:
    """A plain word for MindSpore's name of an operator: "MatMulExt" is "matmul"."""
    plain = _ENDINGS.sub("", name).lower()
    return _WORDS.get(plain, plain)


def tell(told: Told) -> Handle:
    """Call `told(word)` for each operator that runs; never, where MindSpore does not tell."""
    if not supported():
        return Handle()
    token = object()
    _STATE.listeners[token] = told
    _STATE.enter()
    return Handle(lambda: _STATE.leave(token))


def mute() -> None:
    """What runs from here to `unmute` is aligner's own and is told to nobody; the two may be nested."""
    _STATE.muted += 1


def unmute() -> None:
    """The end of what `mute` began."""
    _STATE.muted -= 1


class _State:
    """One dispatch mode for all who listen: modes must go in the reverse of the order in which they came."""

    def __init__(self) -> None:
        self.listeners: dict[object, Told] = {}
        self.muted = 0
        self.mode: Any = None
        self.depth = 0

    def enter(self) -> None:
        """Have MindSpore tell, if it does not yet."""
        if self.mode is None:
            self.mode = _mode(self)
            self.mode.__enter__()
            self.depth = _DispatchGuardStack.depth()

    def leave(self, token: object) -> None:
        """One who listens goes; a mode that somebody put upon ours keeps it there, with nobody listening."""
        self.listeners.pop(token, None)
        if not self.listeners and _DispatchGuardStack.depth() == self.depth:
            mode, self.mode = self.mode, None
            mode.__exit__(None, None, None)


_STATE = _State()


def _mode(state: _State) -> Any:
    class Telling(MsDispatchMode):
        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            if not state.muted:
                plain = word(func.name)
                if plain not in _QUESTIONS:
                    for told in list(state.listeners.values()):
                        told(plain)
            return func(*args, **kwargs) if kwargs else func(*args)

    return Telling()
