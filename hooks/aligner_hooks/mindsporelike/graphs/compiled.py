"""Observing cells that run inside a compiled graph: in GRAPH_MODE, and in what @ms.jit decorates.

Hooks do not work there: MindSpore compiles them along and drops what they do. So while a graph is compiled, ours are
lifted, and each observed cell gets a `construct` (taps.py) with operators in it that tell of its values when the
graph runs. Such a graph is compiled and kept under a name of its own: the user's own graph stays what it was, and is
what runs again as soon as nobody observes.

A graph that cannot be compiled with these in it, but without them, is compiled with as many as it can.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import MethodType
from typing import Any, Callable, Optional
from weakref import ref

from mindspore import nn

from aligner.adapter import After, Before
from aligner.errors import AdapterError, Reason
from aligner.patches import Handle, Listeners, patch, together
from aligner_hooks.mindsporelike import compiler
from aligner_hooks.mindsporelike.graphs import forms
from aligner_hooks.mindsporelike.graphs.forms import Form
from aligner_hooks.mindsporelike.graphs.graph import GRAPHS, Graph, Observed, first_line, untold

LATE = 5.0
"""Seconds that the values of a small graph are waited for."""


@dataclass(eq=False)
class _Listener:
    """Somebody to whom a graph that is about to be compiled matters."""

    hooks: Sequence[Any] = ()
    """Hooks of ours that must not be compiled along."""
    intervening: bool = False
    on_function: Optional[Callable[[Any], None]] = None
    name: str = ""
    """What graphs are called meanwhile, behind the name that they have anyway."""


def thread() -> int:
    """The thread on whose behalf this is called: a graph tells of its values from a thread of MindSpore's."""
    return threading.get_ident() if GRAPHS.thread is None else GRAPHS.thread


def around_runs(before: Callable[[], None], after: Callable[[], None]) -> Handle:
    """Call back around each run of a graph that tells of cells inside it."""
    token = object()
    GRAPHS.around[token] = (before, after)
    return Handle(lambda: GRAPHS.around.pop(token, None))


def observe(cell: nn.Cell, before: Before, after: After) -> Handle:
    """Call back whenever the cell runs inside a compiled graph."""
    one = next((known for known in GRAPHS.cells.values() if known.cell() is cell), None)
    if one is None:
        one = Observed(ref(cell), next(GRAPHS.numbers))
        GRAPHS.cells[one.number] = one
    observed, token = one, object()
    observed.observers[token] = (before, after)
    forms.ARRIVAL.deliver = _deliver

    def leave() -> None:
        observed.observers.pop(token, None)
        if not observed.observers:
            GRAPHS.cells.pop(observed.number, None)

    return Handle(leave)


