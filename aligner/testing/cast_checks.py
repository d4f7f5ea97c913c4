"""Checks of `cast`: a net in another precision, exact where the precision is wider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from aligner.adapter import Adapter
from aligner.testing.supplies import Supplies, equal_bits


class CastChecks(Supplies):
    """cast."""

    def floats(self, adapter: Adapter, net: object) -> Mapping[str, Any]:
        """Copies of the floating parameters and buffers, by place and role."""
        arrays = {f"{p.layer}/{p.role}": adapter.read(p).copy() for p in adapter.parameters(net)}
        return {place: array for place, array in arrays.items() if array.dtype.kind == "f"}

    @pytest.mark.parametrize("name", ["norm", "layout", "plain", "recurrent", "attention", "nested"])
    def test_there_and_back_is_exact(self, adapter: Adapter, name: str) -> None:
        net = self.make_net(name)
        before = self.floats(adapter, net)
        others = {p.name: p.dtype for p in adapter.parameters(net) if "float" not in p.dtype}
        adapter.cast(net, "float64")
        wide = self.floats(adapter, net)
        assert wide.keys() == before.keys() != set()
        for place, array in before.items():
            assert equal_bits(wide[place], array.astype(np.float64)), place
        adapter.cast(net, "float32")
        after = self.floats(adapter, net)
        assert all(equal_bits(after[place], array) for place, array in before.items())
        assert {p.name: p.dtype for p in adapter.parameters(net) if "float" not in p.dtype} == others

    @pytest.mark.parametrize("dtype", ["float16", "float64"])
    def test_the_net_computes_in_that_type(self, adapter: Adapter, dtype: str) -> None:
        net = self.net(adapter, "plain")
        adapter.cast(net, dtype)
        weights = self.floats(adapter, net)
        x = np.random.default_rng(0).standard_normal((3, 4)).astype(dtype)
        with adapter.running(net):
            output: Any = adapter.to_numpy(net(adapter.from_numpy(x, dtype)))
        assert str(output.dtype) == dtype
        wanted = x.astype(np.float64)
        for layer in ("blocks.0", "blocks.1", "table.a"):
            wanted = wanted @ weights[f"{layer}/weight"].astype(np.float64).T + weights[f"{layer}/bias"]
        tolerance = 2e-2 if dtype == "float16" else 1e-12
        np.testing.assert_allclose(output, wanted, rtol=tolerance, atol=tolerance)

    def test_parameters_keep_their_names_and_owners(self, adapter: Adapter) -> None:
        net = self.make_net("norm")
        before = [(p.name, p.layer, p.role, p.trainable, p.buffer) for p in adapter.parameters(net)]
        adapter.cast(net, "float16")
        assert [(p.name, p.layer, p.role, p.trainable, p.buffer) for p in adapter.parameters(net)] == before
