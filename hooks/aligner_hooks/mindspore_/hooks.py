"""What is called when a cell runs, and how it is taken away again without a trace.

MindSpore's own hooks are used, with keyword arguments: a replaced `construct` would be copied along by a deepcopy of
the net and run the weights of the original. Code compiled by @ms.jit would compile the hooks as well (and fail, or
drop what they do), so they are lifted while such code runs.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Callable

from mindspore import nn

from aligner.adapter import After, Before
from aligner.errors import AdapterError
from aligner_hooks.mindspore_ import roots, runtime
from aligner_hooks.mindspore_.patches import Handle, Listeners, intercept

Args = tuple[object, ...]
Kwargs = Mapping[str, object]


def observe(cell: nn.Cell, before: Before, after: After) -> Handle:
    """Call `before` and `after` around each run of the cell, changing nothing."""
    if runtime.in_graph_mode():
        raise AdapterError("mindspore-graph-mode")
    if roots.compiled_function():
        raise AdapterError("mindspore-jit-outside", function=roots.compiled_function())
    observation = _Observation(cell, before, after)
    observation.install(cell)
    return Handle(observation.remove)


class _Observation:
    """The two hooks of one observer on one cell.

    A deepcopy of the cell (an average of weights) copies its tables of hooks: the hooks in it are still these, and
    they tell nothing of any cell but their own.
    """

    def __init__(self, cell: nn.Cell, before: Before, after: After) -> None:
        self._cell = weakref.ref(cell)
        self._before = before
        self._after = after
        self._active = True
        self._running: Any = None
        self._pre: Any = None
        self._post: Any = None
        self._unlift: Callable[[], object] = lambda: None

    def install(self, cell: nn.Cell) -> None:
        """Register both hooks, or neither."""
        try:
            self._pre = _register(cell.register_forward_pre_hook, self.enter, first=True)
            with _without_bprop(cell):
                self._post = _register(cell.register_forward_hook, self.leave, first=False)
            self._unlift = _lifted_by_compiled_code(self._pre, self._post)
        except BaseException:
            self.remove()
            raise

    def __deepcopy__(self, memo: object) -> _Observation:
        return self

    def enter(self, cell: nn.Cell, args: Args, kwargs: Kwargs) -> None:
        """MindSpore is about to run the cell; returning nothing keeps the arguments."""
        if self._active and cell is self._cell():
            self._running = self._pre
            try:
                self._before(args, kwargs)
            finally:
                self._running = None

    def leave(self, cell: nn.Cell, args: Args, kwargs: Kwargs, output: object) -> None:
        """MindSpore has run the cell; returning nothing keeps the output."""
        if self._active and cell is self._cell():
            self._running = self._post
            try:
                self._after(args, kwargs, output)
            finally:
                self._running = None

    def remove(self) -> None:
        """Take both hooks away.

        A callback may ask for this (the last step is over) while MindSpore walks the table that its hook stands in.
        Taking away the last entry is no harm then; another one stays, as a hook that does nothing, until some other
        observation is removed.
        """
        self._active = False
        self._unlift()
        for hook in (self._pre, self._post):
            if hook is not None and (hook is not self._running or _is_last(hook)):
                hook.remove()
            elif hook is not None:
                _LEFT_BEHIND.append(hook)
        if self._running is None:
            while _LEFT_BEHIND:
                _LEFT_BEHIND.pop().remove()


_LEFT_BEHIND: list[Any] = []


def _register(register: Callable[..., Any], hook: Callable[..., None], first: bool) -> Any:
    if first:
        try:
            return register(hook, with_kwargs=True, prepend=True)
        except TypeError:  # 2.7 has no prepend
            pass
    return register(hook, with_kwargs=True)


@contextmanager
def _without_bprop(cell: nn.Cell) -> Iterator[None]:
    """MindSpore ignores the forward hooks of a cell with its own `bprop`, but only when they are registered.

    It does so because a hook may replace the output that bprop belongs to; ours never do.
    """
    own = cell.has_bprop
    object.__setattr__(cell, "has_bprop", False)
    try:
        yield
    finally:
        object.__setattr__(cell, "has_bprop", own)


def _is_last(hook: Any) -> bool:
    """Whether it is the last entry of its table: walking an ordered dict ends without a look at what changed."""
    table = hook.hook_dict_ref()
    return table is not None and next(reversed(table), None) == hook.handle_id


def _lifted_by_compiled_code(*hooks: Any) -> Callable[[], object]:
    """Have the hooks lifted while @ms.jit code runs, and a net refused that is compiled as a whole."""
    handle = Handle(intercept(nn.Cell, "compile_and_run", (), _refused_graph))
    executor = runtime.jit_executor()
    if executor is not None:
        handle.add(intercept(executor, "__call__", hooks, _without_hooks))
    return handle.remove


def _refused_graph(original: Callable[..., Any], _listeners: Listeners) -> Callable[..., Any]:
    """In GRAPH_MODE, which was turned on after the observation began, nothing would be seen."""

    def compile_and_run(self: nn.Cell, *args: object, **kwargs: object) -> object:
        if runtime.in_graph_mode():
            raise AdapterError("mindspore-graph-mode")
        return original(self, *args, **kwargs)

    return compile_and_run


def _without_hooks(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def __call__(*args: object, **kwargs: object) -> object:
        ours: dict[int, tuple[Any, set[int]]] = {}
        for hooks in listeners.values():
            for hook in hooks:
                table = hook.hook_dict_ref()
                if table is not None:
                    ours.setdefault(id(table), (table, set()))[1].add(hook.handle_id)
        kept = [(table, list(table.items()), numbers) for table, numbers in ours.values()]
        try:
            for table, _, numbers in kept:
                for number in numbers & table.keys():
                    del table[number]
            return original(*args, **kwargs)
        finally:
            for table, items, _ in kept:
                table.clear()
                table.update(items)

    return __call__
