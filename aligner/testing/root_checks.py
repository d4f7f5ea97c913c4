"""Checks of `watch_roots`: who is told of the nets that run, and when."""

from __future__ import annotations

import threading
from collections.abc import Mapping

import pytest

from aligner.adapter import Adapter
from aligner.testing.recorder import Recorder
from aligner.testing.supplies import Supplies, same


class RootChecks(Supplies):
    """watch_roots."""

    def test_each_outermost_run_is_told_of_once(self, adapter: Adapter) -> None:
        net, other = self.net(adapter, "nested"), self.net(adapter, "norm")
        roots: list[object] = []
        handle = adapter.watch_roots(roots.append)
        try:
            self.run(adapter, net, self.x(adapter, "nested"))
            self.run(adapter, other, self.x(adapter, "norm"))
            self.run(adapter, net, self.x(adapter, "nested"))
        finally:
            handle.remove()
        assert [id(root) for root in roots] == [id(net), id(other), id(net)]

    def test_observers_installed_when_told_see_this_very_run(self, adapter: Adapter) -> None:
        net = self.net(adapter, "nested")
        clean = self.run(adapter, net, self.x(adapter, "nested"))
        attached: list[Recorder] = []
        with Recorder(adapter) as recorder:
            handle = adapter.watch_roots(lambda model: attached.append(recorder.attach(model)))
            try:
                observed = self.run(adapter, net, self.x(adapter, "nested"))
            finally:
                handle.remove()
        assert recorder.places[0] == ("before", "")
        assert recorder.places[-1] == ("after", "")
        assert ("after", "body.1") in recorder.places
        assert same(clean, observed)

    def test_nobody_is_told_after_removal(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        one: list[object] = []
        two: list[object] = []
        first, second = adapter.watch_roots(one.append), adapter.watch_roots(two.append)
        self.run(adapter, net, x)
        first.remove()
        first.remove()
        self.run(adapter, net, x)
        second.remove()
        self.run(adapter, net, x)
        assert (len(one), len(two)) == (1, 2)

    def test_a_net_that_raised_is_a_root_again(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "raising"), self.x(adapter, "raising")
        roots: list[object] = []
        handle = adapter.watch_roots(roots.append)
        try:
            for _ in range(2):
                with pytest.raises(ValueError, match="broken layer"):
                    self.run(adapter, net, x)
        finally:
            handle.remove()
        assert [id(root) for root in roots] == [id(net), id(net)]

    def test_what_the_watcher_raises_goes_up(self, adapter: Adapter) -> None:
        class Stop(Exception):
            pass

        def stop(model: object) -> None:
            told.append(model)
            raise Stop

        told: list[object] = []
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        handle = adapter.watch_roots(stop)
        try:
            for _ in range(2):
                with pytest.raises(Stop):
                    self.run(adapter, net, x)
        finally:
            handle.remove()
        assert len(told) == 2
        assert self.run(adapter, net, x)

    def test_threads_have_roots_of_their_own(self, adapter: Adapter) -> None:
        net, other = self.net(adapter, "norm"), self.net(adapter, "layout")
        roots: list[object] = []

        def run_other(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            thread = threading.Thread(target=self.run, args=(adapter, other, self.x(adapter, "layout")))
            thread.start()
            thread.join()

        inner = dict(adapter.layers(net))["fc"]
        observer = adapter.observe(inner, run_other, lambda *_: None)
        watcher = adapter.watch_roots(roots.append)
        try:
            self.run(adapter, net, self.x(adapter, "norm"))
        finally:
            watcher.remove()
            observer.remove()
        assert [id(root) for root in roots] == [id(net), id(other)]
