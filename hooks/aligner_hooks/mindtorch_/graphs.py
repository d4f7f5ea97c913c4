"""Modules of OpenI's MindTorch that run inside a compiled graph: in GRAPH_MODE, and in what @mindspore.jit decorates.

They are MindSpore's cells, and MindSpore compiles them as such: so they are observed there as cells are, by the taps of
aligner_hooks.mindsporelike.graphs. The net that is called in GRAPH_MODE is told of from outside its graph.

They are imported when somebody observes, and not for mindnlp's modules, which are no cells.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from aligner import patches
from aligner.adapter import After, Before, Handle
from aligner_hooks.mindsporelike import compiler, modes
from aligner_hooks.mindtorch_.modules import AnyModule
from aligner_hooks.mindtorch_.package import package


def in_graph_mode() -> bool:
    """Whether nets are compiled as a whole."""
    return package().compiles and compiler.in_graph_mode()


def around_runs(before: Callable[[], None], after: Callable[[], None]) -> Handle:
    """Call back around each run of a graph that tells of modules inside it."""
    if not package().compiles:
        return patches.Handle()
    from aligner_hooks.mindsporelike.graphs import compiled

    return compiled.around_runs(before, after)


def observed(eager: Handle, layer: Any, before: Before, after: After) -> Handle:
    """Have calls inside a graph told of too; operators of the others are waited for."""
    eager = _all(eager, modes.waited())
    if not package().compiles:
        return eager
    from aligner_hooks.mindsporelike.graphs import compiled

    return _all(eager, compiled.observe(layer, before, after), compiled.without((), intervening=False))


def intervened(eager: Handle) -> Handle:
    """Refuse to compile a net as long as somebody intervenes."""
    if not package().compiles:
        return eager
    from aligner_hooks.mindsporelike.graphs import compiled

    return _all(eager, compiled.without((), intervening=True))


def watched(eager: Handle, on_root: Callable[[object], None], is_inside: Callable[[], bool]) -> Handle:
    """Tell of nets that a compiled function calls, before it is compiled; not of those of which a module is running."""
    if not package().compiles:
        return eager
    from aligner_hooks.mindsporelike.graphs import compiled
    from aligner_hooks.mindsporelike.nets import reached

    def on_function(function: Any) -> None:
        if not is_inside():
            for cell in reached(function):
                if isinstance(cell, AnyModule):
                    on_root(cell)

    return _all(eager, compiled.before_functions(on_function))


def _all(*handles: Handle) -> Handle:
    """Several in one."""
    return patches.Handle(*(handle.remove for handle in handles))


@contextmanager
def outside(module: Any) -> Iterator[None]:
    """While this net is called in GRAPH_MODE: it is told of already, and no operators for it stand in the graph."""
    from aligner_hooks.mindsporelike.graphs.graph import GRAPHS

    GRAPHS.outside.append(module)
    try:
        yield
    finally:
        GRAPHS.outside.pop()


def thread() -> int:
    """The thread on whose behalf a callback is called: a graph tells of its values from a thread of MindSpore's."""
    if not package().compiles:
        return threading.get_ident()
    from aligner_hooks.mindsporelike.graphs import compiled

    return compiled.thread()


def untold(module: Any) -> str:
    """Why a compiled graph does not tell of this module, or ""."""
    if not package().compiles:
        return ""
    from aligner_hooks.mindsporelike.graphs.graph import untold as why

    return why(module)
