"""An operation in the wrong place of a long expression: a part further in is what the edit works on."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Loss(nn.Module):
    def __init__(self):
        super().__init__()
        self.center, self.spread = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(6))
        self.least = 0.3

    def forward(self, mean, spread):
        ratio = (spread.exp() + (mean - self.center) ** 2) / self.spread.exp()
        apart = 0.5 * (ratio - 1.0 + self.spread - spread)
        return apart.clamp(min=self.least).sum(dim=-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean, self.spread, self.loss = nn.Linear(8, 6), nn.Linear(8, 6), Loss()

    def forward(self, x):
        return self.loss(self.mean(x), self.spread(x))


def build():
    torch.manual_seed(7)
    return Net().eval(), torch.randn(9, 8)
"""
SAID = NET[NET.index("        ratio =") : NET.index("\n\nclass Net(")]
RIGHT = """        far = (mean - self.center).square() * torch.exp(-self.spread)
        shape = torch.exp(spread - self.spread) - 1.0 - (spread - self.spread)
        return torch.clamp(0.5 * (far + shape), min=self.least).sum(dim=-1)
"""
WRONG = (
    "torch.clamp(0.5 * (far + shape), min=self.least).sum(dim=-1)",
    "torch.clamp(0.5 * (far + shape).sum(dim=-1), min=self.least)",
)


def test_the_port_is_right(tmp_path, capsys):
    ported(tmp_path, NET, [(SAID, RIGHT)])
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


def test_the_patch_writes_what_is_done_to_the_part(tmp_path, capsys):
    ported(tmp_path, NET, [(SAID, RIGHT), WRONG])
    found = answer(tmp_path, capsys)
    edit = found["origins"][0]["edit"]
    assert edit["confirmed"]
    assert all("far + shape" in line["after"] for line in edit["lines"])
    assert is_right_with_the_patch(tmp_path, capsys)
