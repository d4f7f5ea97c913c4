"""Observing cells that run inside a compiled graph: in GRAPH_MODE, and in what @ms.jit decorates.

Hooks do not work there: MindSpore compiles them along and drops what they do. So while a graph is compiled, ours are
lifted, and each observed cell gets a `construct` (taps.py) with operators in it that tell of its values when the
graph runs. Such a graph is compiled and kept under a name of its own: the user's own graph stays what it was, and is
what runs again as soon as nobody observes.

A graph that cannot be compiled with these in it, but without them, is compiled with as many as it can.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Callable, Optional
from weakref import ref

from mindspore import nn

from aligner.adapter import After, Before
from aligner.errors import AdapterError
from aligner_hooks.mindspore_ import forms, runtime
from aligner_hooks.mindspore_.forms import Form
from aligner_hooks.mindspore_.patches import Handle, Listeners, intercept

# What a cell is given while a graph with its taps is compiled; none of it is there at other times.
LENT = ("construct", "aligner_own", "aligner_number")
# So many graphs are compiled at most to find the cells whose taps MindSpore does not compile.
ATTEMPTS = 24


@dataclass(eq=False)
class _Cell:
    """An observed cell and those who observe it."""

    cell: Callable[[], Optional[nn.Cell]]
    number: int
    observers: dict[object, tuple[Before, After]] = field(default_factory=dict)
    arguments: list[tuple[Any, Any]] = field(default_factory=list)
    """Of its calls that have begun and not ended."""


@dataclass
class _Graphs:
    """All cells that are observed, and the graph that runs now."""

    cells: dict[int, _Cell] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    thread: Optional[int] = None
    """The thread that called the graph."""
    failure: Optional[BaseException] = None
    """What an observer raised while it ran."""
    untold: list[tuple[Callable[[], Optional[nn.Cell]], str]] = field(default_factory=list)
    """Cells that MindSpore does not compile with taps, and what it says."""
    outside: list[nn.Cell] = field(default_factory=list)
    """Observed nets that are being called as a whole: they are told of from outside their graph."""
    proved: bool = False
    """Whether taps were seen to tell of values here."""


_GRAPHS = _Graphs()


@dataclass(eq=False)
class _Listener:
    """Somebody to whom a graph that is about to be compiled matters."""

    hooks: tuple[Any, ...] = ()
    """Hooks of ours that must not be compiled along."""
    intervening: bool = False
    on_function: Optional[Callable[[Any], None]] = None


def thread() -> int:
    """The thread on whose behalf this is called: a graph tells of its values from a thread of MindSpore's."""
    return threading.get_ident() if _GRAPHS.thread is None else _GRAPHS.thread


def untold(cell: nn.Cell) -> str:
    """Why a compiled graph does not tell of this cell, or ""."""
    return next((reason for one, reason in _GRAPHS.untold if one() is cell), "")


def observe(cell: nn.Cell, before: Before, after: After) -> Handle:
    """Call back whenever the cell runs inside a compiled graph."""
    one = next((known for known in _GRAPHS.cells.values() if known.cell() is cell), None)
    if one is None:
        one = _Cell(ref(cell), next(_GRAPHS.numbers))
        _GRAPHS.cells[one.number] = one
    observed, token = one, object()
    observed.observers[token] = (before, after)
    forms.ARRIVAL.deliver = _deliver

    def leave() -> None:
        observed.observers.pop(token, None)
        if not observed.observers:
            _GRAPHS.cells.pop(observed.number, None)

    return Handle(leave)


def call(net: nn.Cell, run: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]) -> object:
    """Run a net that is compiled as a whole: what it gets and returns is seen without looking into the graph."""
    one = next((known for known in _GRAPHS.cells.values() if known.cell() is net), None)
    if one is None or _GRAPHS.thread is not None:
        return run(net, *args, **kwargs)
    for before, _ in list(one.observers.values()):
        before(args, kwargs)
    _GRAPHS.outside.append(net)
    try:
        output = run(net, *args, **kwargs)
    finally:
        _GRAPHS.outside.pop()
    for _, after in list(one.observers.values()):
        after(args, kwargs, output)
    return output


def without(hooks: tuple[Any, ...], intervening: bool) -> Handle:
    """Keep these hooks out of what is compiled; a net is not compiled as a whole while somebody intervenes."""
    return _heard(_Listener(hooks, intervening))


