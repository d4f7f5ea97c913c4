"""What the layers of a port compute in, and what its code runs between them, heard while it runs eagerly.

A compiled net tells of no operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from aligner.adapter import Adapter, Handle
from aligner.capture.computed import Computed
from aligner.capture.following import Following
from aligner.capture.gaps import Gaps
from aligner.dump.reader import Dump
from aligner.findings import CODE, OPERATIONS
from aligner.source import ear as source


@contextmanager
def heard(adapter: Adapter, model: Any, port: Dump, tell: Callable[[str, dict[str, Any]], None]) -> Iterator[None]:
    """Listen to the operators of what runs in the block, where the free run had none to hear; `tell` gets findings."""
    if any(kind == OPERATIONS for kind, _ in port.findings):
        yield
        return
    ears = _Ears(adapter, model)
    with ExitStack() as stack:
        for path, layer in adapter.layers(model):
            stack.callback(adapter.observe(layer, partial(ears.before, path, layer), partial(ears.after, path)).remove)
        stack.callback(adapter.operations(ears.gaps.told).remove)
        stack.callback(ears.computed.listen().remove)
        yield
    ears.computed.tell(tell)
    for facts in ears.between.values():
        tell(OPERATIONS, facts)


@dataclass(frozen=True)
class Followed:
    """Who follows the code of a run."""

    settle: Callable[[], None]
    """To be called before values are changed that the code has made."""
    unheard: Callable[[], bool]
    """Runs the code as it is from now on; false where it does already."""


@contextmanager
def followed(
    adapter: Adapter, model: Any, reference: Dump, tell: Callable[[str, dict[str, Any]], None]
) -> Iterator[Followed]:
    """Follow the code of what runs in the block, where the reference's was followed; `tell` gets findings."""
    if not any(kind == CODE for kind, _ in reference.findings):
        yield Followed(lambda: None, lambda: False)
        return
    steps = _Steps(adapter, model)
    following = steps.following
    handles: list[Handle] = []
    with ExitStack() as stack:
        for path, layer in adapter.layers(model):
            stack.callback(adapter.observe(layer, partial(steps.before, path), partial(steps.after, path)).remove)
        read = source.listen(adapter, model, following)
        if read is None:
            following.listen(handles)
        else:
            handles.append(read)
        for handle in handles:
            stack.callback(handle.remove)

        def unheard() -> bool:
            known = read is not None and bool(handles)
            while known and handles:
                handles.pop().remove()
            return known

        yield Followed(following.settle, unheard)
    for facts in steps.told:
        tell(CODE, facts)


class _Steps:
    """Follows the calls of a run as they nest; of several runs the first that ends is told of: its values are kept."""

    def __init__(self, adapter: Adapter, model: Any) -> None:
        self.told: list[dict[str, Any]] = []
        self.following = Following(adapter, model, lambda _, facts: self.told.append(facts))
        self._running: list[str] = []
        self._numbers: Counter[str] = Counter()
        self._ended = False

    def before(self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """A call begins."""
        if self._ended:
            return
        if not path:
            self.told.clear()
            self._running.clear()
            self._numbers.clear()
            self.following.restart()
        self._running.append(path)
        self.following.enter(path, self._numbers[path])
        self._numbers[path] += 1

    def after(self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
        """A call ends; those that it called and that raised have ended too."""
        if self._ended:
            return
        depth = len(self._running) - 1 - self._running[::-1].index(path)
        self.following.unwind(depth + 1)
        self.following.leave(path)
        del self._running[depth:]
        self._ended = not path


class _Ears:
    """Follows the calls of a run as they nest; of several runs the last is told of."""

    def __init__(self, adapter: Adapter, model: Any) -> None:
        self.computed = Computed(adapter, model)
        self.gaps = Gaps(self._told)
        self.between: dict[str, dict[str, Any]] = {}
        """Of each layer's first call, what its code ran between its children."""
        self._running: list[str] = []

    def before(self, path: str, layer: object, args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
        """A call begins."""
        if not path:  # a run of the whole; one before it may have raised
            self._unwind(0)
            self.between.clear()
        self._running.append(path)
        self.gaps.enter(path)
        self.computed.enter(path, layer)

    def after(self, path: str, args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> None:
        """A call ends; those that it called and that raised have ended too."""
        depth = len(self._running) - 1 - self._running[::-1].index(path)
        self._unwind(depth + 1)
        self.gaps.leave(path, 0, 0)
        self.computed.unwind(depth)
        self._running.pop()

    def _unwind(self, depth: int) -> None:
        del self._running[depth:]
        self.gaps.unwind(depth)
        self.computed.unwind(depth)

    def _told(self, _kind: str, facts: dict[str, Any]) -> None:
        self.between.setdefault(facts["layer"], facts)
