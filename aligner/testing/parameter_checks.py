"""Checks of `parameters`, `read` and `load`: canonical names and layouts whatever the framework calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from aligner.adapter import Adapter, Parameter
from aligner.testing.supplies import Supplies, equal_bits


class ParameterChecks(Supplies):
    """parameters, read, load."""

    def table(self, adapter: Adapter, net: Any) -> dict[tuple[str, str], Parameter]:
        """The net's parameters by layer and role."""
        found = list(adapter.parameters(net))
        table = {(parameter.layer, parameter.role): parameter for parameter in found}
        assert len(table) == len(found), "a layer has a role twice"
        return table

    def test_names_are_canonical(self, adapter: Adapter) -> None:
        table = self.table(adapter, self.make_net("norm"))
        # torch counts batches in a buffer that other frameworks have no use for.
        table.pop(("bn", "num_batches_tracked"), None)
        trained = [("fc", "weight"), ("fc", "bias"), ("bn", "weight"), ("bn", "bias")]
        statistics = [("bn", "running_mean"), ("bn", "running_var")]
        assert sorted(table) == sorted(trained + statistics)
        assert all(table[place].trainable for place in trained)
        assert not any(table[place].trainable for place in statistics)

    def test_layers_of_parameters_are_layers_of_the_net(self, adapter: Adapter) -> None:
        for name in ("nested", "plain", "recurrent", "attention", "layout"):
            net = self.make_net(name)
            paths = {path for path, _ in adapter.layers(net)}
            owners = {parameter.layer for parameter in adapter.parameters(net)}
            assert owners
            assert owners <= paths

    def test_a_shared_layers_parameters_stand_once(self, adapter: Adapter) -> None:
        table = self.table(adapter, self.make_net("nested"))
        wanted = [(layer, role) for layer in ("body.0", "shared") for role in ("bias", "weight")]
        assert sorted(table) == wanted

    def test_parameters_of_layers_in_plain_lists_are_there(self, adapter: Adapter) -> None:
        table = self.table(adapter, self.make_net("plain"))
        assert {layer for layer, _ in table} == {"blocks.0", "blocks.1", "table.a"}

    def test_layouts_are_canonical(self, adapter: Adapter) -> None:
        table = self.table(adapter, self.make_net("layout"))
        assert {place: parameter.shape for place, parameter in table.items()} == {
            ("conv", "weight"): (3, 2, 3),
            ("conv", "bias"): (3,),
            ("act", "weight"): (1,),
            ("table", "weight"): (5, 2),
        }
        for parameter in table.values():
            assert adapter.read(parameter).shape == parameter.shape
            assert parameter.dtype == "float32"
            assert parameter.name

    def test_weights_read_are_those_the_layer_computes_with(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "layout"), self.x(adapter, "layout")
        table = self.table(adapter, net)
        loaded = {place: _values(parameter.shape, seed) for seed, (place, parameter) in enumerate(table.items())}
        for place, parameter in table.items():
            adapter.load(parameter, loaded[place], "float32")
        out = self.run(adapter, net, x)["output.0"]
        wanted = _conv1d(adapter.to_numpy(x), loaded["conv", "weight"], loaded["conv", "bias"])
        wanted = np.where(wanted > 0, wanted, wanted * loaded["act", "weight"])
        np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)

    @pytest.mark.parametrize("name", ["norm", "layout", "recurrent", "attention", "plain"])
    def test_what_is_loaded_is_read_back(self, adapter: Adapter, name: str) -> None:
        net = self.make_net(name)
        wanted = {}
        for seed, (place, parameter) in enumerate(self.table(adapter, net).items()):
            if parameter.dtype == "float32":
                wanted[place] = _values(parameter.shape, seed)
                adapter.load(parameter, wanted[place], "float32")
        assert wanted
        for place, parameter in self.table(adapter, net).items():
            if place in wanted:
                assert equal_bits(adapter.read(parameter), wanted[place])

    def test_loading_moves_values_into_the_parameter_that_is_there(self, adapter: Adapter) -> None:
        net = self.make_net("norm")
        parameter = self.table(adapter, net)["fc", "weight"]
        adapter.load(parameter, np.ones((4, 4), np.float32), "float32")
        again = self.table(adapter, net)["fc", "weight"]
        assert again.tensor is parameter.tensor
        assert again.trainable

    def test_other_dtypes_are_converted_to_the_parameters_own(self, adapter: Adapter) -> None:
        parameter = self.table(adapter, self.make_net("norm"))["fc", "bias"]
        adapter.load(parameter, np.array([1, 2, 3, 4], np.float64), "float64")
        assert equal_bits(adapter.read(parameter), np.array([1, 2, 3, 4], np.float32))
        adapter.load(parameter, np.array([0x3F80, 0x4000, 0xC040, 0], np.uint16), "bfloat16")
        assert equal_bits(adapter.read(parameter), np.array([1, 2, -3, 0], np.float32))

    def test_another_shape_is_refused(self, adapter: Adapter) -> None:
        parameter = self.table(adapter, self.make_net("norm"))["fc", "bias"]
        kept = adapter.read(parameter).copy()
        with pytest.raises(ValueError, match="fc"):
            adapter.load(parameter, np.ones((1, 4), np.float32), "float32")
        assert equal_bits(adapter.read(parameter), kept)


def _values(shape: tuple[int, ...], seed: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _conv1d(x: Any, weight: Any, bias: Any) -> Any:
    width = weight.shape[2]
    columns = [np.einsum("nck,ock->no", x[:, :, i : i + width], weight) for i in range(x.shape[2] - width + 1)]
    return np.stack(columns, axis=2) + bias[:, None]
