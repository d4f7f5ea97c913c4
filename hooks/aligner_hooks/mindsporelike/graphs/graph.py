"""One graph of MindSpore's, compiled with taps in it: under a name of its own, with as many cells as it can be.

What all graphs have in common is kept here too: which cells are observed, and the graph that runs now.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MethodType
from typing import Any, Callable, Optional

from mindspore import nn

from aligner.adapter import After, Before
from aligner.patches import hold, together
from aligner_hooks.mindsporelike import compiler
from aligner_hooks.mindsporelike.graphs import forms

# What a cell is given while a graph with its taps is compiled; none of it is there at other times.
LENT = ("construct", "aligner_own", "aligner_number")
# So many graphs are compiled at most to find the cells whose taps MindSpore does not compile.
ATTEMPTS = 24
# Why a cell is not told of that holds a dict of which Python takes care.
PUT_TOGETHER = "why-put-together"


@dataclass(eq=False)
class Observed:
    """An observed cell and those who observe it."""

    cell: Callable[[], Optional[nn.Cell]]
    number: int
    observers: dict[object, tuple[Before, After]] = field(default_factory=dict)


@dataclass
class Graphs:
    """All cells that are observed, and the graph that runs now."""

    cells: dict[int, Observed] = field(default_factory=dict)
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    thread: Optional[int] = None
    """The thread that called the graph."""
    failure: Optional[BaseException] = None
    """What an observer raised while it ran."""
    untold: list[tuple[Callable[[], Optional[nn.Cell]], str]] = field(default_factory=list)
    """Cells that MindSpore does not compile with taps, and what it says."""
    outside: list[nn.Cell] = field(default_factory=list)
    """Observed nets that are being called as a whole: they are told of from outside their graph."""
    around: dict[object, tuple[Callable[[], None], Callable[[], None]]] = field(default_factory=dict)
    """Who is told before and after a graph with taps runs: inside it no parameter can be read."""
    proved: bool = False
    """Whether taps were seen to tell of values here."""
    rehearsed: set[int] = field(default_factory=set)
    """Hashes of graphs that ran to their end while nobody listened."""


GRAPHS = Graphs()


def untold(cell: nn.Cell) -> str:
    """Why a compiled graph does not tell of this cell, or ""."""
    return next((reason for one, reason in GRAPHS.untold if one() is cell), "")


@dataclass
class Graph:
    """A graph that is about to run."""

    named: Callable[[str], Any]
    """Surroundings in which it is compiled and found under another name."""
    compile: Callable[[], Optional[bytes]]
    """Compiles it; what it is made of then."""
    call: Callable[[], Any]
    """Compiles it, if it is not, and runs it."""
    nodes: Optional[bytes] = None
    """What it was made of with taps in it."""

    def run(self, cells: Sequence[Observed]) -> object:
        """Run it with the taps of these cells."""
        wanted = [one for one in cells if not untold(one.cell())]
        if not wanted or GRAPHS.thread is not None:  # or it is called while another graph runs
            return self.call()
        name = self._ready(wanted)
        if not wanted:
            return self.call()
        with _around():
            output, broken = self._observed(name, wanted)
        return output if broken is None else self._without(wanted, broken)

    def _observed(self, name: str, wanted: list[Observed]) -> tuple[object, Optional[Exception]]:
        """What it returns, or why it does not run with taps; raises what an observer raised."""
        GRAPHS.thread, GRAPHS.failure = threading.get_ident(), None
        output: object = None
        broken: Optional[Exception] = None
        try:
            with self.named(name), _taps(wanted):
                output = self.call()
                compiler.synchronize()
        except Exception as error:
            broken = error
        finally:
            failure, GRAPHS.failure = GRAPHS.failure, None
            GRAPHS.thread = None
        if failure is not None:
            raise failure
        return output, broken

    def _ready(self, wanted: list[Observed]) -> str:
        """Compile it, and see that it runs to its end, as `_compiled`.

        What Python has put together has no type that an operator of ours can be given, and only the run shows which
        dicts it has. Nobody listens meanwhile, also if something arrives late: nothing must be told of twice.
        """
        told: set[tuple[int, bool]] = set()
        deliver, forms.ARRIVAL.deliver = forms.ARRIVAL.deliver, lambda form, _: told.add((form.number, form.entering))
        try:
            name = self._compiled(wanted)
            while wanted and not self._runs(name, wanted):
                held = {form.number for form in forms.FORMS if form.keyed and (form.number, form.entering) not in told}
                if not any(one.number in held for one in wanted):
                    break  # it fails for another reason: the run that counts tells
                GRAPHS.untold += [(one.cell, PUT_TOGETHER) for one in wanted if one.number in held]
                wanted[:] = [one for one in wanted if one.number not in held]
                told.clear()
                name = self._compiled(wanted)
        finally:
            forms.ARRIVAL.deliver = deliver
        return name

    def _runs(self, name: str, wanted: Sequence[Observed]) -> bool:
        """Whether it runs to its end, where that may be tried and is in doubt."""
        if not compiler.put_together(self.nodes) or hash(self.nodes) in GRAPHS.rehearsed:
            return True
        GRAPHS.thread = threading.get_ident()
        try:
            with self.named(name), _taps(wanted):
                self.call()
                compiler.synchronize()
        except Exception:  # what it is the run that counts would say
            return False
        finally:
            GRAPHS.thread = None
        GRAPHS.rehearsed.add(hash(self.nodes))
        return True

    def _without(self, wanted: list[Observed], broken: Exception) -> object:
        """It was compiled with taps and did not run: run it without them, and say which cells are not told of."""
        if any(cell is not None and cell.training for cell in [one.cell() for one in wanted]):
            raise broken  # it may have written statistics, which a second run would write again
        output = self.call()  # raises what the user's own program raises
        compiler.synchronize()
        GRAPHS.untold += [(one.cell, first_line(broken)) for one in wanted]
        return output

    def _compiled(self, wanted: list[Observed]) -> str:
        """Compile it; cells whose taps cannot be are taken out of `wanted`. Returns the name that it has now."""
        reason = self._refused(wanted)
        if reason is None:
            return _name(wanted)
        with self.named(""):
            self.compile()  # raises what the user's own program raises
        fine: list[Observed] = []
        groups = [list(wanted)]
        for attempt in range(ATTEMPTS):
            group = groups.pop() if groups else []
            if not group:
                continue
            if attempt > 0:  # the first group is what was refused
                reason = self._refused([*fine, *group])
            if reason is None:
                fine += group
            elif isinstance(reason, _Untyped):
                GRAPHS.untold += [(one.cell, str(reason)) for one in reason.cells]
                groups.append([one for one in group if one not in reason.cells])
                fine = [one for one in fine if one not in reason.cells]
            elif len(group) == 1:
                GRAPHS.untold += [(one.cell, first_line(reason)) for one in group]
            else:
                middle = len(group) // 2
                groups += [group[:middle], group[middle:]]
        GRAPHS.untold += [(one.cell, "why-others-neither") for group in groups for one in group]
        wanted[:] = sorted(fine, key=lambda one: one.number)
        return _name(wanted)

    def _refused(self, cells: Sequence[Observed]) -> Optional[Exception]:
        """Why the graph cannot be compiled with the taps of these cells."""
        begun = len(forms.FORMS)
        try:
            with self.named(_name(cells)), _taps(cells):
                self.nodes = self.compile()
        except Exception as error:
            return error
        reason = compiler.left_to_python(self.nodes)
        if reason:
            return _Untyped(cells, reason)
        made = forms.FORMS[begun:]
        told = {(form.number, form.entering) for form in made}
        untyped = {form.number for form in made if form.untyped}
        untyped |= {number for number, entering in told if (number, not entering) not in told}
        if untyped:
            why = "why-untyped"
            return _Untyped([one for one in cells if one.number in untyped], why)
        return None


@contextmanager
def _around() -> Iterator[None]:
    """Tell those who want to know of a run."""
    begun: list[Callable[[], None]] = []
    try:
        for before, after in list(GRAPHS.around.values()):
            before()
            begun.append(after)
        yield
    finally:
        for after in begun:
            after()


def _name(cells: Sequence[Observed]) -> str:
    """What the graph with the taps of these cells is called; short, as the net may be large."""
    rows = []
    for _, group in itertools.groupby(enumerate(one.number for one in cells), lambda pair: pair[1] - pair[0]):
        row = [number for _, number in group]
        rows.append(f"{row[0]}_{row[-1]}")
    return f".aligner.{'-'.join(rows)}" if rows else ""


class _Untyped(Exception):
    """Cells with a value that MindSpore does not look at when it compiles: no operator of ours can stand near it."""

    def __init__(self, cells: Sequence[Observed], reason: str) -> None:
        super().__init__(reason)
        self.cells = cells


def first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


@contextmanager
def _taps(cells: Sequence[Observed]) -> Iterator[None]:
    """Lend the cells what their compiled construct needs."""
    from aligner_hooks.mindsporelike.graphs import taps  # makes operators: only where a graph is compiled

    held = [(cell, one.number) for one in cells for cell in [one.cell()] if cell is not None]
    with together() as lent:
        for cell, number in held:
            for name, value in zip(LENT, (MethodType(taps.construct, cell), cell.construct, number)):
                lent.add(hold(vars(cell), name, value).remove)
    try:
        with compiler.compiling_ours():
            yield
    finally:
        lent.remove()
