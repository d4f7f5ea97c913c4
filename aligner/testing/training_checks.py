"""Checks of what tells of training steps, where an adapter has it: gradients, losses, updates and optimizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import pytest

from aligner.adapter import Adapter, Group, Parameter, Trains
from aligner.record import Array
from aligner.testing.supplies import Supplies, equal_bits, same

Pairs = Sequence[tuple[object, object]]

AGAIN = 6
"""How often runs whose bits a framework may not repeat are made anew."""


class TrainingChecks(Supplies):
    """on_gradient, losses, held, updates, optimizer, rebuilt, put; updates are those of `Supplies.training`."""

    def trainee(self, adapter: Adapter) -> tuple[Trains, Any, Any, Any]:
        """The adapter, a net in train mode, its input, and the optimizer with what makes an update of it."""
        if not hasattr(adapter, "updates"):
            pytest.skip("this adapter does not tell of training")
        net = self.net(adapter, "layout", training=True)
        return cast(Trains, adapter), net, self.x(adapter, "layout"), self.training(net)

    def test_each_update_is_told_of_once_with_its_gradients(self, adapter: Adapter) -> None:
        trains, net, x, (optimizer, step) = self.trainee(adapter)
        told: list[Any] = []

        def begun(made: object, given: Pairs) -> None:
            found = {id(parameter): gradient for parameter, gradient in given}
            wanted = [found[id(one.tensor)] for one in _owned(adapter, net).values()]
            told.append((made, [adapter.to_numpy(one).copy() for one in wanted]))

        handle = trains.updates(begun, told.append)
        step(x)
        handle.remove()
        step(x)
        assert [told[0][0] is optimizer, told[1] is optimizer, len(told)] == [True, True, 2]
        shapes = [tuple(adapter.read(one).shape) for one in _owned(adapter, net).values()]
        assert [array.size for array in told[0][1]] == [int(np.prod(shape)) for shape in shapes]
        assert all(array.any() for array in told[0][1])

    def test_an_update_is_made_of_what_is_answered(self, adapter: Adapter) -> None:
        trains, net, x, (_, step) = self.trainee(adapter)
        before = _now(adapter, net)

        def begun(made: object, given: Pairs) -> Sequence[object]:
            return [None if one is None else _like(adapter, one, 0.0) for _, one in given]

        handle = trains.updates(begun, lambda made: None)
        step(x)
        assert same(before, _now(adapter, net))
        handle.remove()
        step(x)
        assert not same(before, _now(adapter, net))

    def test_being_told_changes_no_bit(self, adapter: Adapter) -> None:
        """Runs that are told of and runs that are not have a result in common: not every framework's kernels repeat
        their bits, least of all on a machine that has other work."""
        start = _now(adapter, self.trainee(adapter)[1])
        found: tuple[list[Mapping[str, Array]], list[Mapping[str, Array]]] = ([], [])
        for _ in range(AGAIN):
            for told, made in enumerate(found):
                made.append(self.two_updates(adapter, start, told=bool(told)))
            if any(same(one, other) for one in found[0] for other in found[1]):
                return
        pytest.fail(f"none of {AGAIN} runs that are told of has the bits of any that is not")

    def two_updates(self, adapter: Adapter, start: Mapping[str, Array], told: bool) -> Mapping[str, Array]:
        """What two updates make of these weights; with `told` somebody is told of all that can be told."""
        trains, net, x, (_, step) = self.trainee(adapter)
        handles = []
        for role, one in _owned(adapter, net).items():
            adapter.load(one, start[role], one.dtype)
            handles += [trains.on_gradient(one.tensor, lambda gradient: None)] if told else []
        handles += (
            [trains.updates(lambda *_: None, lambda made: None), trains.losses(lambda loss: None)] if told else []
        )
        step(x)
        step(x)
        for handle in handles:
            if handle is not None:
                handle.remove()
        return _now(adapter, net)

    def test_the_gradient_of_a_parameter_is_told_and_replaced(self, adapter: Adapter) -> None:
        trains, net, x, (_, step) = self.trainee(adapter)
        one = _owned(adapter, net)["weight"]
        told: list[Array] = []
        given: list[Array] = []

        def arrived(gradient: object) -> object:
            told.append(adapter.to_numpy(gradient).copy())
            return _like(adapter, gradient, 3.0)

        def begun(made: object, pairs: Pairs) -> None:
            found = {id(parameter): gradient for parameter, gradient in pairs}
            given.append(adapter.to_numpy(found[id(one.tensor)]).copy())

        handle = trains.on_gradient(one.tensor, arrived)
        updates = trains.updates(begun, lambda made: None)
        assert handle is not None
        step(x)
        handle.remove()
        step(x)
        updates.remove()
        assert [len(told), len(given)] == [1, 2]
        assert equal_bits(given[0], np.full_like(told[0], 3.0))
        assert not np.array_equal(given[1], given[0])

    def test_each_loss_is_told_before_its_gradients(self, adapter: Adapter) -> None:
        trains, net, x, (_, step) = self.trainee(adapter)
        told: list[str] = []
        wanted = sum(float(array.sum(dtype=np.float64)) for array in self.run(adapter, net, x).values())
        losses: list[float] = []

        def lost(loss: object) -> None:
            told.append("loss")
            losses.append(float(adapter.to_numpy(loss).reshape(-1)[0]))

        def arrived(gradient: object) -> None:
            told.append("gradient")

        handle = trains.losses(lost)
        hook = trains.on_gradient(_owned(adapter, net)["weight"].tensor, arrived)
        step(x)
        for one in (handle, hook):
            assert one is not None
            one.remove()
        step(x)
        assert told == ["loss", "gradient"]
        assert losses == [pytest.approx(wanted, rel=1e-4, abs=1e-4)]

    def test_what_is_held_has_other_values_and_the_same_gradient(self, adapter: Adapter) -> None:
        trains, net, x, (_, step) = self.trainee(adapter)
        found: list[Array] = []
        handed: list[Array] = []
        wanted = adapter.from_numpy(np.full((2, 3, 6), 0.1, np.float32), "float32")

        def arrived(gradient: object) -> None:
            found.append(adapter.to_numpy(gradient).copy())

        def made(args: object, kwargs: object, output: object) -> object:
            trains.on_gradient(output, arrived)
            instead = trains.held(output, wanted)
            handed.append(adapter.to_numpy(instead).copy())
            return instead

        handle = adapter.intervene(net, lambda args, kwargs: (args, kwargs), made)
        step(x)
        handle.remove()
        assert equal_bits(handed[0], np.full((2, 3, 6), 0.1, np.float32))
        assert [np.array_equal(one, np.ones((2, 3, 6), np.float32)) for one in found] == [True]

    def test_an_optimizer_is_told_in_canonical_words(self, adapter: Adapter) -> None:
        trains, net, x, (optimizer, step) = self.trainee(adapter)
        step(x)
        view = trains.optimizer(optimizer)
        assert view.kind == "SGD"
        for group in view.groups:
            assert [group.settings["lr"], group.settings["momentum"]] == [pytest.approx(0.1), pytest.approx(0.9)]
        kept = {id(tensor): value for tensor, word, value in view.state if word == "momentum"}
        for one in _owned(adapter, net).values():
            assert adapter.to_numpy(kept[id(one.tensor)]).any()

    def test_what_an_optimizer_keeps_can_be_replaced(self, adapter: Adapter) -> None:
        trains, _, x, (optimizer, step) = self.trainee(adapter)
        step(x)
        for _, word, value in trains.optimizer(optimizer).state:
            if word == "momentum":
                trains.put(value, _like(adapter, value, 2.0))
        kept = [value for _, word, value in trains.optimizer(optimizer).state if word == "momentum"]
        assert kept
        assert all((adapter.to_numpy(value) == 2.0).all() for value in kept)

    @pytest.mark.parametrize(
        ("kind", "wanted"),
        [
            ("none", [1.5, 2.0, 6.0]),
            ("norm", [0.2308, 0.3077, 0.9231]),
            ("each", [0.6, 0.8, 1.0]),
            ("value", [1.0] * 3),
        ],
    )
    def test_gradients_are_treated(self, adapter: Adapter, kind: str, wanted: Sequence[float]) -> None:
        trains, *_ = self.trainee(adapter)
        given = [adapter.from_numpy(np.array(one, np.float32), "float32") for one in ([3.0, 4.0], [[12.0]])]
        made = [adapter.to_numpy(one).copy() for one in trains.treated(given, kind, 0.5, 1.0)]
        assert [array.shape for array in made] == [(2,), (1, 1)]
        assert np.allclose(np.concatenate([array.reshape(-1) for array in made]), wanted, atol=1e-3)
        assert adapter.to_numpy(given[0]).tolist() == [3.0, 4.0]

    @pytest.mark.parametrize(
        ("kind", "wanted", "loss", "gradient"),
        [
            ("classes", [[0.0, 2.0]], 4.2539, [[1.7616, -1.7616]]),
            ("twice", [[0.0, 2.0]], 2.2895, [[0.2863, -0.2863]]),
            ("binary", [[1.0, 0.0, 0.0, 3.0]], 2.2064, [[-0.1192, 1.5]]),
            ("sigmoid", [[1.0, 0.0, 0.0, 3.0]], 3.2696, [[-0.0308, 0.4668]]),
        ],
    )
    def test_a_loss_is_made_of_scores(
        self, adapter: Adapter, kind: str, wanted: Sequence[Any], loss: float, gradient: Sequence[Any]
    ) -> None:
        trains, *_ = self.trainee(adapter)
        scores, weights = (adapter.from_numpy(np.array(one, np.float32), "float32") for one in ([[2.0, 0.0]], wanted))
        made = [np.asarray(adapter.to_numpy(one)).copy() for one in trains.lost(scores, weights, kind)]
        assert np.allclose(made[0], loss, atol=1e-3)
        assert np.allclose(made[1], gradient, atol=1e-3)

    def test_an_update_is_made_again_with_other_settings(self, adapter: Adapter) -> None:
        if not self.updates_run:
            pytest.skip("the framework's own optimizers do not run here")
        trains, net, _, (optimizer, _) = self.trainee(adapter)
        one = _owned(adapter, net)["weight"]
        settings = {**trains.optimizer(optimizer).groups[0].settings, "lr": 0.5}
        kept = [(one.tensor, "momentum", _like(adapter, one.tensor, 2.0))]
        before: Any = adapter.read(one).copy()
        apply = trains.rebuilt(optimizer, "SGD", [Group(settings, [one.tensor])], kept, 1)
        apply([_like(adapter, one.tensor, 1.0)])
        assert np.allclose(adapter.read(one), before - 0.5 * (1.0 + 0.9 * 2.0), atol=1e-6)
        assert trains.optimizer(optimizer).groups[0].settings["lr"] == pytest.approx(0.1)

    def test_nets_beside_each_other_are_one(self, adapter: Adapter) -> None:
        """Their calls are calls of the whole while these are routed, and they stay as they are."""
        trains, first, x, _ = self.trainee(adapter)
        second = self.net(adapter, "layout", training=True)
        before = [one.name for net in (first, second) for one in adapter.parameters(net)]
        whole: Any = trains.together({"one": first, "two": second})
        paths = dict(adapter.layers(whole))
        assert [paths["one"] is first, paths["two"] is second] == [True, True]
        roles = {path: [(one.layer, one.role) for one in adapter.parameters(net)] for path, net in paths.items()}
        assert roles[""] == [(f"{net}.{layer}", role) for net in ("one", "two") for layer, role in roles[net]]
        assert [one.name for net in (first, second) for one in adapter.parameters(net)] == before
        told: list[tuple[str, object]] = []

        def called(path: str, args: object, given: Mapping[str, object]) -> None:
            told.append((path, given.get("net")))

        layers = (("", whole), ("one", first), ("two", second))
        handles = [adapter.observe(layer, partial(called, path), lambda *_: None) for path, layer in layers]
        routed = trains.routed(whole)
        made = [self.run(adapter, net, x) for net in (first, second)]
        assert told == [("", "one"), ("one", None), ("", "two"), ("two", None)]
        routed.remove()
        assert same(made[1], self.run(adapter, second, x))
        assert told[4:] == [("two", None)]
        for handle in handles:
            handle.remove()

    def test_what_is_alive_is_told(self, adapter: Adapter) -> None:
        trains, net, _, (optimizer, _) = self.trainee(adapter)
        optimizers, nets = trains.alive()
        assert [any(one is optimizer for one in optimizers), any(one is net for one in nets)] == [True, True]


def _owned(adapter: Adapter, net: Any) -> Mapping[str, Parameter]:
    """The parameters of the layer that runs, by role."""
    return {one.role: one for one in adapter.parameters(net) if one.layer == "conv"}


def _now(adapter: Adapter, net: Any) -> Mapping[str, Array]:
    """Copies of what they are now."""
    return {role: adapter.read(one).copy() for role, one in _owned(adapter, net).items()}


def _like(adapter: Adapter, tensor: object, value: float) -> object:
    """A tensor of this one's shape and type, full of one value."""
    return adapter.from_numpy(np.full_like(adapter.to_numpy(tensor), value), adapter.dtype(tensor))
