"""What is called when a cell runs, and how it is taken away again without a trace.

MindSpore's own hooks are used, with keyword arguments: a replaced `construct` would be copied along by a deepcopy of
the net and run the weights of the original. Code compiled by @ms.jit would compile the hooks as well (and fail, or
drop what they do), so they are lifted while such code runs.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Callable

from mindspore import nn

from aligner.adapter import After, Before
from aligner.errors import AdapterError
from aligner_hooks.mindspore_ import runtime
from aligner_hooks.mindspore_.patches import Handle, Listeners, intercept

Args = tuple[object, ...]
Kwargs = Mapping[str, object]


def observe(cell: nn.Cell, before: Before, after: After) -> Handle:
    """Call `before` and `after` around each run of the cell, changing nothing."""
    if runtime.in_graph_mode():
        raise AdapterError("mindspore-graph-mode")
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
    executor = runtime.jit_executor()
    if executor is None:
        return lambda: None
    return intercept(executor, "__call__", hooks, _without_hooks)


def _without_hooks(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def __call__(*args: object, **kwargs: object) -> object:
        ours: dict[int, tuple[Any, set[int]]] = {}
        for (hooks,) in listeners:
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


class _Inside(threading.local):
    """Whether this thread is in a cell's call already."""

    yes = False


# Cells around a net in MindSpore's training and evaluation loops. They are looked through, so that the net and the
# loss are roots of their own, as they are where the loop is written by hand and as they are in torch.
LOOPS = tuple(
    getattr(nn, name)
    for name in (
        "TrainOneStepCell",
        "TrainOneStepWithLossScaleCell",
        "WithLossCell",
        "WithEvalCell",
        "WithGradCell",
        "ForwardValueAndGrad",
    )
    if hasattr(nn, name)
)
# Cells that are called by themselves and are no nets.
HELPERS = (nn.Optimizer, nn.learning_rate_schedule.LearningRateSchedule)


def watch_roots(on_root: Callable[[nn.Cell], None]) -> Handle:
    """Call `on_root` for each cell that no other cell called.

    `Cell.__call__` is where MindSpore looks for hooks, so what `on_root` installs is found by this very run. No
    public door tells of a call of a cell nobody knows yet: the method is replaced until the handle is removed.
    """
    handle = Handle(intercept(nn.Cell, "__call__", on_root, _watched_call))
    executor = runtime.jit_executor()
    if executor is not None:
        handle.add(intercept(executor, "compile", (), _refused_compile))
    return handle


_INSIDE = _Inside()


def _watched_call(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    def __call__(self: nn.Cell, *args: object, **kwargs: object) -> object:
        if _INSIDE.yes or isinstance(self, LOOPS):
            return original(self, *args, **kwargs)
        _INSIDE.yes = True
        try:
            if not isinstance(self, HELPERS):
                if runtime.in_graph_mode():
                    raise AdapterError("mindspore-graph-mode")
                for (on_root,) in list(listeners):
                    on_root(self)
            return original(self, *args, **kwargs)
        finally:
            _INSIDE.yes = False

    return __call__


def _refused_compile(original: Callable[..., Any], _listeners: Listeners) -> Callable[..., Any]:
    """Where the user's own function is compiled with the net inside it, nothing would ever be seen: say so."""

    def compile(self: Any, *args: object, **kwargs: object) -> object:
        function = self.fn
        if not _INSIDE.yes and not str(getattr(function, "__module__", "")).startswith("mindspore."):
            raise AdapterError("mindspore-jit-outside", function=getattr(function, "__qualname__", str(function)))
        return original(self, *args, **kwargs)

    return compile
