"""Which operators run, and in which types.

MindSpore tells of them by itself only from 2.10 on. Under OpenI's MindTorch the `__call__` of each class of operators
is replaced while somebody listens, and those methods of tensors that run in C++; mindnlp's runs every operator by its
name, through one function.

What an operator runs inside itself is not told again, and what aligner's own callbacks do is told to nobody.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from importlib import import_module
from typing import Any

import mindspore
from mindspore.common._stub_tensor import StubTensor

from aligner import patches
from aligner.adapter import Begun, Handle
from aligner.dtypes import DTYPES
from aligner_hooks.frames import Frames
from aligner_hooks.mindsporelike.classes import called, name_of
from aligner_hooks.mindsporelike.operators import is_crossing, is_move, is_question, word
from aligner_hooks.mindtorch_ import tensors
from aligner_hooks.mindtorch_.calls import CALLS
from aligner_hooks.mindtorch_.package import OPENI, package

Told = Callable[[str], None]
Computed = Callable[[str, str], None]

# Names of methods -> the words for what they do.
_METHODS = {
    **dict.fromkeys(("to", "type_as"), "cast"),
    **dict.fromkeys(("isub", "subtract"), "sub"),
    **dict.fromkeys(("itruediv", "true_divide", "divide"), "div"),
    "iadd": "add",
    "t": "transpose",
    "absolute": "abs",
    "negative": "neg",
    "clip": "clamp",
}


class _Inside(threading.local):
    """How many operators this thread is inside of."""

    operators = 0


class _Ears:
    """Those who listen, and what is replaced for them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.listeners: tuple[Listener, ...] = ()
        self.installed = patches.Handle()

    def add(self, listener: Listener) -> None:
        """One more listens."""
        with self.lock:
            if not self.listeners:
                self.installed = _installed()
            self.listeners = (*self.listeners, listener)

    def remove(self, listener: Listener) -> None:
        """One less."""
        with self.lock:
            self.listeners = tuple(other for other in self.listeners if other is not listener)
            if not self.listeners:
                self.installed.remove()


class Listener:
    """One who listens; a handle."""

    def __init__(self, told: Callable[..., Any], typed: bool, follows: bool = False) -> None:
        self.told = told
        self.typed = typed
        self.follows = follows
        _EARS.add(self)

    def remove(self) -> None:
        """Be told no longer; twice is harmless."""
        _EARS.remove(self)


_EARS, _INSIDE = _Ears(), _Inside()


def tell(told: Told) -> Handle:
    """Call `told(word)` for each operator that runs."""
    return Listener(told, typed=False)


def tell_computed(told: Computed) -> Handle:
    """Call `told(word, dtype)` for each operator that computes floating numbers."""
    return Listener(told, typed=True)


def tell_executions(begun: Begun) -> Handle:
    """Call `begun` before each operator that runs, and what it gives with what the operator made."""
    return Listener(begun, typed=False, follows=True)


def _installed() -> patches.Handle:
    with patches.together() as handle:
        for owner, name, make in _replaced():
            handle.add(patches.patch(owner, name, make).remove)
        return handle


def _replaced() -> Iterator[tuple[Any, str, patches.Make]]:
    if package().maker != OPENI:
        yield import_module("mindtorch.dispatcher").Dispatcher, "dispatch", _dispatching
        return
    for kind in called():
        yield kind, "__call__", _calling
    for owner in (mindspore.Tensor, StubTensor):
        for name in _quick_methods():
            if hasattr(owner, name):
                yield owner, name, partial(_method, name)


@lru_cache(maxsize=1)
def _frames() -> Frames:
    return Frames(mindspore, import_module("mindtorch"))


def _quick_methods() -> list[str]:
    """Methods of tensors that run in C++."""
    try:
        return list(import_module("mindspore.common._tensor_cpp_method").tensor_cpp_methods)
    except (ImportError, AttributeError):
        return []


def _calling(original: Any, listeners: patches.Listeners) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:
        name = name_of(self) if listeners else ""
        if not name:
            return original(self, *args, **kwargs)
        return _run(name, lambda: original(self, *args, **kwargs), args, kwargs)

    return __call__


def _method(name: str, original: Any, listeners: patches.Listeners) -> Any:
    plain = name.strip("_")
    plain = _METHODS.get(plain, plain)

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not listeners:
            return original(self, *args, **kwargs)
        return _run(plain, lambda: original(self, *args, **kwargs), (self, *args), kwargs)

    return method


def _dispatching(original: Any, listeners: patches.Listeners) -> Any:
    def dispatch(self: Any, func_name: str, *args: Any, **kwargs: Any) -> Any:
        if not listeners:
            return original(self, func_name, *args, **kwargs)
        return _run(func_name, lambda: original(self, func_name, *args, **kwargs), args, kwargs)

    return dispatch


def _run(name: str, operator: Callable[[], Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if _INSIDE.operators or CALLS.is_in_callback():
        return operator()
    plain = word(name)
    if is_question(plain) or is_crossing(plain):
        return operator()
    for listener in _EARS.listeners:
        if not listener.typed and not listener.follows:
            listener.told(plain)
    followers = [listener for listener in _EARS.listeners if listener.follows]
    where = _frames().line() if followers else None
    _INSIDE.operators += 1
    try:
        after = [listener.told(plain, args, kwargs, where) for listener in followers]
        output = operator()
        for made in after:
            if made is not None:
                made(args[0] if output is None and args else output)
    finally:
        _INSIDE.operators -= 1
    if not is_move(plain):
        _tell_made(plain, output)
    return output


def _tell_made(plain: str, output: Any) -> None:
    """Casts inside an operator are past by now: what it makes is in the type that it computed in."""
    listeners = [listener for listener in _EARS.listeners if listener.typed]
    if not listeners:
        return
    made = output
    while isinstance(made, tuple) and made:
        made = made[0]
    if not isinstance(made, mindspore.Tensor) and not tensors.is_tensor(made):
        return
    dtype = tensors.dtype(made)
    if dtype in DTYPES and DTYPES[dtype].eps is not None:
        for listener in listeners:
            listener.told(plain, dtype)
