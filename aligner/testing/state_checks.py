"""Checks of train and eval mode, dropout, seeds, devices and the surroundings of a run."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.adapter import Adapter
from aligner.errors import AdapterError
from aligner.testing.supplies import Supplies, same

RANDOM = ["dropout", "recurrent", "attention"]


class StateChecks(Supplies):
    """training, set_training, silence_dropout, seed, random_state, set_random_state, device, running, compiled_runs."""

    @pytest.mark.parametrize("name", ["norm", "nested", "plain"])
    def test_the_whole_net_changes_mode(self, adapter: Adapter, name: str) -> None:
        net = self.make_net(name)
        for training in (True, False, True):
            adapter.set_training(net, training)
            assert {adapter.training(layer) for _, layer in adapter.layers(net)} == {training}

    def test_modes_differ_where_they_should(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "norm", training=True), self.x(adapter, "norm")
        trained = self.run(adapter, net, x)
        adapter.set_training(net, False)
        assert not same(trained, self.run(adapter, net, x))

    def test_what_runs_eagerly_is_nothing_compiled(self, adapter: Adapter) -> None:
        runs = getattr(adapter, "compiled_runs", None)
        if runs is None:
            return  # it may be left out where nothing is compiled
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        wanted = self.run(adapter, net, x)
        told: list[int] = []
        handles = [runs(lambda n=n: told.append(n), lambda n=n: told.append(n)) for n in range(3)]
        observer = adapter.observe(net, lambda *_: None, lambda *_: None)
        try:
            assert same(wanted, self.run(adapter, net, x))
        finally:
            observer.remove()
            for number in (1, 0, 2, 0):  # in any order, and twice
                handles[number].remove()
        assert told == []
        assert same(wanted, self.run(adapter, net, x))

    @pytest.mark.parametrize("name", RANDOM)
    def test_dropout_is_silenced_in_train_mode_and_comes_back(self, adapter: Adapter, name: str) -> None:
        net, x = self.net(adapter, name), self.x(adapter, name)
        wanted = self.run(adapter, net, x)
        adapter.set_training(net, True)
        modes = [adapter.training(layer) for _, layer in adapter.layers(net)]
        specs = [adapter.spec(layer) for _, layer in adapter.layers(net)]
        assert not same(self.run(adapter, net, x), self.run(adapter, net, x)), "the net has no dropout to silence"
        handle = adapter.silence_dropout(net)
        try:
            silenced = self.run(adapter, net, x)
        finally:
            handle.remove()
            handle.remove()
        for slot, value in wanted.items():
            np.testing.assert_allclose(silenced[slot], value, rtol=1e-5, atol=1e-6)
        assert [adapter.training(layer) for _, layer in adapter.layers(net)] == modes
        assert [adapter.spec(layer) for _, layer in adapter.layers(net)] == specs
        assert not same(self.run(adapter, net, x), self.run(adapter, net, x)), "dropout did not come back"

    def test_silencing_is_undone_after_an_exception(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "dropout", training=True), self.x(adapter, "dropout")

        def stop(*_: object) -> None:
            raise KeyError("stop")

        observer = adapter.observe(net, stop, lambda *_: None)
        handle = adapter.silence_dropout(net)
        try:
            with pytest.raises(KeyError):
                self.run(adapter, net, x)
        finally:
            handle.remove()
            observer.remove()
        assert not same(self.run(adapter, net, x), self.run(adapter, net, x))

    def test_silencing_draws_no_random_numbers(self, adapter: Adapter) -> None:
        state = adapter.random_state()
        if state is None:
            pytest.skip("the framework's random state cannot be read")
        net, x = self.net(adapter, "dropout", training=True), self.x(adapter, "dropout")
        state = adapter.random_state()
        handle = adapter.silence_dropout(net)
        try:
            self.run(adapter, net, x)
        finally:
            handle.remove()
        assert adapter.random_state() == state
        self.run(adapter, net, x)
        assert adapter.random_state() != state

    def test_random_state_can_be_gone_back_to(self, adapter: Adapter) -> None:
        state = adapter.random_state()
        if state is None:
            pytest.skip("the framework's random state cannot be read")
        net, x = self.net(adapter, "dropout", training=True), self.x(adapter, "dropout")
        start = adapter.random_state()
        assert start is not None
        first = self.run(adapter, net, x)
        later = adapter.random_state()
        second = self.run(adapter, net, x)
        adapter.set_random_state(start)
        assert adapter.random_state() == start
        assert same(self.run(adapter, net, x), first)
        assert adapter.random_state() == later
        assert not same(first, second)

    def test_a_seed_repeats_the_random_numbers(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "dropout", training=True), self.x(adapter, "dropout")
        runs = []
        for seed in (1, 1, 2):
            adapter.seed(seed)
            runs.append(self.run(adapter, net, x))
        assert same(runs[0], runs[1])
        assert not same(runs[0], runs[2])

    def test_the_processor_is_a_device_and_a_fancy_is_not(self, adapter: Adapter) -> None:
        move = adapter.device("cpu")
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        wanted = self.run(adapter, net, x)
        assert same(wanted, self.run(adapter, move(net), move(x)))
        with pytest.raises(AdapterError):
            adapter.device("abacus")

    def test_running_is_left_as_it_was_found(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "raising"), self.x(adapter, "raising")
        with pytest.raises(ValueError, match="broken layer"):
            self.run(adapter, net, x)
        other = self.net(adapter, "norm")
        assert all(np.any(adapter.to_numpy(g)) for g in self.gradients(other, self.x(adapter, "norm"))[-1:])
