"""Checks of `overwrite`: one tensor gets other values, for whoever keeps it, and nothing else does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aligner.adapter import Adapter
from aligner.testing.recorder import Recorder
from aligner.testing.supplies import Supplies, equal_bits


class OverwriteChecks(Supplies):
    """overwrite."""

    def pair(self, adapter: Adapter, shape: tuple[int, ...], dtype: str = "float32") -> tuple[Any, Any, Any, Any]:
        """Two arrays and tensors of them."""
        generator = np.random.default_rng(5)
        one, other = (generator.integers(-9, 9, shape).astype(dtype) for _ in range(2))
        return one, other, adapter.from_numpy(one, dtype), adapter.from_numpy(other, dtype)

    @pytest.mark.parametrize("shape", [(3, 5), (), (0, 2), (1,)], ids=str)
    @pytest.mark.parametrize("dtype", ["float32", "int32", "float16"])
    def test_whoever_keeps_the_tensor_sees_the_new_values(
        self, adapter: Adapter, shape: tuple[int, ...], dtype: str
    ) -> None:
        _, wanted, tensor, other = self.pair(adapter, shape, dtype)
        holder = [tensor]
        adapter.overwrite(tensor, other)
        assert holder[0] is tensor
        assert equal_bits(adapter.to_numpy(holder[0]), wanted)
        assert adapter.dtype(tensor) == dtype

    def test_the_other_tensor_stays_its_own(self, adapter: Adapter) -> None:
        _, wanted, tensor, other = self.pair(adapter, (3, 5))
        adapter.overwrite(tensor, other)
        self.add_in_place(tensor, 1.0)
        assert equal_bits(adapter.to_numpy(other), wanted)
        self.add_in_place(other, 5.0)
        assert equal_bits(adapter.to_numpy(tensor), wanted + np.float32(1))

    def test_the_tensor_of_which_it_is_a_view_stays_as_it_is(self, adapter: Adapter) -> None:
        kept, wanted, base, _ = self.pair(adapter, (3, 5))
        view = self.transposed(base)
        adapter.overwrite(view, adapter.from_numpy(np.ascontiguousarray(wanted.T), "float32"))
        assert equal_bits(adapter.to_numpy(base), kept)
        assert equal_bits(np.ascontiguousarray(adapter.to_numpy(view)), np.ascontiguousarray(wanted.T))

    def test_a_view_of_it_stays_as_it_is(self, adapter: Adapter) -> None:
        kept, wanted, base, other = self.pair(adapter, (3, 5))
        view = self.transposed(base)
        adapter.overwrite(base, other)
        assert equal_bits(adapter.to_numpy(base), wanted)
        assert equal_bits(np.ascontiguousarray(adapter.to_numpy(view)), np.ascontiguousarray(kept.T))

    def test_values_may_come_from_a_view(self, adapter: Adapter) -> None:
        _, wanted, tensor, other = self.pair(adapter, (4, 4))
        adapter.overwrite(tensor, self.transposed(other))
        assert equal_bits(np.ascontiguousarray(adapter.to_numpy(tensor)), np.ascontiguousarray(wanted.T))

    def test_other_shapes_and_dtypes_are_refused(self, adapter: Adapter) -> None:
        kept, _, tensor, _ = self.pair(adapter, (2, 3))
        for shape, dtype in (((3, 2), "float32"), ((6,), "float32"), ((2, 3), "float16"), ((1, 3), "float32")):
            other = adapter.from_numpy(np.ones(shape, dtype), dtype)
            with pytest.raises(ValueError) as error:
                adapter.overwrite(tensor, other)
            assert len(str(error.value)) > 10
        assert equal_bits(adapter.to_numpy(tensor), kept)

    def test_parameters_are_refused(self, adapter: Adapter) -> None:
        for parameter in adapter.parameters(self.make_net("norm")):
            if not parameter.trainable:
                continue
            kept = adapter.read(parameter).copy()
            other = adapter.from_numpy(np.full(parameter.shape, 7, kept.dtype), parameter.dtype)
            with pytest.raises(ValueError):
                adapter.overwrite(parameter.tensor, other)
            assert equal_bits(adapter.read(parameter), kept)

    def test_a_value_in_the_middle_of_a_run_can_be_overwritten(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "nested"), self.x(adapter, "nested")
        layers = dict(adapter.layers(net))
        array = np.random.default_rng(6).standard_normal((3, 4)).astype(np.float32)

        def after(args: object, kwargs: object, output: object) -> None:
            adapter.overwrite(output, adapter.from_numpy(array, "float32"))

        handle = adapter.observe(layers["body"], lambda *_: None, after)
        try:
            with Recorder(adapter).attach(net) as recorder:
                self.run(adapter, net, x)
        finally:
            handle.remove()
        first = next(event for event in recorder.events if event.place == ("before", "shared"))
        assert equal_bits(first.values["input.0"], array)

    def test_an_argument_can_be_overwritten_where_the_net_keeps_it(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "nested"), self.x(adapter, "nested")
        layers = dict(adapter.layers(net))
        array = np.random.default_rng(7).standard_normal((3, 4)).astype(np.float32)

        def before(args: tuple[object, ...], kwargs: object) -> None:
            adapter.overwrite(args[0], adapter.from_numpy(array, "float32"))

        handle = adapter.observe(layers["body.0"], before, lambda *_: None)
        try:
            outputs = self.run(adapter, net, x)
        finally:
            handle.remove()
        assert equal_bits(outputs["output.0.parts.1"], array)
