"""Checks of `computations` and `precision`: the types that operators really run in, and no change to any number."""

from __future__ import annotations

import pytest

from aligner.adapter import Adapter
from aligner.testing.nets import NETS
from aligner.testing.supplies import Supplies, same

Told = list[tuple[str, str]]


class ComputationChecks(Supplies):
    """computations, precision."""

    def computed(self, adapter: Adapter, name: str, dtype: str) -> Told:
        """What is told while the net, put into this type, runs."""
        net, told = self.net(adapter, name), Told()
        adapter.cast(net, dtype)
        x = adapter.from_numpy(adapter.to_numpy(self.x(adapter, name)).astype(dtype), dtype)
        handle = adapter.computations(lambda word, made: told.append((word, made)))
        try:
            self.run(adapter, net, x)
        finally:
            handle.remove()
        return told

    @pytest.mark.parametrize("dtype", ["float32", "float16", "float64"])
    def test_operators_are_told_with_the_type_they_run_in(self, adapter: Adapter, dtype: str) -> None:
        told = self.computed(adapter, "plain", dtype)
        assert {made for _, made in told} == ({dtype} if self.tells_operations else set())
        assert all(word == word.lower() and "." not in word for word, _ in told)

    def test_what_only_moves_values_is_left_out(self, adapter: Adapter) -> None:
        x, told = self.x(adapter, "norm"), Told()
        handle = adapter.computations(lambda word, made: told.append((word, made)))
        try:
            x.reshape(-1)
            x.T  # noqa: B018 - asked for what it does
            x + x
        finally:
            handle.remove()
        assert told == ([("add", "float32")] if self.tells_operations else [])

    def test_what_callbacks_do_is_not_computed_by_the_net(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        told: Told = []
        observer = adapter.observe(net, lambda args, kwargs: args[0] / 3, lambda *_: None)  # type: ignore[operator,arg-type]  # a tensor
        handle = adapter.computations(lambda word, made: told.append((word, made)))
        try:
            self.run(adapter, net, x)
        finally:
            handle.remove()
            observer.remove()
        assert "div" not in [word for word, _ in told]

    @pytest.mark.parametrize("name", sorted(set(NETS) - {"raising"}))
    def test_no_number_is_changed_by_telling_types(self, adapter: Adapter, name: str) -> None:
        net = self.net(adapter, name)
        wanted = self.run(adapter, net, self.x(adapter, name))
        handle = adapter.computations(lambda word, made: None)
        try:
            found = self.run(adapter, net, self.x(adapter, name))
        finally:
            handle.remove()
            handle.remove()
        assert same(wanted, found)

    def test_two_who_listen_leave_in_any_order(self, adapter: Adapter) -> None:
        x = self.x(adapter, "norm")
        one: Told = []
        two: Told = []
        first = adapter.computations(lambda *told: one.append(told))
        second = adapter.computations(lambda *told: two.append(told))
        names: list[str] = []
        third = adapter.operations(names.append)
        first.remove()
        x + x
        second.remove()
        x + x
        third.remove()
        told = [("add", "float32")] if self.tells_operations else []
        assert (one, two) == ([], told)
        assert names == (["add", "add"] if self.tells_operations else [])

    def test_a_net_without_switches_is_told_nothing(self, adapter: Adapter) -> None:
        net = self.net(adapter, "norm")
        assert [adapter.precision(net, layer) for _, layer in adapter.layers(net)] == [None] * 3
