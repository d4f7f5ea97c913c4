"""The mode that MindSpore runs in, held for a while: runs that overlap, in threads too, leave the program's own."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Optional

import mindspore
from mindspore import context

from aligner.patches import Handle, hold, together
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
