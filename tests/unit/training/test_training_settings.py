"""Settings of optimizers side by side."""

from __future__ import annotations

import pytest

from aligner.training.settings import differences, same

A, B = ("a", "weight"), ("b", "bias")


def found(ours, theirs):
    return [(one.setting, one.reference, one.port, one.owners) for one in differences(ours, theirs, ours)]


def test_equal_settings_to_the_rounding_of_float32():
    assert same(0.1, 0.10000000149)
    assert not same(0.1, 0.1001)
    assert same(0, False)
    assert found({A: {"lr": 0.1}}, {A: {"lr": 0.10000000149}}) == []


def test_parameters_with_the_same_difference_stand_together():
    ours = {A: {"lr": 0.1, "weight_decay": 0.01}, B: {"lr": 0.1, "weight_decay": 0.0}}
    theirs = {A: {"lr": 0.2, "weight_decay": 0.01}, B: {"lr": 0.2, "weight_decay": 0.01}}
    assert found(ours, theirs) == [("lr", 0.1, 0.2, (A, B)), ("weight_decay", 0.0, 0.01, (B,))]


@pytest.mark.parametrize("name", ["dampening", "nesterov"])
def test_what_does_nothing_without_a_momentum_is_no_difference(name):
    assert found({A: {name: True, "momentum": 0.0}}, {A: {name: False}}) == []
    assert found({A: {name: True, "momentum": 0.9}}, {A: {name: False, "momentum": 0.9}}) != []


def test_a_setting_that_one_side_lacks_is_what_it_does_without():
    assert found({A: {"amsgrad": False}}, {A: {}}) == []
    told = differences({A: {"amsgrad": False}}, {A: {"amsgrad": True}}, [A])[0].suspect(1, {A: "a.weight"}, False)
    assert (told.cause, dict(told.change)) == ("optimizer-amsgrad", {"amsgrad": False})
