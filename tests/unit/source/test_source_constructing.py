"""What layers were built with, and the tables of one that is built again from edited code."""

from __future__ import annotations

import copy
import importlib.util
import random

import numpy as np
import pytest

from aligner.registry import load
from aligner.source import constructing
from aligner.source.constructing import Building
from aligner.source.ear import Ear

torch = pytest.importorskip("torch")

TEXT = """
import torch
from torch import nn


def table(length, base):
    return torch.arange(length) * base


class Base(nn.Module):
    def __init__(self, width, *sizes, scale=2.0, **more):
        width = int(width)
        super().__init__()
        self.linear = nn.Linear(width, width)
        nn.init.normal_(self.linear.weight)
        self.noise = nn.Parameter(torch.randn(width))
        self.table = table(sizes[0], 3)
        self.register_buffer("other", self.table * scale, persistent=False)
        self.scale, self.more = scale * 2, more
        self.tables = {"short": (table(2, 3), None), "long": self.table}

    def forward(self, x):
        return self.linear(x) * self.scale + self.table.sum() + self.other.sum()


class Own(Base):
    def __init__(self, width):
        super().__init__(width, 4, 5, scale=1.5, more=1)


class Around(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer, self.table = layer, torch.ones(3)


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2)
"""


class Silent:
    def begun(self, *_):
        return None

    def handed(self, *_):
        """Not told."""

    entered = came = handed


@pytest.fixture
def module(tmp_path):
    path = tmp_path / "constructed.py"
    path.write_text(TEXT, encoding="utf-8")
    spec = importlib.util.spec_from_file_location("constructed", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def noted(make):
    """What was made while it was noted how."""
    handle = constructing.noted(load("torch"))
    try:
        return make()
    finally:
        handle.remove()


def ear(net, texts=None):
    layers = {id(layer) for _, layer in load("torch").layers(net)}
    return Ear(load("torch"), layers, Silent(), texts or {})


def test_nothing_is_known_of_layers_that_were_built_before(module):
    assert Building.of(load("torch"), module.Own(3)) is None


def test_a_layer_is_built_again_as_it_was(module):
    net = noted(lambda: module.Base("3", 4, 5, scale=0.5, more=1))
    made = Building.of(load("torch"), net).run(ear(net)).layer
    assert (made.scale, made.more, made.linear.in_features) == (1.0, {"more": 1}, 3)
    assert torch.equal(made.other, net.other)
    assert made.other is not net.other


def test_of_a_class_upon_another_the_outermost_constructor_counts(module):
    net = noted(lambda: module.Own(3))
    made = Building.of(load("torch"), net).run(ear(net)).layer
    assert type(made) is module.Own
    assert torch.equal(made.other, net.other)


def test_a_copy_is_built_as_the_last_of_its_class(module):
    net = noted(lambda: copy.deepcopy(module.Own(3)))
    assert torch.equal(Building.of(load("torch"), net).run(ear(net)).layer.table, net.table)


def test_around_other_layers_nothing_is_built(module):
    net = noted(lambda: module.Around(module.Plain()))
    assert Building.of(load("torch"), net) is None


def test_without_tables_it_is_built_for_its_numbers_alone(module):
    assert not Building.of(load("torch"), noted(lambda: module.Plain())).has_tables
    assert Building.of(load("torch"), noted(lambda: module.Own(3))).has_tables


def test_building_draws_no_random_numbers(module):
    net = noted(lambda: module.Own(3))
    states = random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    weight = net.linear.weight.clone()
    Building.of(load("torch"), net).run(ear(net))
    assert states == (random.getstate(), np.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist())
    assert torch.equal(net.linear.weight, weight)


def test_edited_code_changes_what_it_makes_and_nothing_else(module):
    net = noted(lambda: module.Own(3))
    x, building = torch.ones(2, 3), Building.of(load("torch"), net)
    assert building.heard(ear(net))
    texts = {module.__file__: TEXT.replace("* base", "* base + 1")}
    other = TEXT.replace("self.linear(x)", "self.linear(x + 1)")
    assert building.concerns(texts)
    assert not building.concerns({module.__file__: other})
    before, state = net(x), {**vars(net)}
    with building.instead(building.run(ear(net, texts))):
        assert (net.table.tolist(), net.other.tolist()) == ([1, 4, 7, 10], [1.5, 6, 10.5, 15])
        assert (net.tables["short"][0].tolist(), net.tables["long"].tolist()) == ([1, 4], [1, 4, 7, 10])
        assert not torch.equal(net(x), before)
    assert torch.equal(net(x), before)
    assert vars(net).keys() == state.keys()
    assert all(vars(net)[name] is value for name, value in state.items())


def test_a_table_that_the_layer_has_otherwise_by_now_stays(module):
    net = noted(lambda: module.Own(3))
    net.table = net.table + 5
    building = Building.of(load("torch"), net)
    assert building.heard(ear(net))
    texts = {module.__file__: TEXT.replace("* base", "* base + 1")}
    with building.instead(building.run(ear(net, texts))):
        assert (net.table.tolist(), net.other.tolist()) == ([5, 8, 11, 14], [1.5, 6, 10.5, 15])
