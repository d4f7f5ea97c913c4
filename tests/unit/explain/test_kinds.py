"""Causes told from the class of a layer: what another kind is called, and what is built in its place."""

from __future__ import annotations

import numpy as np
import pytest

from aligner.explain.catalogue import sentences
from aligner.explain.kinds import suspects
from tests.unit.explain.cases import case


def found(kind, settings=None, port=None, **given):
    return list(suspects(case(kind, settings or {}, port or {}, **given)))


@pytest.mark.parametrize(
    ("kind", "port_kind", "cause"),
    [
        ("Hardswish", "SiLU", "hardswish-vs-swish"),
        ("SiLU", "Hardswish", "hardswish-vs-swish"),
        ("GELU", "FastGelu", "quick-gelu-vs-gelu"),
        ("QuickGELU", "GELU", "quick-gelu-vs-gelu"),
        ("Upsample", "ResizeBilinear", "resize-bilinear-half-pixel"),
        ("CrossEntropyLoss", "SoftmaxCrossEntropyWithLogits", "softmax-ce-reduction-none"),
        ("RMSNorm", "LayerNorm", "kind-differs"),
        ("ReLU", "ReLU6", "kind-differs"),
        ("GELU", "SiLU", "kind-differs"),
        ("ReLU", "MyOwn", "kind-differs"),
    ],
)
def test_another_kind_of_layer_has_a_name_and_no_change(kind, port_kind, cause):
    (suspect,) = found(kind, {}, {}, port_kind=port_kind)
    assert suspect.cause == cause
    assert suspect.change == {}
    assert not any("<" in text for text in sentences(cause, suspect.facts, "en"))


def test_a_class_of_ones_own_is_less_suspicious_than_another_known_one():
    (own,), (known,) = found("ReLU", {}, {}, port_kind="MyOwn"), found("ReLU", {}, {}, port_kind="ReLU6")
    assert own.weight < known.weight


@pytest.mark.parametrize(
    ("kind", "settings", "port_kind", "port"),
    [
        ("ReLU6", {}, "Hardtanh", {"min_val": 0.0, "max_val": 6.0}),
        ("Identity", {}, "Dropout", {"p": 0.1}),
        ("Sequential", {}, "Block", {}),
        ("Block", {}, "ResidualBlock", {}),
    ],
)
def test_two_names_for_one_thing_are_no_other_kind(kind, settings, port_kind, port):
    assert found(kind, settings, port, port_kind=port_kind) == []


def test_the_reference_layer_is_built_with_all_its_settings():
    settings = {"in_features": 4, "out_features": 3, "bias": False}
    (suspect,) = found("Linear", settings, port_kind="Conv1D")
    assert suspect.built == "nn.Dense(in_channels=4, out_channels=3, has_bias=False)"


def test_nothing_is_built_where_a_weight_is_wrong_or_the_class_is_nobodys():
    weight = {"weight": np.eye(3)}
    wrong = found("Linear", port_kind="Conv1D", parameters=weight, port_parameters={"weight": np.eye(3)[::-1]})
    lost = found("Linear", port_kind="Conv1D", parameters=weight, port_parameters={})
    own = found("MyReLU", port_kind="ReLU")
    assert [suspect.built for suspect in (*wrong, *lost, *own)] == ["", "", ""]
