"""Checks of `operations`: names of what runs, where the framework tells of it, and no change to any number."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from aligner.adapter import Adapter
from aligner.testing.nets import NETS
from aligner.testing.supplies import Supplies, same


class OperationChecks(Supplies):
    """operations."""

    def heard(self, names: list[str], wanted: list[str]) -> bool:
        """Whether these are among the names, in this order; nothing at all where the framework tells of nothing."""
        if not self.tells_operations:
            return names == []
        places = iter(names)
        return all(word in places for word in wanted)

    def test_operations_are_told_by_name_and_in_order(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        names: list[str] = []
        handle = adapter.operations(names.append)
        try:
            with adapter.running(net):
                x * x + x
                between = len(names)
                net(x)
        finally:
            handle.remove()
        assert self.heard(names, ["mul", "add"])
        assert all(name and name == name.strip().lower() and "." not in name for name in names), names
        assert len(names) > between or not self.tells_operations

    def test_what_a_layer_of_the_users_own_does_is_told(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "nested"), self.x(adapter, "nested")
        layers = dict(adapter.layers(net))
        names: list[str] = []
        marks: list[int] = []
        observer = adapter.observe(
            layers["head"], lambda *_: marks.append(len(names)), lambda *_: marks.append(len(names))
        )
        handle = adapter.operations(names.append)
        try:
            self.run(adapter, net, x)
        finally:
            handle.remove()
            observer.remove()
        start, end = marks
        assert names[start:end] == (["add"] if self.tells_operations else [])

    def test_what_callbacks_do_is_not_told(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")

        def before(args: tuple[object, ...], kwargs: Mapping[str, object]) -> None:
            args[0] * args[0]  # type: ignore[operator]  # a tensor

        observer = adapter.observe(dict(adapter.layers(net))["fc"], before, lambda *_: None)
        names: list[str] = []
        handle = adapter.operations(names.append)
        try:
            self.run(adapter, net, x)
        finally:
            handle.remove()
            observer.remove()
        assert "mul" not in names

    def test_nothing_is_told_after_removal(self, adapter: Adapter) -> None:
        x = self.x(adapter, "norm")
        one: list[str] = []
        two: list[str] = []
        first, second = adapter.operations(one.append), adapter.operations(two.append)
        x * x
        first.remove()
        first.remove()
        x + x
        second.remove()
        x - x
        wanted = (["mul"], ["mul", "add"]) if self.tells_operations else ([], [])
        assert (one, two) == wanted

    @pytest.mark.parametrize("name", sorted(set(NETS) - {"raising"}))
    def test_no_number_is_changed(self, adapter: Adapter, name: str) -> None:
        net, x = self.net(adapter, name), self.x(adapter, name)
        wanted = self.run(adapter, net, x)
        names: list[str] = []
        handle = adapter.operations(names.append)
        try:
            found = self.run(adapter, net, self.x(adapter, name))
        finally:
            handle.remove()
        assert same(wanted, found)
        assert bool(names) == self.tells_operations

    def test_a_run_that_raises_leaves_nothing_behind(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "raising"), self.x(adapter, "raising")
        names: list[str] = []
        handle = adapter.operations(names.append)
        try:
            with pytest.raises(ValueError, match="broken layer"):
                self.run(adapter, net, x)
        finally:
            handle.remove()
        count = len(names)
        x * x
        assert len(names) == count
