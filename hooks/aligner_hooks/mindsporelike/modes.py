"""The mode that MindSpore runs in, held for a while: runs that overlap, in threads too, leave the program's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Optional

import mindspore
from mindspore import context

from aligner.patches import Handle, Listeners, hold, patch, together
from aligner.record import Note
from aligner_hooks.mindsporelike.bounds import in_range
from aligner_hooks.mindsporelike.compiler import JIT_SWITCH, graph_api

_MODES = {"pynative": mindspore.PYNATIVE_MODE, "graph": mindspore.GRAPH_MODE}
_RUN_AS_PYTHON = sys.intern("0")


class _Switches:
    """What the program has set, as attributes."""

    @property
    def mode(self) -> int:
        return int(mindspore.get_context("mode"))

    @mode.setter
    def mode(self, mode: int) -> None:
        if mode != self.mode:
            mindspore.set_context(mode=mode)

    @property
    def jit(self) -> Optional[str]:
        found = os.environ.get(JIT_SWITCH)
        return None if found is None else sys.intern(found)

    @jit.setter
    def jit(self, value: Optional[str]) -> None:
        if value is None:
            os.environ.pop(JIT_SWITCH, None)
        else:
            os.environ[JIT_SWITCH] = value

    @property
    def waiting(self) -> bool:
        return bool(mindspore.get_context("pynative_synchronize"))

    @waiting.setter
    def waiting(self, waiting: bool) -> None:
        """By the inner door: the public one warns that another call will replace it, which cannot be undone."""
        context._context().set_param(context.ms_ctx_param.pynative_synchronize, waiting)

    _alone = _was_alone = False

    @property
    def alone(self) -> bool:
        """Whether operators are prepared by the thread that calls them; MindSpore does not tell."""
        return self._alone

    @alone.setter
    def alone(self, alone: bool) -> None:
        executor = graph_api("_pynative_executor")
        if not hasattr(executor, "disable_frontend_and_bprop_pipeline"):  # before 2.8
            return
        if alone and not self._alone:
            self._was_alone = executor.disable_frontend_and_bprop_pipeline()
        elif self._alone and not alone and not self._was_alone:
            executor.enable_frontend_and_bprop_pipeline()
        self._alone = alone


_SWITCHES = _Switches()


class _Wish:
    """What a program has asked for that is held in PYNATIVE_MODE."""

    last: Optional[int] = None
    graph = False
    """Whether it ever was GRAPH_MODE."""
    holders = 0


_WISH = _Wish()


def eagerly() -> Handle:
    """Have the program run in PYNATIVE_MODE whatever it asks for, until removed: then it gets what it asked for last.

    In GRAPH_MODE a gradient is a compiled function, and one that `MS_JIT=0` has run as Python calls itself for ever.
    """
    _WISH.holders += 1
    handle = Handle(_granted)
    handle.add(patch(type(context._context()).setters, "mode", _eager).remove)
    if _SWITCHES.mode == mindspore.GRAPH_MODE:
        mindspore.set_context(mode=mindspore.GRAPH_MODE)
    return handle


def _eager(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def set_mode(self: Any, mode: Any) -> Any:
        if listeners and mode in _MODES.values():
            _WISH.last, _WISH.graph = mode, _WISH.graph or mode == mindspore.GRAPH_MODE
            mode = mindspore.PYNATIVE_MODE
        return original(self, mode)

    return set_mode


def _granted() -> None:
    _WISH.holders -= 1
    if not _WISH.holders:
        _SWITCHES.mode = _SWITCHES.mode if _WISH.last is None else _WISH.last
        _WISH.last, _WISH.graph = None, False


def cautions() -> Iterator[Note]:
    """How the program was run, if it is not as it says."""
    if _WISH.graph:
        yield Note("", "mindspore-run-eagerly", {})


def waited() -> Handle:
    """Have each operator waited for as it is called, on a CPU, by the thread that calls it: where every value is read,
    to find its kernel on another thread costs twenty times what the kernel does. The numbers are the same. Indices that
    are out of range are told.

    To be told to wait MindSpore heeds only before its first operator.
    """
    with together() as handle:
        if mindspore.get_context("device_target") == "CPU":
            handle.add(hold(_SWITCHES, "waiting", True).remove)
            handle.add(hold(_SWITCHES, "alone", True).remove)
            handle.add(in_range().remove)
    return handle


def uncompiled() -> Handle:
    """Have what @ms.jit decorates run as the plain Python it is, if the program has not said how it is to run: inside
    of what is compiled nothing can be held, and MindSpore decorates parts of its own optimizers.
    """
    return hold(_SWITCHES, "jit", _RUN_AS_PYTHON) if _SWITCHES.jit is None else Handle()


@contextmanager
def held(mode: Optional[str]) -> Iterator[None]:
    """ "pynative": eagerly and layer by layer, @ms.jit code as the plain Python it is. "graph": compiled as a whole.
    None: as the program itself has set it.
    """
    with together() as handle:
        if mode is not None:
            handle.add(hold(_SWITCHES, "mode", _MODES[mode]).remove)
        if mode == "pynative":
            handle.add(hold(_SWITCHES, "jit", _RUN_AS_PYTHON).remove)
            handle.add(waited().remove)
        elif mode == "graph" and _SWITCHES.jit == _RUN_AS_PYTHON:
            handle.add(hold(_SWITCHES, "jit", None).remove)
    try:
        yield
    finally:
        handle.remove()
