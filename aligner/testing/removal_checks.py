"""Checks of everything that an adapter installs: whoever leaves first, whatever is raised, nothing stays."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from types import FunctionType
from typing import Any, cast

import pytest

from aligner.adapter import Adapter, Compiles, Handle, Trains
from aligner.testing.standing import Standing
from aligner.testing.supplies import Supplies, same

Tell = Callable[[], None]
Install = Callable[[Adapter, Any, Tell], Handle]


def _layer(adapter: Adapter, net: Any) -> Any:
    """One that runs early, inside the net."""
    return next(layer for path, layer in adapter.layers(net) if path in ("fc", "first"))


def _given(tell: Tell) -> Any:
    def given(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Any:
        tell()
        return args, kwargs

    return given


INSTALLS: Mapping[str, Install] = {
    "observe": lambda adapter, net, tell: adapter.observe(_layer(adapter, net), lambda *_: tell(), lambda *_: None),
    "compiled_runs": lambda adapter, net, tell: adapter.compiled_runs(tell, tell),
    "intervene": lambda adapter, net, tell: adapter.intervene(
        _layer(adapter, net), _given(tell), lambda args, kwargs, output: output
    ),
    "watch_roots": lambda adapter, net, tell: adapter.watch_roots(lambda model: tell()),
    "operations": lambda adapter, net, tell: adapter.operations(lambda name: tell()),
    "executions": lambda adapter, net, tell: adapter.executions(lambda *_: tell()),
    "computations": lambda adapter, net, tell: adapter.computations(lambda *_: tell()),
    "silence_dropout": lambda adapter, net, tell: adapter.silence_dropout(net),
    "losses": lambda adapter, net, tell: cast(Trains, adapter).losses(lambda loss: tell()),
    "updates": lambda adapter, net, tell: cast(Trains, adapter).updates(lambda *_: tell(), lambda *_: None),
    "routed": lambda adapter, net, tell: cast(Trains, adapter).routed(cast(Trains, adapter).together({"net": net})),
    "eagerly": lambda adapter, net, tell: cast(Compiles, adapter).eagerly(),
}
"""Each method of an adapter that installs something, and how it is asked to: a new one without an entry is found."""

SURROUNDS = {"running"}
"""What installs something for the length of a `with` block."""

ON_TENSORS = {"on_gradient"}
"""What installs something on a tensor, which goes with it."""

TRAINS = {"losses", "updates", "eagerly", "routed"}
"""What training steps alone need; the nets here run forward, and an adapter may not have it."""

COMPILED = {"compiled_runs"}
"""What tells of graphs alone; the nets here run eagerly."""

WHERE_TOLD = {"operations", "executions", "computations"}
"""What a framework may have no way to tell."""


class Stop(Exception):
    """What a callback raises."""


class RemovalChecks(Supplies):
    """Whatever installs something."""

    def installed(self) -> object:
        """What is installed besides attributes (modes on the framework's stacks, switches), to be compared."""
        return None

    @contextmanager
    def left_as_it_was(self, adapter: Adapter, *nets: Any) -> Iterator[None]:
        """What stands in the framework and in the nets stands there afterwards."""
        before = Standing(adapter, nets, self.installed())
        yield
        after = Standing(adapter, nets, self.installed())
        assert before.names(before.changed(after)) == []
        assert before.more == after.more

    def subject(self, adapter: Adapter, method: str) -> tuple[Any, Any]:
        """A net to install something in, and its input; it has run, as frameworks make things when first asked to."""
        if not hasattr(adapter, method):
            pytest.skip(f"this adapter has no {method}")
        name = "dropout" if method == "silence_dropout" else "norm"
        net, x = self.net(adapter, name, training=name == "dropout"), self.x(adapter, name)
        self.run(adapter, net, x)
        return net, x

    def hears(self, adapter: Adapter, method: str, told: list[int], net: Any, x: Any) -> bool:
        """Whether what was installed is at work in a run now."""
        told.clear()
        made = self.run(adapter, net, x)
        if method == "silence_dropout":
            return same(made, self.run(adapter, net, x))
        return bool(told)

    def works(self, method: str) -> bool:
        """Whether it does anything here."""
        return method not in COMPILED | TRAINS and (method not in WHERE_TOLD or self.tells_operations)

    def test_whatever_installs_something_is_checked(self, adapter: Adapter) -> None:
        found = {}
        for kind in (Adapter, type(adapter)):
            for name, function in inspect.getmembers(kind, inspect.isfunction):
                if not name.startswith("_"):
                    found[name] = str(function.__annotations__.get("return", ""))
        installing = {name for name, returned in found.items() if "Handle" in returned or "ContextManager" in returned}
        unchecked = installing - INSTALLS.keys() - SURROUNDS - ON_TENSORS
        assert unchecked == set(), "they install something and no check removes it"
        assert (INSTALLS.keys() - TRAINS) | SURROUNDS <= found.keys()

    @pytest.mark.parametrize("first", [0, 1], ids=["in order", "in reverse"])
    @pytest.mark.parametrize("method", sorted(INSTALLS))
    def test_two_leave_in_any_order_and_nothing_stays(self, adapter: Adapter, method: str, first: int) -> None:
        net, x = self.subject(adapter, method)
        with self.left_as_it_was(adapter, net):
            told: tuple[list[int], list[int]] = ([], [])
            handles = [INSTALLS[method](adapter, net, partial(one.append, 1)) for one in told]
            assert [self.hears(adapter, method, one, net, x) for one in told] == [self.works(method)] * 2
            handles[first].remove()
            assert self.hears(adapter, method, told[1 - first], net, x) == self.works(method)
            told[first].clear()
            self.run(adapter, net, x)
            assert not told[first]
            handles[1 - first].remove()
            assert not self.hears(adapter, method, told[1 - first], net, x)
            for handle in handles:
                handle.remove()

    @pytest.mark.parametrize("first", [0, 1], ids=["in order", "in reverse"])
    @pytest.mark.parametrize("method", sorted(INSTALLS))
    def test_nothing_stays_after_exceptions(self, adapter: Adapter, method: str, first: int) -> None:
        def stop() -> None:
            raise Stop

        net, x = self.subject(adapter, method)
        broken, given = self.net(adapter, "raising", training=True), self.x(adapter, "raising")
        with suppress(ValueError):
            self.run(adapter, broken, given)
        clean = self.run(adapter, net, x) if method != "silence_dropout" else {}
        with self.left_as_it_was(adapter, net, broken):
            handles = [INSTALLS[method](adapter, broken, lambda: None) for _ in range(2)]
            for handle in (handles[first], handles[1 - first]):
                with pytest.raises(ValueError, match="broken layer"):
                    self.run(adapter, broken, given)
                handle.remove()
            handles = [INSTALLS[method](adapter, net, stop) for _ in range(2)]
            for handle in (handles[first], handles[1 - first]):
                with suppress(Exception):  # of some it goes up, others keep it to themselves
                    self.run(adapter, net, x)
                handle.remove()
            if clean:
                assert same(clean, self.run(adapter, net, x))

    @pytest.mark.parametrize("method", sorted(INSTALLS))
    def test_what_somebody_else_puts_on_top_stays(self, adapter: Adapter, method: str) -> None:
        net, x = self.subject(adapter, method)
        told: list[int] = []
        theirs: list[str] = []
        with self.left_as_it_was(adapter, net):
            before = Standing(adapter, [net])
            handle = INSTALLS[method](adapter, net, lambda: told.append(1))
            now = Standing(adapter, [net])
            ours = {}
            for number, name in before.changed(now):
                value = now.held.get(number, {}).get(name)
                if isinstance(value, FunctionType) and not isinstance(before.owners[number], dict):
                    wrapper = _wrapper(value, name, theirs)
                    ours[number, name] = (value, wrapper)
                    setattr(before.owners[number], name, wrapper)
            handle.remove()
            assert not self.hears(adapter, method, told, net, x)
            for (number, name), (value, wrapper) in ours.items():
                assert vars(before.owners[number])[name] is wrapper
                setattr(before.owners[number], name, value)
            assert bool(theirs) or not ours or method not in ("observe", "watch_roots")
            INSTALLS[method](adapter, net, lambda: None).remove()

    @pytest.mark.parametrize("method", sorted(INSTALLS))
    def test_threads_do_not_disturb_each_other(self, adapter: Adapter, method: str) -> None:
        subjects = [self.subject(adapter, method) for _ in range(2)]
        wrong: list[object] = []
        turn = nullcontext() if self.runs_in_threads else threading.Lock()

        def work(net: Any, x: Any) -> None:
            told: list[int] = []
            try:
                for _ in range(3):
                    handle = INSTALLS[method](adapter, net, lambda: told.append(1))
                    with turn:
                        heard = self.hears(adapter, method, told, net, x)
                    handle.remove()
                    if heard != self.works(method):
                        wrong.append(f"heard: {heard}")
            except BaseException as error:
                wrong.append(error)

        with self.left_as_it_was(adapter, *(net for net, _ in subjects)):
            threads = [threading.Thread(target=work, args=subject) for subject in subjects]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert wrong == []

    @pytest.mark.parametrize("method", sorted(INSTALLS))
    def test_another_thread_may_remove_it(self, adapter: Adapter, method: str) -> None:
        net, x = self.subject(adapter, method)
        with self.left_as_it_was(adapter, net):
            told: list[int] = []
            handle = INSTALLS[method](adapter, net, lambda: told.append(1))
            thread = threading.Thread(target=handle.remove)
            thread.start()
            thread.join()
            assert not self.hears(adapter, method, told, net, x)
            INSTALLS[method](adapter, net, lambda: None).remove()

    @pytest.mark.parametrize("name", ["norm", "raising"])
    def test_the_surroundings_of_a_run_leave_nothing(self, adapter: Adapter, name: str) -> None:
        net, x = self.net(adapter, name), self.x(adapter, name)
        with suppress(ValueError):
            self.run(adapter, net, x)
        with self.left_as_it_was(adapter, net):
            for _ in range(2):
                with suppress(ValueError), adapter.running(net), adapter.running(net):
                    net(x)


def _wrapper(value: Any, name: str, theirs: list[str]) -> Any:
    """As a profiler wraps what it finds."""

    def wrapper(*args: Any, **kwargs: Any) -> Any:
        theirs.append(name)
        return value(*args, **kwargs)

    wrapper.__dict__.update(vars(value))
    return wrapper
