"""Checks of `respecified`: copies of layers with other settings or in another precision, and originals left alone."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Optional

import numpy as np
import pytest

from aligner.adapter import Adapter
from aligner.record import Attribute, LayerSpec
from aligner.testing.layer_inputs import inputs
from aligner.testing.layer_settings import NEEDED, SHAPING, another
from aligner.testing.oracles import ORACLES
from aligner.testing.recorder import Recorder
from aligner.testing.supplies import Supplies, equal_bits, same
from aligner.vocabulary import settled

NETS_TO_COPY = ["nested", "inplace", "plain", "norm", "layout", "dropout", "recurrent", "attention"]


class CopyChecks(Supplies):
    """respecified."""

    refused: Collection[str] = ()
    """Kinds of layers that the framework builds with other settings, and does not run."""

    def outputs(self, adapter: Adapter, layer: Any, arrays: Sequence[Any]) -> Mapping[str, Any]:
        """What a layer alone makes of these."""
        with adapter.running(layer):
            return Recorder(adapter).arrays(layer(*(adapter.from_numpy(a, str(a.dtype)) for a in arrays)))

    def weights(self, adapter: Adapter, layer: object) -> Mapping[str, Any]:
        """Copies of the layer's parameters and buffers, by place and role."""
        return {f"{p.layer}/{p.role}": adapter.read(p).copy() for p in adapter.parameters(layer)}

    def test_a_plain_copy_makes_the_same_of_the_same(self, adapter: Adapter) -> None:
        ran, asked = 0, 0
        for layer in self.spec_layers():
            adapter.set_training(layer, False)
            spec, name = adapter.spec(layer), adapter.type_name(layer)
            copy: Any = adapter.respecified(layer, {})
            assert copy is not layer
            assert adapter.type_name(copy) == name
            assert adapter.spec(copy) == spec
            assert same(self.weights(adapter, copy), self.weights(adapter, layer)), name
            arrays = inputs(spec, name)
            if arrays is None:
                continue
            asked += 1
            wanted = self.attempt(adapter, layer, arrays)
            if wanted is not None:
                ran += 1
                if not same(self.outputs(adapter, layer, arrays), wanted):
                    continue  # it draws random numbers in eval mode too
                assert same(self.outputs(adapter, copy, arrays), wanted), name
        assert ran >= 0.75 * asked, f"only {ran} of {asked} layers ran on what their settings ask for"

    def attempt(self, adapter: Adapter, layer: Any, arrays: Sequence[Any]) -> Optional[Mapping[str, Any]]:
        """The outputs, or None where the framework cannot run such a layer here."""
        try:
            return self.outputs(adapter, layer, arrays)
        except Exception:  # an operator that the device lacks raises whatever the framework likes
            return None

    @pytest.mark.parametrize("name", NETS_TO_COPY)
    @pytest.mark.parametrize("training", [True, False])
    def test_a_net_of_the_users_own_is_copied_whole(self, adapter: Adapter, name: str, training: bool) -> None:
        net = self.net(adapter, name, training)
        state = adapter.random_state()
        copy = adapter.respecified(net, {})
        assert adapter.random_state() == state, "copying drew random numbers"
        assert [path for path, _ in adapter.layers(copy)] == [path for path, _ in adapter.layers(net)]
        assert {adapter.training(layer) for _, layer in adapter.layers(copy)} == {training}
        assert not {id(layer) for _, layer in adapter.layers(copy)} & {id(layer) for _, layer in adapter.layers(net)}
        adapter.set_training(net, False)
        adapter.set_training(copy, False)
        assert same(self.run(adapter, net, self.x(adapter, name)), self.run(adapter, copy, self.x(adapter, name)))

    @pytest.mark.parametrize("name", NETS_TO_COPY)
    def test_copy_and_original_share_no_values(self, adapter: Adapter, name: str) -> None:
        net = self.make_net(name)
        kept = self.weights(adapter, net)
        copy = adapter.respecified(net, {})
        assert same(self.weights(adapter, copy), kept)
        self._shift(adapter, copy)
        assert same(self.weights(adapter, net), kept)
        moved = self.weights(adapter, copy)
        self._shift(adapter, net)
        assert same(self.weights(adapter, copy), moved)

    def _shift(self, adapter: Adapter, net: object) -> None:
        for parameter in adapter.parameters(net):
            array: Any = adapter.read(parameter).copy()
            adapter.load(parameter, array + array.dtype.type(1), parameter.dtype)

    def test_running_the_copy_leaves_the_originals_statistics(self, adapter: Adapter) -> None:
        net = self.net(adapter, "norm", training=True)
        kept = self.weights(adapter, net)
        copy = adapter.respecified(net, {})
        self.run(adapter, copy, self.x(adapter, "norm"))
        assert same(self.weights(adapter, net), kept)
        assert not same(self.weights(adapter, copy), kept)

    def test_the_copy_tells_nobody(self, adapter: Adapter) -> None:
        net, x = self.net(adapter, "norm"), self.x(adapter, "norm")
        with Recorder(adapter).attach(net) as recorder:
            copy = adapter.respecified(net, {})
            fc = adapter.respecified(dict(adapter.layers(net))["fc"], {})
            self.run(adapter, copy, x)
            self.run(adapter, fc, x)
            assert recorder.events == []
            self.run(adapter, net, x)
        assert len(recorder.events) == 6

    def test_settings_change_one_at_a_time(self, adapter: Adapter) -> None:
        possible, impossible = set(), []
        for layer in self.spec_layers():
            spec = adapter.spec(layer)
            for word, old in spec.attributes.items():
                for value in another(spec.kind, word, old):
                    if self._changed(adapter, layer, spec, {word: value}):
                        possible.add((spec.kind, word))
                    else:
                        impossible.append((spec.kind, word, value))
        kinds = {adapter.spec(layer).kind for layer in self.spec_layers()}
        missing = {(kind, word) for kind, word in NEEDED if kind in kinds} - possible
        assert not missing, f"settings that can never be changed: {sorted(missing)}"
        never = {(kind, word) for kind, word, _ in impossible} - possible
        assert len(possible) >= 2 * len(never), f"settings that can never be changed: {sorted(never)}"

    def _changed(self, adapter: Adapter, layer: Any, spec: LayerSpec, changes: Mapping[str, Attribute]) -> bool:
        """Whether a copy with the change could be made; if so, it shows that change and no other."""
        kept = self.weights(adapter, layer)
        reason = None
        try:
            copy = adapter.respecified(layer, changes)
        except ValueError as error:
            reason = str(error)
        assert adapter.spec(layer) == spec, "the original was changed"
        assert same(self.weights(adapter, layer), kept), "the original's weights were changed"
        if reason is not None:
            assert len(reason) > 10
            return False
        assert adapter.spec(copy) == LayerSpec(spec.kind, settled(spec.kind, {**spec.attributes, **changes}))
        weights = self.weights(adapter, copy)
        assert all(equal_bits(weights[place], kept[place]) for place in weights.keys() & kept.keys())
        return True

    @pytest.mark.parametrize("kind", sorted({kind for kind, _ in ORACLES}))
    def test_the_copy_computes_with_the_change(self, adapter: Adapter, kind: str) -> None:
        layers = [layer for layer in self.spec_layers() if adapter.spec(layer).kind == kind]
        for layer in layers[:1]:
            adapter.set_training(layer, False)
            spec, name = adapter.spec(layer), adapter.type_name(layer)
            arrays = inputs(spec, name)
            assert arrays is not None
            for (of, _), oracle in ORACLES.items():
                if of == kind:
                    copy = adapter.respecified(layer, oracle.changes)
                    if kind in self.refused:
                        with pytest.raises(ValueError, match="must be"):
                            self.outputs(adapter, copy, arrays)
                        continue
                    found = self.outputs(adapter, copy, arrays)["output.0"]
                    weights = {p.role: adapter.read(p) for p in adapter.parameters(copy)}
                    wanted = oracle.compute(arrays[0].astype(np.float64), weights, adapter.spec(copy).attributes)
                    np.testing.assert_allclose(found, wanted, rtol=2e-4, atol=2e-5, err_msg=str(oracle.changes))

    def test_several_settings_change_together(self, adapter: Adapter) -> None:
        for layer in self.spec_layers():
            spec = adapter.spec(layer)
            if spec.kind == "BatchNorm":
                changes: Mapping[str, Attribute] = {"eps": 0.5, "momentum": 0.25}
            elif spec.kind == "Conv2d":
                changes = {"stride": (2, 2), "padding": ((2, 2), (0, 0)), "dilation": (1, 2)}
            else:
                continue
            assert self._changed(adapter, layer, spec, changes), spec

    def test_a_bias_can_be_taken_away_and_given_back(self, adapter: Adapter) -> None:
        net = self.net(adapter, "norm")
        fc, x = dict(adapter.layers(net))["fc"], self.x(adapter, "norm")
        without: Any = adapter.respecified(fc, {"bias": False})
        (weight,) = adapter.parameters(without)
        array: Any = adapter.to_numpy(x).copy()
        values: Any = adapter.read(weight)
        product = array.astype(np.float64) @ values.T.astype(np.float64)
        np.testing.assert_allclose(self.outputs(adapter, without, [array])["output.0"], product, rtol=1e-4, atol=1e-5)
        again: Any = adapter.respecified(without, {"bias": True})
        table = {parameter.role: parameter for parameter in adapter.parameters(again)}
        assert set(table) == {"weight", "bias"}
        assert not np.any(adapter.read(table["bias"]))
        adapter.load(table["bias"], np.full(4, 2, np.float32), "float32")
        np.testing.assert_allclose(self.outputs(adapter, again, [array])["output.0"], product + 2, rtol=1e-4, atol=1e-5)

    def test_what_cannot_be_is_refused_with_a_reason(self, adapter: Adapter) -> None:
        for layer in self.spec_layers():
            spec = adapter.spec(layer)
            assert not self._changed(adapter, layer, spec, {"colour": 3})
            shaping = SHAPING if any(parameter.trainable for parameter in adapter.parameters(layer)) else {}
            for word, value in shaping.items():
                if spec.attributes.get(word, value) != value:
                    assert not self._changed(adapter, layer, spec, {word: value}), f"{spec} with {word}={value}"

    @pytest.mark.parametrize("dtype", ["float32", "float64"])
    def test_a_copy_computes_in_the_type_it_is_asked_for(self, adapter: Adapter, dtype: str) -> None:
        if dtype not in self.dtypes:
            pytest.skip(f"the framework holds no readable {dtype} tensors here")
        net = self.net(adapter, "norm")
        adapter.cast(net, "float16")
        fc = dict(adapter.layers(net))["fc"]
        kept = self.weights(adapter, fc)
        copy: Any = adapter.respecified(fc, {}, dtype)
        wide = self.weights(adapter, copy)
        assert {place: array.astype(dtype).tobytes() for place, array in kept.items()} == {
            place: array.tobytes() for place, array in wide.items()
        }
        assert same(self.weights(adapter, fc), kept)
        x = np.random.default_rng(3).standard_normal((8, 4)).astype(dtype)
        output = self.outputs(adapter, copy, [x])["output.0"]
        assert str(output.dtype) == dtype
        wanted = x.astype(np.float64) @ wide["/weight"].astype(np.float64).T + wide["/bias"]
        tolerance = 1e-5 if dtype == "float32" else 1e-12
        np.testing.assert_allclose(output, wanted, rtol=tolerance, atol=tolerance)

    def test_settings_and_type_change_together(self, adapter: Adapter) -> None:
        for layer in self.spec_layers():
            if adapter.spec(layer).kind == "LayerNorm":
                adapter.cast(layer, "float16")
                copy = adapter.respecified(layer, {"eps": 0.5}, "float32")
                assert adapter.spec(copy).attributes["eps"] == 0.5
                assert {p.dtype for p in adapter.parameters(copy)} == {"float32"}
                assert {p.dtype for p in adapter.parameters(layer)} == {"float16"}