def call(net: nn.Cell, run: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Run a net that is compiled as a whole: what it gets and returns is seen without looking into the graph."""
    one = next((known for known in GRAPHS.cells.values() if known.cell() is net), None)
    if one is None or GRAPHS.thread is not None:
        return run(net, *args, **kwargs)
    for before, _ in list(one.observers.values()):
        before(args, kwargs)
    GRAPHS.outside.append(net)
    try:
        output = run(net, *args, **kwargs)
    finally:
        GRAPHS.outside.pop()
    for _, after in list(one.observers.values()):
        after(args, kwargs, output)
    return output


def without(hooks: Sequence[Any], intervening: bool) -> Handle:
    """Keep these hooks out of what is compiled; a net is not compiled as a whole while somebody intervenes."""
    return _heard(_Listener(hooks, intervening))


def before_functions(on_function: Callable[[Any], None]) -> Handle:
    """Call back with each function decorated by @ms.jit that is about to run."""
    return _heard(_Listener(on_function=on_function))


def renamed(name: str) -> Handle:
    """Have what is compiled meanwhile compiled, and kept, under this name, beside the program's own graphs."""
    return _heard(_Listener(name=name))


def _heard(listener: _Listener) -> Handle:
    with together() as handle:
        for owner, name, make in (
            (nn.Cell, "compile_and_run", _compiled_cell),
            (compiler.jit_executor(), "__call__", _compiled_function),
            (compiler.cell_executor(), "compile", _compiled_alone),
            (compiler.bytecode_context(), "__enter__", _run_as_python),
        ):
            if owner is not None:
                handle.add(patch(owner, name, make, listener).remove)
        return handle


def _run_as_python(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    """What is compiled from bytecode calls no hooks: it runs as the Python it is while somebody observes."""

    def __enter__(self: Any) -> Any:
        return None if listeners else original(self)

    return __enter__


def _compiled_alone(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    """A net that is compiled and not run: by its own `compile`, to be exported."""

    def compile(self: Any, *args: object, **kwargs: object) -> object:
        with _lifted(listeners):
            return original(self, *args, **kwargs)

    return compile


def _compiled_cell(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    """A net in GRAPH_MODE."""

    def compile_and_run(self: nn.Cell, *args: object, **kwargs: object) -> object:
        if not listeners:
            return original(self, *args, **kwargs)
        if any(listener.intervening for listener in listeners.values()):
            raise AdapterError("mindspore-graph-intervene")
        own, also = self._phase, _also(listeners)

        @contextmanager
        def named(name: str) -> Iterator[None]:
            before, self._phase = self._phase, own + also + name
            try:
                yield
            finally:
                if also + name:
                    self.phase_cache.pop(self._phase, None)
                self._phase = before

        def compile() -> Optional[bytes]:
            self.compile(*args, **kwargs)
            return compiler.nodes(None, self.phase_cache.get(self._phase, ""))

        graph = Graph(named, compile, lambda: original(self, *args, **kwargs))
        inside = [one for one in GRAPHS.cells.values() if one.cell() not in (None, *GRAPHS.outside)]
        with _lifted(listeners), named(""):
            return _run(graph, inside)

    return compile_and_run


def _compiled_function(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    """A function decorated by @ms.jit, or the construct of a cell."""

    def __call__(self: Any, *args: object, **kwargs: object) -> object:
        if not listeners:
            return original(self, *args, **kwargs)
        for listener in list(listeners.values()):
            if listener.on_function is not None:
                listener.on_function(self.fn if self.obj is None else MethodType(self.fn, self.obj))
        where = "_cell_cache_key_extend" if hasattr(self, "_cell_cache_key_extend") else "_create_time"
        own, also = getattr(self, where), _also(listeners)

        @contextmanager
        def named(name: str) -> Iterator[None]:
            before = getattr(self, where)
            setattr(self, where, f"{own}{also}{name}" if also + name else own)
            try:
                yield
            finally:
                setattr(self, where, before)

        def compile() -> Optional[bytes]:
            inputs = args if self.obj is None else args[1:]
            return compiler.nodes(self, self.compile(self.fn.__name__, *inputs, **kwargs))

        graph = Graph(named, compile, lambda: original(self, *args, **kwargs))
        # The cell whose construct this is was called eagerly: its hooks tell of it. If not, it is seen from outside.
        inside = [one for one in GRAPHS.cells.values() if one.cell() is not None and one.cell() is not self.obj]

        def run(*_args: object, **_kwargs: object) -> object:
            with _lifted(listeners), named(""):
                return _run(graph, inside)

        return call(self.obj, run, args[1:], kwargs) if _passes_hooks_by(self.fn, self.obj) else run()

    return __call__


def _passes_hooks_by(function: Any, cell: object) -> bool:
    """Whether this is the construct of a cell that was not called: what `jit(net)` returns runs it by itself."""
    construct = getattr(cell, "construct", None) if isinstance(cell, nn.Cell) else None
    return getattr(construct, "__func__", None) is function


def _run(graph: Graph, cells: list[Observed]) -> object:
    if cells and GRAPHS.thread is None:
        _prove()
    return graph.run(cells)


def _also(listeners: Listeners) -> str:
    """What the graph is called meanwhile, behind the name that it has anyway."""
    return "".join(sorted({listener.name for listener in list(listeners.values())}))


@contextmanager
def _lifted(listeners: Listeners) -> Iterator[None]:
    """Keep our hooks out of what is compiled here; those that are taken away meanwhile do not come back."""
    tables = {id(table): table for hook in _hooks(listeners) for table in [hook.hook_dict_ref()] if table is not None}
    ours = {hook.handle_id for hook in _hooks(listeners)}
    kept = [(table, list(table.items())) for table in tables.values()]
    try:
        for table in tables.values():
            for number in ours & table.keys():
                del table[number]
        yield
    finally:
        gone = ours - {hook.handle_id for hook in _hooks(listeners)}
        for table, items in kept:
            table.clear()
            table.update((number, function) for number, function in items if number not in gone)


def _hooks(listeners: Listeners) -> list[Any]:
    return [hook for listener in listeners.values() for hook in listener.hooks]


def _deliver(form: Form, values: tuple[Any, ...]) -> None:
    """Tell the observers of a cell of what arrived."""
    one = GRAPHS.cells.get(form.number)
    if one is None or GRAPHS.failure is not None:
        return
    try:
        if form.entering:
            for before, _ in list(one.observers.values()):
                before(*values)
        else:
            for _, after in list(one.observers.values()):
                after((), {}, values[0])  # what it was called with is no longer there
    except BaseException as error:  # kept: MindSpore makes a RuntimeError of what an operator raises
        GRAPHS.failure = error


def _prove() -> None:
    """Once in a process: taps in a graph of one cell must tell of its values, or nothing that they say counts.

    Where those that share the graph's memory are silent, those that get copies are tried.
    """
    if GRAPHS.proved:
        return
    GRAPHS.proved = True
    reason = _silent()
    if reason:
        from aligner_hooks.mindsporelike.graphs import taps

        taps.copy()
        reason = _silent()
    if reason:
        GRAPHS.proved = False
        raise AdapterError("mindspore-taps-silent", reason=reason)


def _silent() -> str:
    """Why the taps in a graph of one cell do not tell of its values, or ""."""
    from mindspore import Tensor
    from mindspore import dtype as mstype

    told: list[object] = []
    probe = nn.ReLU()
    cells, GRAPHS.cells = GRAPHS.cells, {}
    around, GRAPHS.around = GRAPHS.around, {}  # it is nothing of the user's

    def noted(*values: Any) -> None:
        told.append((values[-1] if len(values) > 2 else values[0][0]).array.tolist())

    handle = observe(probe, noted, noted)
    handle.add(without((), intervening=False).remove)
    try:
        probe.compile_and_run(Tensor([1.0, -1.0], mstype.float32))
        late = time.monotonic() + LATE
        while len(told) < 2 and not untold(probe) and time.monotonic() < late:
            time.sleep(0.01)  # a graph may return before a busy machine has run its last operators
        reason = untold(probe)
    except Exception as error:
        return first_line(error)
    finally:
        with suppress(Exception):
            handle.remove()
        GRAPHS.cells, GRAPHS.around = cells, around
    if told == [[1.0, -1.0], [1.0, 0.0]]:
        return ""
    return (
        reason or Reason(*(("why-calls-arrived", len(told)) if len(told) != 2 else ("why-values-arrived", told))).told
    )