def before_functions(on_function: Callable[[Any], None]) -> Handle:
    """Call back with each function decorated by @ms.jit that is about to run."""
    return _heard(_Listener(on_function=on_function))


def _heard(listener: _Listener) -> Handle:
    handle = Handle(intercept(nn.Cell, "compile_and_run", listener, _compiled_cell))
    executor = runtime.jit_executor()
    if executor is not None:
        handle.add(intercept(executor, "__call__", listener, _compiled_function))
    return handle


def _compiled_cell(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    """A net in GRAPH_MODE."""

    def compile_and_run(self: nn.Cell, *args: object, **kwargs: object) -> object:
        if any(listener.intervening for listener in listeners.values()):
            raise AdapterError("mindspore-graph-intervene")
        own = self._phase

        @contextmanager
        def named(name: str) -> Iterator[None]:
            self._phase = own + name
            try:
                yield
            finally:
                if name:
                    self.phase_cache.pop(own + name, None)
                self._phase = own

        def compile() -> bool:
            self.compile(*args, **kwargs)
            return runtime.waits_for_python(None, self.phase_cache.get(self._phase, ""))

        graph = _Graph(named, compile, lambda: original(self, *args, **kwargs))
        inside = [one for one in _GRAPHS.cells.values() if one.cell() not in (None, *_GRAPHS.outside)]
        with _lifted(listeners):
            return graph.run(inside)

    return compile_and_run


def _compiled_function(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    """A function decorated by @ms.jit, or the construct of a cell."""

    def __call__(self: Any, *args: object, **kwargs: object) -> object:
        for listener in list(listeners.values()):
            if listener.on_function is not None:
                listener.on_function(self.fn)
        where = "_cell_cache_key_extend" if hasattr(self, "_cell_cache_key_extend") else "_create_time"
        own = getattr(self, where)

        @contextmanager
        def named(name: str) -> Iterator[None]:
            setattr(self, where, f"{own}{name}" if name else own)
            try:
                yield
            finally:
                setattr(self, where, own)

        def compile() -> bool:
            inputs = args if self.obj is None else args[1:]
            return runtime.waits_for_python(self, self.compile(self.fn.__name__, *inputs, **kwargs))

        graph = _Graph(named, compile, lambda: original(self, *args, **kwargs))
        # The cell whose construct this is was called eagerly: its hooks tell of it.
        inside = [one for one in _GRAPHS.cells.values() if one.cell() is not None and one.cell() is not self.obj]
        with _lifted(listeners):
            return graph.run(inside)

    return __call__


@dataclass
class _Graph:
    """A graph that is about to run."""

    named: Callable[[str], Any]
    """Surroundings in which it is compiled and found under another name."""
    compile: Callable[[], bool]
    """Compiles it; whether it would wait for ever with taps in it."""
    call: Callable[[], Any]
    """Compiles it, if it is not, and runs it."""

    def run(self, cells: Sequence[_Cell]) -> object:
        """Run it with the taps of these cells."""
        wanted = [one for one in cells if not untold(one.cell())]
        if not wanted or _GRAPHS.thread is not None:  # or it is called while another graph runs
            return self.call()
        _prove()
        name = self._compiled(wanted)
        if not wanted:
            return self.call()
        _GRAPHS.thread, _GRAPHS.failure = threading.get_ident(), None
        try:
            with self.named(name), _taps(wanted):
                output = self.call()
                runtime.synchronize()
        finally:
            failure, _GRAPHS.failure = _GRAPHS.failure, None
            _GRAPHS.thread = None
            for one in wanted:
                one.arguments.clear()
        if failure is not None:
            raise failure
        return output

    def _compiled(self, wanted: list[_Cell]) -> str:
        """Compile it; cells whose taps cannot be are taken out of `wanted`. Returns the name that it has now."""
        reason = self._refused(wanted)
        if reason is None:
            return _name(wanted)
        with self.named(""):
            self.compile()  # raises what the user's own program raises
        left = ATTEMPTS
        fine: list[_Cell] = []
        groups = [list(wanted)]
        while groups:
            group = groups.pop()
            if not group:
                continue
            if left < ATTEMPTS:  # the first group is what was refused
                reason = self._refused([*fine, *group]) if left > 0 else reason
            left -= 1
            if isinstance(reason, _Untyped):
                _GRAPHS.untold += [(one.cell, str(reason)) for one in group if one in reason.cells]
                groups.append([one for one in group if one not in reason.cells])
            elif reason is None:
                fine += group
            elif len(group) == 1 or left <= 0:
                _GRAPHS.untold += [(one.cell, _first_line(reason)) for one in group]
            else:
                middle = len(group) // 2
                groups += [group[:middle], group[middle:]]
        wanted[:] = sorted(fine, key=lambda one: one.number)
        return _name(wanted)

    def _refused(self, cells: Sequence[_Cell]) -> Optional[Exception]:
        """Why the graph cannot be compiled with the taps of these cells."""
        begun = len(forms.FORMS)
        try:
            with self.named(_name(cells)), _taps(cells):
                waits = self.compile()
        except Exception as error:
            return error
        if waits:
            return _Untyped(cells, "Python runs inside the graph, for which this MindSpore would wait for ever")
        made = forms.FORMS[begun:]
        told = {(form.number, form.entering) for form in made}
        untyped = {form.number for form in made if form.untyped}
        untyped |= {number for number, entering in told if (number, not entering) not in told}
        if untyped:
            why = "it gets or returns a value whose type MindSpore knows only when the graph runs"
            return _Untyped([one for one in cells if one.number in untyped], why)
        return None


def _name(cells: Sequence[_Cell]) -> str:
    """What the graph with the taps of these cells is called; short, as the net may be large."""
    rows = []
    for _, group in itertools.groupby(enumerate(one.number for one in cells), lambda pair: pair[1] - pair[0]):
        row = [number for _, number in group]
        rows.append(f"{row[0]}_{row[-1]}")
    return f".aligner.{'-'.join(rows)}" if rows else ""


class _Untyped(Exception):
    """Cells with a value that MindSpore does not look at when it compiles: no operator of ours can stand near it."""

    def __init__(self, cells: Sequence[_Cell], reason: str) -> None:
        super().__init__(reason)
        self.cells = cells


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


@contextmanager
def _taps(cells: Sequence[_Cell]) -> Iterator[None]:
    """Lend the cells what their compiled construct needs."""
    from aligner_hooks.mindspore_ import taps  # makes operators: only where a graph is compiled

    held = [(cell, one.number) for one in cells for cell in [one.cell()] if cell is not None]
    try:
        for cell, number in held:
            vars(cell).update(zip(LENT, (MethodType(taps.construct, cell), cell.construct, number)))
        yield
    finally:
        for cell, _ in held:
            for name in LENT:
                vars(cell).pop(name, None)


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
    one = _GRAPHS.cells.get(form.number)
    if one is None or _GRAPHS.failure is not None:
        return
    try:
        if form.entering:
            one.arguments.append((values[0], values[1]))
            for before, _ in list(one.observers.values()):
                before(*values)
        else:
            args, kwargs = one.arguments.pop() if one.arguments else ((), {})
            for _, after in list(one.observers.values()):
                after(args, kwargs, values[0])
    except BaseException as error:  # kept: MindSpore makes a RuntimeError of what an operator raises
        _GRAPHS.failure = error


def _prove() -> None:
    """Once in a process: taps in a graph of one cell must tell of its values, or nothing that they say counts."""
    if _GRAPHS.proved:
        return
    from mindspore import Tensor
    from mindspore import dtype as mstype

    _GRAPHS.proved = True
    told: list[str] = []
    probe = nn.ReLU()
    cells, _GRAPHS.cells = _GRAPHS.cells, {}
    handle = observe(probe, lambda *_: told.append("before"), lambda *_: told.append("after"))
    handle.add(without((), intervening=False).remove)
    try:
        probe.compile_and_run(Tensor([1.0, -1.0], mstype.float32))
    except Exception as error:
        _GRAPHS.proved = False
        raise AdapterError("mindspore-taps-silent", reason=_first_line(error)) from error
    finally:
        with suppress(Exception):
            handle.remove()
        _GRAPHS.cells = cells
    if told != ["before", "after"]:
        _GRAPHS.proved = False
        raise AdapterError("mindspore-taps-silent", reason=f"{len(told)} of 2 calls arrived")
