"""Checks of `observe`: what is seen, in which order, and that seeing changes nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from aligner.adapter import Adapter
from aligner.testing.nets import NETS
from aligner.testing.recorder import Recorder
from aligner.testing.supplies import Supplies, equal_bits, same

RUNNABLE = sorted(set(NETS) - {"raising"})
# Runs of these draw random numbers in train mode; the checks of dropout are elsewhere.
REPEATABLE = sorted(set(RUNNABLE) - {"dropout", "recurrent", "attention"})


class ObservationChecks(Supplies):
    """observe."""

    def recorded(self, adapter: Adapter, name: str) -> Recorder:
        """The events of one run of the net called `name`."""
        net = self.net(adapter, name)
        with Recorder(adapter).attach(net) as recorder:
            self.run(adapter, net, self.x(adapter, name))
        return recorder

    def test_events_nest_and_a_shared_layer_has_one_for_each_call(self, adapter: Adapter) -> None:
        leaf = [("before", "shared"), ("after", "shared")]
        assert self.recorded(adapter, "nested").places == [
            ("before", ""),
            ("before", "body"),
            ("before", "body.0"),
            ("after", "body.0"),
            ("before", "body.1"),
            ("after", "body.1"),
            ("after", "body"),
            *leaf,
            *leaf,
            ("before", "head"),
            ("after", "head"),
            ("after", ""),
        ]

    def test_values_are_those_that_flow_through_the_net(self, adapter: Adapter) -> None:
        recorder = self.recorded(adapter, "nested")
        x = adapter.to_numpy(self.x(adapter, "nested"))
        linear, relu = recorder.only("after", "body.0"), recorder.only("after", "body.1")
        calls = [event for event in recorder.events if event.path == "shared"]
        flow = [
            (recorder.only("before", "").values["input.0"], x),
            (recorder.only("before", "body.0").values["input.0"], x),
            (recorder.only("before", "body.1").values["input.0"], linear.values["output.0"]),
            (relu.values["output.0"], np.maximum(linear.values["output.0"], np.float32(0))),
            (calls[0].values["input.0"], recorder.only("after", "body").values["output.0"]),
            (calls[2].values["input.0"], calls[1].values["output.0"]),
            (recorder.only("before", "head").values["input.0.0"], calls[3].values["output.0"]),
        ]
        for seen, wanted in flow:
            assert np.array_equal(seen, wanted)
        assert not np.array_equal(calls[1].values["output.0"], calls[3].values["output.0"])

    def test_a_layers_weights_explain_its_output(self, adapter: Adapter) -> None:
        net = self.net(adapter, "norm")
        weights: dict[str, Any] = {f"{p.layer}.{p.role}": adapter.read(p).copy() for p in adapter.parameters(net)}
        with Recorder(adapter).attach(net) as recorder:
            self.run(adapter, net, self.x(adapter, "norm"))
        x, y = recorder.only("before", "fc").values["input.0"], recorder.only("after", "fc").values["output.0"]
        np.testing.assert_allclose(y, x @ weights["fc.weight"].T + weights["fc.bias"], rtol=1e-4, atol=1e-5)

    def test_nested_inputs_are_seen_with_none_and_plain_values(self, adapter: Adapter) -> None:
        event = self.recorded(adapter, "nested").only("before", "head")
        y, x = event.values["input.0.0"], event.values["input.0.1"]
        tensors: dict[str, Any] = {
            "input.0.0": y,
            "input.0.1": x,
            "input.1.0": y,
            "input.named.left": x,
            "input.named.deep.0": y,
            "input.record.x": x,
            "input.record.y": y,
            "input.data.value": x,
        }
        assert same(event.values, tensors)
        named = dict(event.structure["kwargs"])
        assert named["nothing"] == {"none": True}
        assert named["flag"] == {"value": 7}
        assert named["record"]["object"] == "Point"
        assert ["count", {"value": 3}] in named["data"]["fields"]
        assert named["named"]["dict"][1] == ["deep", {"list": [{"tensor": "input.named.deep.0"}, {"none": True}]}]

    def test_nested_outputs_are_seen(self, adapter: Adapter) -> None:
        recorder = self.recorded(adapter, "nested")
        head, root = recorder.only("after", "head"), recorder.only("after", "")
        inputs = recorder.only("before", "head").values
        y, x = inputs["input.0.0"], inputs["input.0.1"]
        wanted: dict[str, Any] = {
            "output.0.sum": y + x,
            "output.0.parts.0": y,
            "output.0.parts.1": x,
            "output.0.pair.0": y,
            "output.0.record.x": x,
            "output.0.record.y": y,
            "output.0.data.value": x,
        }
        assert same(head.values, wanted)
        assert same(root.values, wanted)
        assert ["flag", {"value": 7}] in head.structure["dict"]

    def test_keyword_arguments_of_the_net_are_seen(self, adapter: Adapter) -> None:
        net = self.net(adapter, "nested")
        with Recorder(adapter).attach(net) as recorder, adapter.running(net):
            net(x=self.x(adapter, "nested"), scale=None)
        event = recorder.only("before", "")
        assert event.structure["args"] == []
        assert dict(event.structure["kwargs"]) == {"x": {"tensor": "input.x"}, "scale": {"none": True}}
        assert equal_bits(event.values["input.x"], adapter.to_numpy(self.x(adapter, "nested")))

    def test_a_recurrent_layers_tuple_is_seen(self, adapter: Adapter) -> None:
        values = self.recorded(adapter, "recurrent").only("after", "rnn").values
        assert {slot: value.shape for slot, value in values.items()} == {
            "output.0": (16, 5, 4),
            "output.1.0": (2, 16, 4),
            "output.1.1": (2, 16, 4),
        }

    def test_layers_inside_attention_are_seen_in_eval_mode(self, adapter: Adapter) -> None:
        inner = {path for _, path in self.recorded(adapter, "attention").places if path.startswith("block.")}
        assert len(inner) >= 4, f"a fused implementation ran past the layers inside: only {sorted(inner)} ran"

    def test_a_value_is_what_it_was_at_that_moment(self, adapter: Adapter) -> None:
        recorder = self.recorded(adapter, "inplace")
        first = recorder.only("after", "first").values["output.0"]
        second = recorder.only("before", "second").values["input.0"]
        final = recorder.only("after", "second").values["output.0"]
        one, two = np.float32(1), np.float32(2)
        assert np.array_equal(second, first + one)
        assert np.array_equal(final, second + two)

    def test_layers_in_plain_lists_are_seen(self, adapter: Adapter) -> None:
        seen = [path for when, path in self.recorded(adapter, "plain").places if when == "after"]
        assert seen == ["blocks.0", "blocks.1", "table.a", ""]

    @pytest.mark.parametrize(
        ("name", "training"), [*((name, False) for name in RUNNABLE), *((name, True) for name in REPEATABLE)]
    )
    def test_outputs_are_bit_identical_with_and_without(self, adapter: Adapter, name: str, training: bool) -> None:
        net = self.net(adapter, name, training)
        start = _state(adapter, net)
        without = self.run(adapter, net, self.x(adapter, name))
        after_without = _state(adapter, net)
        _restore(adapter, net, start)
        with Recorder(adapter).attach(net) as recorder:
            observed = self.run(adapter, net, self.x(adapter, name))
        assert recorder.events
        assert same(without, observed)
        assert same(after_without, _state(adapter, net)), "running statistics differ"

    @pytest.mark.parametrize("name", ["norm", "layout", "inplace"])
    def test_gradients_are_bit_identical_with_and_without(self, adapter: Adapter, name: str) -> None:
        net = self.net(adapter, name, training=True)
        start = _state(adapter, net)
        without = [adapter.to_numpy(g).copy() for g in self.gradients(net, self.x(adapter, name))]
        _restore(adapter, net, start)
        with Recorder(adapter).attach(net) as recorder:
            observed = [adapter.to_numpy(g).copy() for g in self.gradients(net, self.x(adapter, name))]
        assert recorder.events
        assert len(without) >= 2
        assert any(np.any(gradient) for gradient in without)
        assert len(without) == len(observed)
        assert all(equal_bits(one, other) for one, other in zip(without, observed))

    def test_nothing_is_seen_after_removal_and_removing_twice_is_harmless(self, adapter: Adapter) -> None:
        net = self.net(adapter, "norm")
        calls: list[str] = []
        handle = adapter.observe(net, lambda *_: calls.append("before"), lambda *_: calls.append("after"))
        other = adapter.observe(net, lambda *_: calls.append("other"), lambda *_: None)
        handle.remove()
        handle.remove()
        self.run(adapter, net, self.x(adapter, "norm"))
        assert calls == ["other"]
        other.remove()
        self.run(adapter, net, self.x(adapter, "norm"))
        assert calls == ["other"]

    def test_two_observers_of_one_layer_both_see_each_call(self, adapter: Adapter) -> None:
        net = self.net(adapter, "norm")
        with Recorder(adapter).attach(net) as one, Recorder(adapter).attach(net) as two:
            self.run(adapter, net, self.x(adapter, "norm"))
        assert (
            one.places
            == two.places
            == [
                ("before", ""),
                ("before", "fc"),
                ("after", "fc"),
                ("before", "bn"),
                ("after", "bn"),
                ("after", ""),
            ]
        )

    def test_a_layer_that_raises_has_a_before_and_no_after(self, adapter: Adapter) -> None:
        net = self.net(adapter, "raising")
        with Recorder(adapter).attach(net) as recorder:
            with pytest.raises(ValueError, match="broken layer"):
                self.run(adapter, net, self.x(adapter, "raising"))
            wanted = [("before", ""), ("before", "first"), ("after", "first"), ("before", "bad")]
            assert recorder.places == wanted
            with pytest.raises(ValueError, match="broken layer"):
                self.run(adapter, net, self.x(adapter, "raising"))
            assert recorder.places == wanted * 2
        with pytest.raises(ValueError, match="broken layer"):
            self.run(adapter, net, self.x(adapter, "raising"))
        assert recorder.places == wanted * 2

    @pytest.mark.parametrize("when", ["before", "after"])
    def test_what_a_callback_raises_goes_up_and_the_net_is_whole_again(self, adapter: Adapter, when: str) -> None:
        class Stop(Exception):
            pass

        def stop(*_: object) -> None:
            raise Stop

        def nothing(*_: object) -> None:
            pass

        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        clean = self.run(adapter, net, x)
        layer = dict(adapter.layers(net))["fc"]
        handle = adapter.observe(layer, stop if when == "before" else nothing, stop if when == "after" else nothing)
        try:
            with pytest.raises(Stop):
                self.run(adapter, net, x)
        finally:
            handle.remove()
        assert same(clean, self.run(adapter, net, x))

    def test_what_a_callback_returns_is_ignored(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        clean = self.run(adapter, net, x)
        before: Any = lambda args, kwargs: (("another",), {"x": 1})  # noqa: E731 - returns what it must not, on purpose
        after: Any = lambda args, kwargs, output: "another"  # noqa: E731 - as above
        handle = adapter.observe(net, before, after)
        try:
            assert same(clean, self.run(adapter, net, x))
        finally:
            handle.remove()


def _state(adapter: Adapter, net: object) -> Mapping[str, Any]:
    return {f"{p.layer}/{p.role}": adapter.read(p).copy() for p in adapter.parameters(net)}


def _restore(adapter: Adapter, net: object, state: Mapping[str, Any]) -> None:
    for parameter in adapter.parameters(net):
        adapter.load(parameter, state[f"{parameter.layer}/{parameter.role}"], parameter.dtype)
