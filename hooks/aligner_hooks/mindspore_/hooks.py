"""What is called when a cell runs, and how it is taken away again without a trace.

MindSpore's own hooks are used, with keyword arguments: a replaced `construct` would be copied along by a deepcopy of
the net and run the weights of the original. What runs compiled is told of by compiled.py, which lifts these hooks.

Who intervenes stands outermost, whenever he came: `given` -> what observers see before -> the user's hooks and the
layer -> what observers see after -> `made`. So observers see the inputs that were given and the layer's own output.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Callable, Optional

import mindspore
from mindspore import nn

from aligner.adapter import After, Before, Given, Made
from aligner.errors import AdapterError
from aligner.patches import Handle, Listeners, hold, patch
from aligner_hooks.mindspore_ import operations, roots, runtime
from aligner_hooks.mindsporelike import compiler, modes
from aligner_hooks.mindsporelike.graphs import compiled

Args = tuple[object, ...]
Kwargs = Mapping[str, object]

# The first MindSpore whose hooks are told of keyword arguments: without them a layer's inputs would be lost silently.
OLDEST = (2, 7)
# What a hook returns for None: of a returned None MindSpore thinks that nothing is to be replaced.
_NONE: Any = object()


def observe(cell: nn.Cell, before: Before, after: After) -> Handle:
    """Call `before` and `after` around each run of the cell, changing nothing."""

    def seen(args: Args, kwargs: Kwargs) -> None:
        before(args, kwargs)

    def left(args: Args, kwargs: Kwargs, output: object) -> None:
        after(args, kwargs, output)

    handle = _installed(_Hooks(cell, seen, left, outermost=False), cell)
    handle.add(compiled.observe(cell, before, after).remove)
    handle.add(roots.whole_nets().remove)
    handle.add(modes.waited().remove)
    return handle


def intervene(cell: nn.Cell, given: Given, made: Made) -> Handle:
    """Run the cell on what `given` returns and hand on what `made` returns.

    A cell with a `bprop` of its own runs on and hands on these as well; its gradient belongs to what it was given.
    """

    def replaced(args: Args, kwargs: Kwargs) -> tuple[Args, dict[str, object]]:
        args, kwargs = given(args, kwargs)
        return tuple(args), dict(kwargs)

    def handed_on(args: Args, kwargs: Kwargs, output: object) -> object:
        output = made(args, kwargs, None if output is _NONE else output)
        return _NONE if output is None else output

    return _installed(_Hooks(cell, replaced, handed_on, outermost=True), cell)


def _installed(hooks: _Hooks, cell: nn.Cell) -> Handle:
    hooks.install(cell)
    return Handle(hooks.remove)


class _Hooks:
    """The two hooks of one observer or intervener on one cell.

    A deepcopy of the cell (an average of weights) copies its tables of hooks: the hooks in it are still these, and
    they tell nothing of any cell but their own.
    """

    def __init__(
        self,
        cell: nn.Cell,
        before: Callable[[Args, Kwargs], Any],
        after: Callable[[Args, Kwargs, object], object],
        outermost: bool,
    ) -> None:
        self._cell = weakref.ref(cell)
        self._before = before
        self._after = after
        self._outermost = outermost
        self._active = True
        self._running: Any = None
        self._pre: Any = None
        self._post: Any = None
        self._known: list[Any] = []
        """Both hooks, and their entries in the tables of copies."""
        self._undo: Callable[[], object] = lambda: None

    def install(self, cell: nn.Cell) -> None:
        """Register both hooks, or neither."""
        try:
            self._pre = _register(cell.register_forward_pre_hook, self.enter, first=not self._outermost)
            with _without_bprop(cell):
                self._post = _register(cell.register_forward_hook, self.leave, first=False)
            _interveners_outermost(self._pre, self._post)
            self._known += [self._pre, self._post]
            undo = compiled.without(self._known, intervening=self._outermost)
            self._undo = undo.remove
            if self._outermost:
                undo.add(patch(nn.Cell, "_run_forward_hook", _with_none).remove)
        except BaseException:
            self.remove()
            raise

    def __deepcopy__(self, memo: dict[int, Any]) -> _Hooks:
        """A table of hooks is being copied: what is in it must not be compiled, and not be left there."""
        for known in tuple(self._known):
            table = memo.get(id(known.hook_dict_ref()))
            if table is not None and not any(one.hook_dict_ref() is table for one in self._known):
                self._known.append(_Copied(weakref.ref(table), known.handle_id))
        return self

    @property
    def outermost(self) -> bool:
        """Whether observers stand inside these hooks."""
        return self._outermost

    def enter(self, cell: nn.Cell, args: Args, kwargs: Kwargs) -> Any:
        """MindSpore is about to run the cell; returning nothing keeps the arguments."""
        if not self._active or cell is not self._cell():
            return None
        self._running = self._pre
        runtime.stay_interruptible()
        operations.mute()
        try:
            return self._before(args, kwargs)
        finally:
            operations.unmute()
            self._running = None

    def leave(self, cell: nn.Cell, args: Args, kwargs: Kwargs, output: object) -> object:
        """MindSpore has run the cell; returning nothing keeps the output."""
        if not self._active or cell is not self._cell():
            return None
        self._running = self._post
        runtime.stay_interruptible()
        operations.mute()
        try:
            return self._after(args, kwargs, output)
        finally:
            operations.unmute()
            self._running = None

    def remove(self) -> None:
        """Take both hooks away.

        A callback may ask for this (the last step is over) while MindSpore walks the table that its hook stands in.
        Taking away the last entry is no harm then; another one stays, as a hook that does nothing, until some other
        hook of ours is removed.
        """
        self._active = False
        self._undo()
        for copied in self._known[2:]:
            copied.remove()
        for hook in (self._pre, self._post):
            if hook is not None and (hook is not self._running or _is_last(hook)):
                hook.remove()
            elif hook is not None:
                _LEFT_BEHIND.append(hook)
        if self._running is None:
            while _LEFT_BEHIND:
                _LEFT_BEHIND.pop().remove()


@dataclass(frozen=True)
class _Copied:
    """A hook of ours that came into the table of another cell when the net was copied."""

    hook_dict_ref: Callable[[], Optional[dict[int, Any]]]
    handle_id: int

    def remove(self) -> None:
        """Take it out there."""
        table = self.hook_dict_ref()
        if table is not None:
            table.pop(self.handle_id, None)


_LEFT_BEHIND: list[Any] = []


def _register(register: Callable[..., Any], hook: Callable[..., object], first: bool) -> Any:
    try:
        registered = register(hook, with_kwargs=True)
    except TypeError as error:
        if compiler.version() >= OLDEST:
            raise
        raise AdapterError("mindspore-old", version=mindspore.__version__) from error
    if first:  # 2.7 has no argument for it
        registered.hook_dict_ref().move_to_end(registered.handle_id, last=False)
    return registered


@contextmanager
def _without_bprop(cell: nn.Cell) -> Iterator[None]:
    """MindSpore ignores the forward hooks of a cell with its own `bprop`, but only when they are registered.

    It does so because a hook may replace the output that bprop belongs to.
    """
    held = hold(cell, "has_bprop", False)
    try:
        yield
    finally:
        held.remove()


def _interveners_outermost(pre: Any, post: Any) -> None:
    """Put the interveners of this cell before all others on the way in and behind all others on the way out."""
    for hook, last in ((pre, False), (post, True)):
        table = hook.hook_dict_ref()
        owners = [(number, getattr(function, "__self__", None)) for number, function in table.items()]
        numbers = [number for number, owner in owners if isinstance(owner, _Hooks) and owner.outermost]
        # Their order among themselves stays: each gets what the one that came before it returned.
        for number in numbers if last else reversed(numbers):
            table.move_to_end(number, last=last)


def _with_none(original: Callable[..., Any], listeners: Listeners) -> Callable[..., Any]:
    """A cell's hooks, of which the last may have asked for None."""

    def _run_forward_hook(self: nn.Cell, *args: object, **kwargs: object) -> object:
        output = original(self, *args, **kwargs)
        return None if listeners and output is _NONE else output

    return _run_forward_hook


def _is_last(hook: Any) -> bool:
    """Whether it is the last entry of its table: walking an ordered dict ends without a look at what changed."""
    table = hook.hook_dict_ref()
    return table is not None and next(reversed(table), None) == hook.handle_id
