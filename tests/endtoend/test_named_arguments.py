"""Layers that are given named tuples, dataclasses, dicts of a type of their own: their code is run again with such."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402 - only after it is known to be there

from tests.endtoend.pairs import compared, telling  # noqa: E402 - as above


class Named(NamedTuple):
    rows: Any
    weight: Any
    size: int


@dataclass
class Data:
    rows: Any
    weight: Any
    size: int


class Table(dict):
    """Its items are attributes."""

    __getattr__ = dict.__getitem__


class Batch:
    """Nothing that anybody knows."""

    def __init__(self, rows, weight, size):
        self.rows, self.weight, self.size = rows, weight, size


def mean(x, rows, size, weight=None):
    weight = torch.ones(x.shape[0]) if weight is None else weight
    total = torch.zeros(size, x.shape[1]).index_add(0, rows, x * weight[:, None])
    return total / torch.zeros(size).index_add(0, rows, weight).clamp(min=1.0)[:, None]


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 4)

    def forward(self, x, batch):
        return self.outer(mean(torch.tanh(self.inner(x)), batch.rows, batch.size, batch.weight))


class Unweighted(Whole):
    def forward(self, x, batch):
        return self.outer(mean(torch.tanh(self.inner(x)), batch.rows, batch.size))


class Net(nn.Module):
    def __init__(self, form, layer=Whole):
        super().__init__()
        self.first, self.layer, self.form = nn.Linear(6, 6), layer(), form

    def forward(self, x, weight):
        batch = self.form(rows=torch.tensor([0, 0, 1, 2, 2, 2, 1]), weight=weight, size=3)
        return self.layer(self.first(x), batch)


@pytest.mark.parametrize("form", [Named, Data, Table, Batch])
def test_a_value_of_such_an_argument_that_a_call_lacks_is_given(tmp_path, form):
    torch.manual_seed(1)
    weight = torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0])
    result = compared(tmp_path, telling(Net(form)), Net(form, Unweighted), torch.randn(7, 6), weight)
    assert [(origin.layer, origin.where) for origin in result.origins] == [("layer", "glue")]
    cause = result.origins[0].causes[0]
    assert cause.confirmed
    said = 'batch["weight"]' if form is Table else "batch.weight"
    assert f"batch.rows, batch.size, weight={said})" in result.origins[0].edit.hunks[0].after
