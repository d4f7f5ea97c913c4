"""Checks of paths, types, specs and cautions: what the adapter says about a net that does not run."""

from __future__ import annotations

import pytest

from aligner import messages
from aligner.adapter import Adapter
from aligner.testing.nets import NETS
from aligner.testing.supplies import Supplies
from aligner.vocabulary import KINDS


class LayerChecks(Supplies):
    """layers, type_name, spec, cautions, is_model."""

    def test_it_has_a_name_and_a_version(self, adapter: Adapter) -> None:
        assert adapter.name
        assert adapter.version()[0].isdigit()

    @pytest.mark.parametrize("name", sorted(NETS))
    def test_paths_are_those_the_net_gives_its_layers(self, adapter: Adapter, name: str) -> None:
        net = self.make_net(name)
        layers = list(adapter.layers(net))
        paths = [path for path, _ in layers]
        wanted = NETS[name].paths
        assert tuple(paths[: len(wanted)]) == wanted
        assert NETS[name].inner or len(paths) == len(wanted)
        assert len(set(paths)) == len(paths), "a path stands twice"
        assert len({id(layer) for _, layer in layers}) == len(layers), "a layer stands twice"
        assert layers[0][1] is net

    def test_paths_are_the_same_when_asked_again(self, adapter: Adapter) -> None:
        net = self.make_net("nested")
        first, second = list(adapter.layers(net)), list(adapter.layers(net))
        assert [path for path, _ in first] == [path for path, _ in second]
        assert all(one is other for (_, one), (_, other) in zip(first, second))

    def test_layers_in_plain_lists_are_told_of(self, adapter: Adapter) -> None:
        told = {note.layer for note in adapter.cautions(self.make_net("plain"))}
        assert {"blocks.0", "blocks.1", "table.a"} <= told

    @pytest.mark.parametrize("name", sorted(NETS))
    def test_cautions_are_sentences_in_both_languages(self, adapter: Adapter, name: str) -> None:
        for note in adapter.cautions(self.make_net(name)):
            for language in messages.LANGUAGES:
                assert messages.text(note.message, language, {"layer": note.layer, **note.facts})

    def test_models_and_tensors_are_told_apart_from_anything_else(self, adapter: Adapter) -> None:
        net, x = self.make_net("norm"), self.x(adapter, "norm")
        assert adapter.is_model(net)
        assert adapter.is_tensor(x)
        for stranger in (None, 1, "net", [net], {"x": x}, type(net), type(x), object(), adapter.to_numpy(x)):
            assert not adapter.is_model(stranger)
            assert not adapter.is_tensor(stranger)
        assert not adapter.is_model(x)
        assert not adapter.is_tensor(net)

    def test_parameters_are_tensors(self, adapter: Adapter) -> None:
        assert all(adapter.is_tensor(parameter.tensor) for parameter in adapter.parameters(self.make_net("norm")))

    def test_type_names_are_the_class_with_its_module(self, adapter: Adapter) -> None:
        net = self.make_net("norm")
        names = {path: adapter.type_name(layer) for path, layer in adapter.layers(net)}
        assert names["fc"].startswith(f"{adapter.name}.")
        assert names[""].endswith(type(net).__qualname__)

    def test_spec_uses_the_words_of_the_vocabulary_only(self, adapter: Adapter) -> None:
        seen = set()
        for layer in self.spec_layers():
            spec = adapter.spec(layer)
            assert spec.kind in KINDS, f"{adapter.type_name(layer)} has no word"
            assert set(spec.attributes) == set(KINDS[spec.kind]), f"settings of {adapter.type_name(layer)}"
            assert all(_plain(value) for value in spec.attributes.values()), spec
            seen.add(spec.kind)
        assert len(seen) >= 10, f"spec_layers() shows only {sorted(seen)}"

    def test_a_class_of_the_users_keeps_its_name(self, adapter: Adapter) -> None:
        net = self.make_net("nested")
        head = dict(adapter.layers(net))["head"]
        assert adapter.spec(head).kind == type(head).__name__
        assert all(_plain(value) for value in adapter.spec(head).attributes.values())

    def test_doctor_and_environment_speak(self, adapter: Adapter) -> None:
        findings = list(adapter.doctor())
        assert findings
        for finding in findings:
            for language in messages.LANGUAGES:
                assert messages.text(finding.message, language, finding.facts)
        facts = adapter.environment(self.make_net("norm"))
        assert facts["device"]
        assert facts["mode"] in {"pynative", "graph"}
        assert all(isinstance(value, (bool, int, float, str, type(None))) for value in facts.values())


def _plain(value: object) -> bool:
    """A number, a word, None, or a tuple of them; and really so, not a framework's or numpy's imitation."""
    if type(value) is tuple:
        return all(_plain(item) for item in value)
    return type(value) in (bool, int, float, str, type(None))
