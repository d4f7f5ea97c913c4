"""A layer that ends later than the reference's, around blocks with a mistake: it is none beside them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import (  # noqa: E402 - only after it is known to be there
    _here,  # noqa: F401 - a fixture
    answer,
    is_right_with_the_patch,
)

REFERENCE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Conv2d(width, 4, 1), nn.Conv2d(width + 4, 4, 1)

    def forward(self, x):
        for layer in (self.one, self.two):
            x = torch.cat((x, layer(x).relu()), 1)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 1), Block(4), nn.Conv2d(12, 6, 1), Block(6), nn.BatchNorm2d(14))
        self.last = nn.Linear(14, 5)

    def forward(self, x):
        return self.last(self.features(x).relu().mean((2, 3)))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 3, 5, 5),)
"""
PORT = REFERENCE.replace("nn.BatchNorm2d(14))", "nn.BatchNorm2d(14), nn.ReLU())").replace("(x).relu().mean", "(x).mean")


def test_the_right_port_is_right(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(PORT, encoding="utf-8")
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


def test_the_blocks_alone_are_wrong(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(PORT.replace("(x, layer(x).relu())", "(layer(x).relu(), x)"), encoding="utf-8")
    assert {one["layer"] for one in answer(tmp_path, capsys)["origins"]} <= {"features.1", "features.3"}
    assert is_right_with_the_patch(tmp_path, capsys)
