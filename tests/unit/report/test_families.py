"""Which origins are told as one mistake."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aligner.record import LayerSpec
from aligner.report.families import families, first_of_kind
from tests.unit.report import comparisons
from tests.unit.report.comparisons import EPS, RATIO, SHIFT, origin


def layer(path, cause=None, **changes):
    return origin(layer=path, port_layer=path, causes=() if cause is None else (cause,), **changes)


def alike(*origins, specs=None):
    return first_of_kind(origins, specs or {})


def spec(**settings):
    return LayerSpec("Conv2d", settings)


def test_the_same_cause_in_every_block_is_one_family():
    (family,) = families(comparisons.norms(12), {})
    assert family.head.layer == "blocks.0.norm1"
    assert [o.layer for o in family.others][:2] == ["blocks.0.norm2", "blocks.1.norm1"]
    assert len(family.others) == 11


def test_the_order_is_that_of_the_heads():
    made = [layer("a", EPS), layer("b", RATIO, kind="Linear"), layer("c", EPS)]
    assert [[f.head.layer, *(o.layer for o in f.others)] for f in families(made, {})] == [["a", "c"], ["b"]]
    assert first_of_kind(made, {}) == [0, 1, 0]


@pytest.mark.parametrize(
    "change",
    [{"kind": "GroupNorm"}, {"where": "glue"}, {"causes": (SHIFT,)}, {"phase": "backward"}],
    ids=lambda change: next(iter(change)),
)
def test_another_kind_place_or_cause_is_another_family(change):
    assert alike(layer("a", EPS), replace(layer("b", EPS), **change)) == [0, 1]


def test_a_trial_that_failed_is_another_mistake_but_one_not_made_is_not():
    untried = replace(EPS, confirmed=False, error_after=None)
    open_ = replace(EPS, confirmed=False, error_after=1e-4)
    assert alike(layer("a", EPS), layer("b", untried), layer("c", open_)) == [0, 0, 2]


def test_the_same_cause_counts_whatever_the_values_of_the_settings():
    specs = {
        "stem": (spec(padding=((3, 3),)), spec(padding=((2, 3),))),
        "conv": (spec(padding=((1, 1),)), spec(padding=((0, 1),))),
    }
    assert alike(layer("stem", EPS), layer("conv", EPS), specs=specs) == [0, 0]
    assert alike(layer("stem"), layer("conv"), specs=specs) == [0, 1]


def test_without_a_cause_the_settings_that_differ_tell():
    apart = (spec(bias=True, size=1), spec(bias=False, size=1))
    other = (spec(bias=True, size=9), spec(bias=False, size=9))
    assert alike(layer("a"), layer("b"), specs={"a": apart, "b": other}) == [0, 0]


def test_with_nothing_known_only_the_same_place_of_each_block_is_alike():
    assert alike(layer("blocks.0.act"), layer("blocks.1.act"), layer("conv1"), layer("conv2")) == [0, 0, 2, 3]


def test_code_is_alike_where_it_lies_between_the_same_layers_of_its_parent():
    def code(path, before, after, cause=None):
        return layer(path, cause, kind="Block", where="glue", between=(f"{path}.{before}", f"{path}.{after}"))

    assert alike(code("l1.0", "bn2", "relu"), code("l1.1", "bn2", "relu"), code("l1.2", "bn1", "relu")) == [0, 0, 2]
    # The shortcut of some blocks has layers of its own; what is forgotten is the same.
    found = [code("l1.0", "bn2", "relu", RATIO), code("l2.0", "down.1", "relu", RATIO), code("l3", "a", "b", RATIO)]
    assert alike(*found) == [0, 0, 2]


def test_parameters_of_other_roles_are_other_mistakes():
    made = [layer("a", where="parameters", slot=slot) for slot in ("weight", "bias")]
    assert alike(*made) == [0, 1]
