"""Which operators run and in which types, where MindSpore tells: by its dispatch mode, from 2.10 on."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any, Callable, Optional

from mindspore import Tensor

from aligner.dtypes import DTYPES
from aligner.patches import Handle
from aligner_hooks.mindspore_ import tensors
from aligner_hooks.mindsporelike.operators import is_move, is_question, word

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
    """Call `told(word)` for each operator that runs in this thread; never, where MindSpore does not tell."""
    state = _here()
    return _heard(state, state.listeners, told)


def tell_computed(told: Computed) -> Handle:
    """Call `told(word, dtype)` for each operator of this thread that computes floating numbers."""
    state = _here()
    return _heard(state, state.computed, told)


def surround(run: Run) -> Handle:
    """Have `run(name, args, kwargs, operator)` run each operator of this thread."""
    state = _here()
    return _heard(state, state.around, run)


def _heard(state: _State, listeners: dict[object, Any], told: Callable[..., Any]) -> Handle:
    if not supported():
        return Handle()
    token = object()
    listeners[token] = told
    state.enter()

    def leave() -> None:
        listeners.pop(token, None)
        state.leave()

    return Handle(leave)


def mute() -> None:
    """What this thread runs from here to `unmute` is aligner's own and is told to nobody; the two may be nested."""
    _here().muted += 1


def unmute() -> None:
    """The end of what `mute` began."""
    _here().muted -= 1


def is_muted() -> bool:
    """Whether what runs now is aligner's own."""
    return _here().muted > 0


class _State:
    """Those who listen in one thread, and the one dispatch mode on its stack for all of them.

    Such a mode can be taken off the top of its own thread's stack only. Where somebody has put another one upon it, or
    another thread is asked to, it goes when it is called next; and it must not be left there when the thread ends,
    for MindSpore would end the process.
    """

    def __init__(self) -> None:
        self.listeners: dict[object, Told] = {}
        self.computed: dict[object, Computed] = {}
        self.around: dict[object, Run] = {}
        self.muted = 0
        self.thread = threading.get_ident()
        self.mode: Any = None
        self.depth = 0

    def enter(self) -> None:
        """Have MindSpore tell, if it does not yet."""
        if self.mode is not None and _DispatchGuardStack.depth() < self.depth:
            self.mode = None  # somebody who was under it has taken it for theirs
        if self.mode is None:
            self.mode = _mode(self)
            self.mode.__enter__()
            self.depth = _DispatchGuardStack.depth()

    def leave(self) -> None:
        """Take the mode off when nobody listens, if this can be done from here and now."""
        if self.mode is None or self.listeners or self.computed or self.around or self.thread != threading.get_ident():
            return
        depth = _DispatchGuardStack.depth()
        if depth <= self.depth:
            mode, self.mode = self.mode, None
            if depth == self.depth:
                mode.__exit__(None, None, None)

    def end(self) -> None:
        """The thread ends."""
        for listeners in (self.listeners, self.computed, self.around):
            listeners.clear()
        self.leave()


class _Guard:
    """Held by its thread alone, and gone with it."""

    def __init__(self, state: _State) -> None:
        self._end = state.end

    def __del__(self) -> None:
        self._end()


_THREADS = threading.local()


def _here() -> _State:
    """The state of this thread."""
    state: Optional[_State] = getattr(_THREADS, "state", None)
    if state is None:
        state = _THREADS.state = _State()
        if threading.current_thread() is threading.main_thread():
            atexit.register(state.end)
        else:
            _THREADS.guard = _Guard(state)
    return state


def _mode(state: _State) -> Any:
    class Telling(MsDispatchMode):
        def __ms_dispatch__(self, func: Any, args: Any, kwargs: Any = None) -> Any:
            state.leave()
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
