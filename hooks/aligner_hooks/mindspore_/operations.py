"""Which operators run and in which types, where MindSpore tells: by its dispatch mode, from 2.10 on."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, Callable

from mindspore import Tensor

from aligner.dtypes import DTYPES
from aligner_hooks.mindspore_ import tensors
from aligner_hooks.mindsporelike.operators import is_move, is_question, word
from aligner_hooks.mindsporelike.patches import Handle

try:
    from mindspore._c_expression import _DispatchGuardStack
    from mindspore.utils import MsDispatchMode
except ImportError:  # before 2.10
    MsDispatchMode = None

Told = Callable[[str], None]
Computed = Callable[[str, str], None]
Run = Callable[[str, tuple[Any, ...], Mapping[str, Any], Callable[[], Any]], Any]


def supported() -> bool:
    """Whether this MindSpore tells of its operators."""
    return MsDispatchMode is not None


def tell(told: Told) -> Handle:
    """Call `told(word)` for each operator that runs; never, where MindSpore does not tell."""
    return _heard(_STATE.listeners, told)


def tell_computed(told: Computed) -> Handle:
    """Call `told(word, dtype)` for each operator that computes floating numbers."""
    return _heard(_STATE.computed, told)


def _heard(listeners: dict[object, Any], told: Callable[..., None]) -> Handle:
    if not supported():
        return Handle()
    token = object()
    listeners[token] = told
    _STATE.enter()
    return Handle(lambda: _STATE.leave(token))


def mute() -> None:
    """What runs from here to `unmute` is aligner's own and is told to nobody; the two may be nested."""
    _STATE.muted += 1


def unmute() -> None:
    """The end of what `mute` began."""
    _STATE.muted -= 1


def is_muted() -> bool:
    """Whether what runs now is aligner's own."""
    return _STATE.muted > 0


def surround(run: Run) -> Handle:
    """Have `run(name, args, kwargs, operator)` run each operator."""
    return _heard(_STATE.around, run)


class _State:
    """One dispatch mode for all who listen: modes must go in the reverse of the order in which they came."""

    def __init__(self) -> None:
        self.listeners: dict[object, Told] = {}
        self.computed: dict[object, Computed] = {}
        self.around: dict[object, Run] = {}
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
        self.computed.pop(token, None)
        self.around.pop(token, None)
        if not (self.listeners or self.computed or self.around) and _DispatchGuardStack.depth() == self.depth:
            mode, self.mode = self.mode, None
            mode.__exit__(None, None, None)


_STATE = _State()


def _mode(state: _State) -> Any:
    class Telling(MsDispatchMode):
        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            if not state.muted:
                plain = word(func.name)
                if not is_question(plain):
                    for told in list(state.listeners.values()):
                        told(plain)
            run = (lambda: func(*args, **kwargs)) if kwargs else (lambda: func(*args))
            for around in list(state.around.values()) if not state.muted else ():
                run = partial(around, func.name, args, kwargs or {}, run)
            output = run()
            if state.computed and not state.muted:
                _tell_computed(state, func.name, output)
            return output

    return Telling()


def _tell_computed(state: _State, name: str, output: Any) -> None:
    """Casts inside an operator are past by now: what it makes is in the type that it computed in."""
    plain = word(name)
    made = next((item for item in output if isinstance(item, Tensor)), None) if type(output) is tuple else output
    if not isinstance(made, Tensor) or is_move(plain):
        return
    dtype = tensors.dtype(made)
    if dtype in DTYPES and DTYPES[dtype].eps is not None:
        for told in list(state.computed.values()):
            told(plain, dtype)
