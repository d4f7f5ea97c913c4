"""Indices that one side has a number of its own for where there is none, which nobody reads behind a mask."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Assigner(nn.Module):
    def forward(self, points, boxes):
        away = (points[:, None] - boxes[None]).abs().sum(-1)
        near = away < 0.9
        match = away.argmin(1)
        match = torch.where(near.any(1), match, -torch.ones_like(match))
        return near.any(1), match


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.move, self.assigner, self.cost = nn.Linear(4, 2), Assigner(), nn.BCEWithLogitsLoss(reduction="none")
        self.say = nn.Linear(4, 2)

    def forward(self, x, boxes):
        points, said = torch.tanh(self.move(x)), self.say(x)
        there, match = zip(*(self.assigner(one, boxes) for one in points))
        there, match = torch.stack(there), torch.stack(match)
        wanted = torch.sigmoid(boxes[match[there]])
        loss = self.cost(said[there], wanted).sum() / there.sum()
        return points, said, loss


def build():
    torch.manual_seed(11)
    return Net().eval(), (torch.randn(3, 20, 4), torch.randn(4, 2) / 2)
"""
NONE = [("-torch.ones_like(match)", "torch.zeros_like(match)")]
ALL = [
    ("boxes[match[there]]", "boxes[match]"),
    ("self.cost(said[there], wanted).sum()", "(self.cost(said, wanted) * there[..., None]).sum()"),
]
MISTAKES = [
    (("torch.tanh(self.move(x))", "torch.sin(self.move(x))"), ""),
    (("away < 0.9", "away < 0.5"), "assigner"),
    (("/ there.sum()", "/ there.numel()"), ""),
]


def _written(tmp_path, *changes):
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    port = NET
    for old, new in changes:
        assert port.count(old) == 1
        port = port.replace(old, new)
    (tmp_path / "port.py").write_text(port, encoding="utf-8")


@pytest.mark.parametrize("form", [NONE + ALL, ALL[:0]])
def test_a_port_with_another_number_for_none_is_right(tmp_path, capsys, form):
    _written(tmp_path, *form)
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


@pytest.mark.parametrize(("mistake", "layer"), MISTAKES)
def test_beside_a_mistake_it_is_none(tmp_path, capsys, mistake, layer):
    _written(tmp_path, *NONE, *ALL, mistake)
    found = answer(tmp_path, capsys)
    assert {one["layer"] for one in found["origins"]} == {layer}


def test_another_index_where_there_is_one_is_a_mistake(tmp_path, capsys):
    _written(tmp_path, *NONE, *ALL, ("away.argmin(1)", "away.argmax(1)"))
    found = answer(tmp_path, capsys)
    assert found["origins"][0]["layer"] == "assigner"


def test_most_may_be_none(tmp_path, capsys):
    _written(tmp_path, ("away < 0.9", "away < 0.4"), *NONE, *ALL)
    (tmp_path / "ref.py").write_text(NET.replace("away < 0.9", "away < 0.4"), encoding="utf-8")
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])
