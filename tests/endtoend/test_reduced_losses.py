"""Losses that are the mean in the port and have all their parts in the reference, in calls of which values tell the
sizes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Criterion(nn.Module):
    def __init__(self):
        super().__init__()
        self.distance = nn.SmoothL1Loss(beta=0.25, reduction="none")

    def forward(self, found, wanted):
        total = torch.zeros(())
        for one, other in zip(found, wanted):
            rows = (one.sum(-1) > 0).nonzero()[:, 0]
            total = total + self.distance(one[rows], other[rows]).mean() * 0.5
        return total / len(found)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.last, self.criterion = nn.Linear(8, 8), nn.Linear(8, 4), Criterion()

    def forward(self, x, wanted):
        hidden = torch.tanh(self.mix(x)) * 2.0
        found = self.last(hidden)
        return found, self.criterion(found, wanted)


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randn(5, 9, 8), torch.randn(5, 9, 4))
"""
ELSEWHERE = [('reduction="none"', 'reduction="mean"'), ("other[rows]).mean() * 0.5", "other[rows]) * 0.5")]


def planted(tmp_path, capsys, *mistakes):
    ported(tmp_path, NET, [*ELSEWHERE, *mistakes])
    return answer(tmp_path, capsys)


def test_where_the_mean_is_taken_is_no_mistake(tmp_path, capsys):
    assert planted(tmp_path, capsys)["outcome"] == "aligned"


@pytest.mark.parametrize(
    ("mistake", "layer", "line"),
    [
        (("beta=0.25, ", ""), "criterion.distance", 'nn.SmoothL1Loss(reduction="mean", beta=0.25)'),
        (("* 0.5", "* 0.25"), "criterion", "other[rows]) * 0.5"),
        (("torch.tanh(self.mix(x))", "torch.sigmoid(self.mix(x))"), "", "torch.tanh(self.mix(x))"),
    ],
)
def test_a_mistake_beside_it_is_the_only_origin(tmp_path, capsys, mistake, layer, line):
    (origin,) = planted(tmp_path, capsys, mistake)["origins"]
    assert origin["layer"] == layer
    (edit,) = origin["edit"]["lines"]
    assert line in edit["after"]
    assert is_right_with_the_patch(tmp_path, capsys)
