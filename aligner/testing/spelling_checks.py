"""Checks of `expression` and `preamble`: Python that builds a layer like the one in hand."""

from __future__ import annotations

from typing import Any

import pytest

from aligner.adapter import Adapter
from aligner.testing.supplies import Supplies


class SpellingChecks(Supplies):
    """expression, preamble."""

    def test_what_is_spelled_builds_a_layer_with_the_same_settings(self, adapter: Adapter) -> None:
        names: dict[str, Any] = {}
        exec(adapter.preamble(), names)
        kinds, spelled, unspelled = set(), set(), []
        for layer in self.spec_layers():
            spec = adapter.spec(layer)
            kinds.add(spec.kind)
            state = adapter.random_state()
            try:
                text = adapter.expression(layer)
            except ValueError as error:
                unspelled.append((adapter.type_name(layer), str(error)))
                continue
            assert adapter.random_state() == state, "spelling drew random numbers"
            assert "\n" not in text
            assert adapter.spec(eval(text, dict(names))) == spec, text
            spelled.add(spec.kind)
        assert all(reason for _, reason in unspelled)
        assert len(spelled) >= 0.8 * len(kinds), f"not spelled: {unspelled}"

    def test_changed_settings_are_spelled(self, adapter: Adapter) -> None:
        names: dict[str, Any] = {}
        exec(adapter.preamble(), names)
        for layer in self.spec_layers():
            spec = adapter.spec(layer)
            if spec.kind in ("BatchNorm", "LayerNorm", "GroupNorm"):
                copy = adapter.respecified(layer, {"eps": 0.25})
                text = adapter.expression(copy)
                assert "0.25" in text
                assert adapter.spec(eval(text, dict(names))) == adapter.spec(copy)

    def test_a_class_of_the_users_is_not_spelled(self, adapter: Adapter) -> None:
        net = self.make_net("nested")
        for layer in (net, dict(adapter.layers(net))["head"]):
            with pytest.raises(ValueError) as error:
                adapter.expression(layer)
            assert type(layer).__name__ in str(error.value)

    def test_the_preamble_is_imports_alone(self, adapter: Adapter) -> None:
        lines = adapter.preamble().splitlines()
        assert lines
        assert all(line.startswith(("import ", "from ")) for line in lines if line)
