"""Checks of `intervene`: what a layer runs on, what the net goes on with, and that nothing else changes."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any, Optional

import numpy as np
import pytest

from aligner.adapter import Adapter, Arguments, Given, Handle, Made
from aligner.testing.nets import NETS, Box, Point
from aligner.testing.recorder import Recorder
from aligner.testing.supplies import Supplies, equal_bits, same

RUNNABLE = sorted(set(NETS) - {"raising"})
REPEATABLE = ["inplace", "layout", "nested", "norm", "plain"]


class InterventionChecks(Supplies):
    """intervene."""

    def values(self, adapter: Adapter, seed: int, shape: tuple[int, ...] = (3, 4)) -> tuple[Any, Any]:
        """Numbers and a tensor of them."""
        array = np.random.default_rng(100 + seed).standard_normal(shape).astype(np.float32)
        return array, adapter.from_numpy(array, "float32")

    def intervened(self, adapter: Adapter, place: str, given: Given, made: Made) -> tuple[Recorder, Mapping[str, Any]]:
        """The events and the outputs of one run of "nested" with an intervention at a layer."""
        net = self.net(adapter, "nested")
        layer = dict(adapter.layers(net))[place]
        with Recorder(adapter).attach(net) as recorder, _Installed(adapter.intervene(layer, given, made)):
            outputs = self.run(adapter, net, self.x(adapter, "nested"))
        return recorder, outputs

    def test_a_layer_runs_on_the_inputs_it_is_given(self, adapter: Adapter) -> None:
        array, tensor = self.values(adapter, 1)
        seen: list[Any] = []

        def made(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
            seen.append((adapter.to_numpy(args[0]).copy(), dict(kwargs), adapter.to_numpy(output).copy()))
            return output

        recorder, _ = self.intervened(adapter, "body.1", lambda args, kwargs: ((tensor,), kwargs), made)
        wanted = np.maximum(array, np.float32(0))
        ((ran_on, named, output),) = seen
        assert equal_bits(ran_on, array)
        assert named == {}
        assert equal_bits(output + np.float32(0), wanted)
        assert equal_bits(recorder.only("after", "body").values["output.0"] + np.float32(0), wanted)

    def test_the_net_goes_on_with_the_output_it_is_handed(self, adapter: Adapter) -> None:
        array, tensor = self.values(adapter, 2)
        recorder, _ = self.intervened(adapter, "body.0", _as_given, lambda args, kwargs, output: tensor)
        assert equal_bits(recorder.only("before", "body.1").values["input.0"], array)
        output = recorder.only("after", "body.1").values["output.0"]
        assert equal_bits(output + np.float32(0), np.maximum(array, np.float32(0)))

    def test_nested_and_named_arguments_can_be_replaced(self, adapter: Adapter) -> None:
        (a, y), (b, x) = self.values(adapter, 3), self.values(adapter, 4)

        def given(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
            named = {"left": x, "deep": [y, None]}
            return ((y, x), [y]), {**kwargs, "named": named, "record": Point(x, y), "data": Box(y, 4), "flag": 8}

        recorder, outputs = self.intervened(adapter, "head", given, _as_made)
        wanted = {"sum": a + b, "parts.0": a, "parts.1": b, "pair.0": a, "record.x": b, "record.y": a, "data.value": a}
        assert same(outputs, {f"output.0.{slot}": array for slot, array in wanted.items()})
        structure = recorder.only("after", "head").structure["dict"]
        assert ["flag", {"value": 8}] in structure

    def test_keyword_arguments_alone_can_be_replaced(self, adapter: Adapter) -> None:
        array, tensor = self.values(adapter, 5)
        net, x = self.net(adapter, "nested"), self.x(adapter, "nested")
        for kwargs in ({"x": x}, {"x": x, "scale": None}):
            given: Given = lambda args, kwargs: (args, {**kwargs, "x": tensor})  # noqa: E731 - one expression
            with _Installed(adapter.intervene(net, given, _as_made)), adapter.running(net):
                outputs = Recorder(adapter).arrays(net(**kwargs))
            assert equal_bits(outputs["output.0.parts.1"], array)

    def test_positional_arguments_may_become_named_ones(self, adapter: Adapter) -> None:
        array, tensor = self.values(adapter, 6)
        net, x = self.net(adapter, "nested"), self.x(adapter, "nested")
        with _Installed(adapter.intervene(net, lambda args, kwargs: ((), {"x": tensor}), _as_made)):
            assert equal_bits(self.run(adapter, net, x)["output.0.parts.1"], array)
        with _Installed(adapter.intervene(net, lambda args, kwargs: ((tensor,), {}), _as_made)), adapter.running(net):
            assert equal_bits(Recorder(adapter).arrays(net(x=x))["output.0.parts.1"], array)

    @pytest.mark.parametrize("form", ["none", "alone", "tuple", "list", "dict", "nested", "empty"])
    def test_any_structure_can_be_handed_on(self, adapter: Adapter, form: str) -> None:
        _, tensor = self.values(adapter, 7)
        forms: dict[str, object] = {
            "none": None,
            "alone": tensor,
            "tuple": (tensor,),
            "list": [tensor],
            "dict": {"a": tensor},
            "nested": (tensor, (None, [tensor, {"b": 3}])),
            "empty": (),
        }
        net, x = self.net(adapter, "nested"), self.x(adapter, "nested")
        head = dict(adapter.layers(net))["head"]
        made: Made = lambda args, kwargs, output: forms[form]  # noqa: E731 - one expression
        with _Installed(adapter.intervene(head, _as_given, made)), adapter.running(net):
            output = net(x)
        assert type(output) is type(forms[form])
        assert same(Recorder(adapter).arrays(output), Recorder(adapter).arrays(forms[form]))

    def test_each_call_of_a_shared_layer_is_told_of(self, adapter: Adapter) -> None:
        array, tensor = self.values(adapter, 8)
        calls: list[str] = []

        def given(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
            calls.append("given")
            return args, kwargs

        def made(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
            calls.append("made")
            return tensor if len(calls) == 4 else output

        recorder, outputs = self.intervened(adapter, "shared", given, made)
        assert calls == ["given", "made"] * 2
        assert equal_bits(outputs["output.0.parts.0"], array)
        own = [event.values["output.0"] for event in recorder.events if event.place == ("after", "shared")]
        assert not np.array_equal(own[0], own[1])

    def test_observers_see_what_the_layer_ran_on_and_what_it_made(self, adapter: Adapter) -> None:
        (array, tensor), (_, other) = self.values(adapter, 9), self.values(adapter, 10)
        recorder, _ = self.intervened(adapter, "body.1", lambda args, kwargs: ((tensor,), kwargs), lambda *_: other)
        assert equal_bits(recorder.only("before", "body.1").values["input.0"], array)
        output = recorder.only("after", "body.1").values["output.0"]
        assert equal_bits(output + np.float32(0), np.maximum(array, np.float32(0)))

    def test_an_observer_that_came_later_sees_the_same(self, adapter: Adapter) -> None:
        (array, tensor), (_, other) = self.values(adapter, 9), self.values(adapter, 10)
        net = self.net(adapter, "nested")
        relu = dict(adapter.layers(net))["body.1"]
        handle = adapter.intervene(relu, lambda args, kwargs: ((tensor,), kwargs), lambda *_: other)
        with _Installed(handle), Recorder(adapter).attach(net) as recorder:
            self.run(adapter, net, self.x(adapter, "nested"))
        assert equal_bits(recorder.only("before", "body.1").values["input.0"], array)
        output = recorder.only("after", "body.1").values["output.0"]
        assert equal_bits(output + np.float32(0), np.maximum(array, np.float32(0)))

    def test_several_interventions_follow_each_other(self, adapter: Adapter) -> None:
        arrays, tensors = zip(*(self.values(adapter, seed) for seed in range(4)))
        net = self.net(adapter, "nested")
        relu = dict(adapter.layers(net))["body.1"]
        seen: list[Any] = []

        def intervention(number: int) -> tuple[Given, Made]:
            def given(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
                seen.append(adapter.to_numpy(args[0]).copy())
                return (tensors[number],), kwargs

            def made(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
                seen.append(adapter.to_numpy(output).copy())
                return tensors[2 + number]

            return given, made

        with ExitStack() as stack, Recorder(adapter).attach(net) as recorder:
            for number in range(2):
                stack.enter_context(_Installed(adapter.intervene(relu, *intervention(number))))
            self.run(adapter, net, self.x(adapter, "nested"))
        before = recorder.only("after", "body.0").values["output.0"]
        wanted = [before, arrays[0], np.maximum(arrays[1], np.float32(0)), arrays[2]]
        assert len(seen) == 4
        assert all(equal_bits(one + np.float32(0), other + np.float32(0)) for one, other in zip(seen, wanted))
        assert equal_bits(recorder.only("after", "body").values["output.0"], arrays[3])

    @pytest.mark.parametrize(
        ("name", "training"), [*((name, False) for name in RUNNABLE), *((name, True) for name in REPEATABLE)]
    )
    def test_handing_on_what_came_changes_no_bit(self, adapter: Adapter, name: str, training: bool) -> None:
        net, x = self.net(adapter, name, training), self.x(adapter, name)
        without = self.run(adapter, net, x)
        calls: list[str] = []

        def made(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
            calls.append("made")
            return output

        with ExitStack() as stack:
            for _, layer in adapter.layers(net):
                stack.enter_context(_Installed(adapter.intervene(layer, _as_given, made)))
            assert same(without, self.run(adapter, net, self.x(adapter, name)))
        assert len(calls) >= 2
        assert same(without, self.run(adapter, net, self.x(adapter, name)))

    @pytest.mark.parametrize("name", ["norm", "layout"])
    def test_gradients_are_those_of_the_net_alone(self, adapter: Adapter, name: str) -> None:
        net = self.net(adapter, name)
        without = [adapter.to_numpy(g).copy() for g in self.gradients(net, self.x(adapter, name))]
        with ExitStack() as stack:
            for _, layer in adapter.layers(net):
                stack.enter_context(_Installed(adapter.intervene(layer, _as_given, _as_made)))
            within = [adapter.to_numpy(g).copy() for g in self.gradients(net, self.x(adapter, name))]
        assert len(within) == len(without) >= 2
        assert all(equal_bits(one, other) for one, other in zip(without, within))

    def test_nothing_is_replaced_after_removal_and_removing_twice_is_harmless(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        clean = self.run(adapter, net, x)
        _, tensor = self.values(adapter, 11, NETS["norm"].shape)
        handle = adapter.intervene(net, _as_given, lambda *_: tensor)
        other = adapter.intervene(net, lambda args, kwargs: ((tensor,), kwargs), _as_made)
        assert not same(clean, self.run(adapter, net, x))
        handle.remove()
        handle.remove()
        assert not same(clean, self.run(adapter, net, x))
        other.remove()
        assert same(clean, self.run(adapter, net, x))

    @pytest.mark.parametrize("when", ["given", "made"])
    def test_it_may_be_removed_by_its_own_callback(self, adapter: Adapter, when: str) -> None:
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        clean = self.run(adapter, net, x)
        handles: list[Handle] = []
        calls: list[str] = []

        def leave(now: str) -> None:
            calls.append(now)
            if now == when:
                handles[0].remove()

        def given(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
            leave("given")
            return args, kwargs

        def made(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
            leave("made")
            return output

        handles.append(adapter.intervene(dict(adapter.layers(net))["fc"], given, made))
        assert same(clean, self.run(adapter, net, x))
        assert when in calls
        count = len(calls)
        assert same(clean, self.run(adapter, net, x))
        assert len(calls) == count

    @pytest.mark.parametrize("when", ["given", "made"])
    def test_what_it_raises_goes_up_and_the_net_is_whole_again(self, adapter: Adapter, when: str) -> None:
        class Stop(Exception):
            pass

        def stop(*_: object) -> Any:
            raise Stop

        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        clean = self.run(adapter, net, x)
        layer = dict(adapter.layers(net))["fc"]
        handle = adapter.intervene(layer, stop if when == "given" else _as_given, stop if when == "made" else _as_made)
        with _Installed(handle), pytest.raises(Stop):
            self.run(adapter, net, x)
        assert same(clean, self.run(adapter, net, x))

    def test_a_layer_that_raises_makes_nothing(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "raising"), self.x(adapter, "raising")
        calls: list[str] = []

        def given(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
            calls.append("given")
            return args, kwargs

        def made(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
            calls.append("made")
            return output

        with _Installed(adapter.intervene(dict(adapter.layers(net))["bad"], given, made)):
            for _ in range(2):
                with pytest.raises(ValueError, match="broken layer"):
                    self.run(adapter, net, x)
        assert calls == ["given", "given"]

    def test_layers_in_plain_lists_can_be_intervened_with(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "plain"), self.x(adapter, "plain")
        array, tensor = self.values(adapter, 12)
        with _Installed(adapter.intervene(dict(adapter.layers(net))["table.a"], _as_given, lambda *_: tensor)):
            assert equal_bits(self.run(adapter, net, x)["output.0"], array)


class _Installed:
    """A handle that is removed when the block ends."""

    def __init__(self, handle: Handle) -> None:
        self._handle: Optional[Handle] = handle

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        if self._handle is not None:
            self._handle.remove()


def _as_given(args: tuple[object, ...], kwargs: Mapping[str, object]) -> Arguments:
    return args, kwargs


def _as_made(args: tuple[object, ...], kwargs: Mapping[str, object], output: object) -> object:
    return output
