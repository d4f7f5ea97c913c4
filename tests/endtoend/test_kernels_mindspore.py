"""Code that makes much of what MindSpore's kernels approximate, and that does not run in float64 as a whole."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("torch")
pytest.importorskip("mindspore")

from aligner.cli import main

REFERENCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(6, 12), nn.Linear(12, 5)

    def forward(self, x):
        h = self.up(x) * 3.0
        change = torch.exp(h + 0.03) - torch.exp(h)
        first = torch.ones_like(change[:, :1])
        return self.down(torch.tanh(h)), torch.cat([first, change / torch.exp(h) * 30.0], 1)


def build():
    torch.manual_seed(3)
    return Net().eval(), torch.randn(40, 6)
"""
PORT = """
from mindspore import nn, ops


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Dense(6, 12), nn.Dense(12, 5)

    def construct(self, x):
        h = self.up(x) * 3.0
        change = ops.exp(h + 0.03) - ops.exp(h)
        first = ops.ones((len(x), 1))
        return self.down(ops.tanh(h)), ops.cat([first, change / ops.exp(h) * 30.0], 1)


def build():
    return Net().set_train(False)
"""


def suspects(tmp_path, capsys, port):
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    assert main(["capture", "ref.py:build", "-o", "ref.h5", "--quiet"]) == 0
    assert main(["capture", "port.py:build", "--from", "ref.h5", "-o", "port.h5", "--quiet"]) == 0
    capsys.readouterr()
    assert main(["compare", "ref.h5", "port.h5", "--json"]) == 0
    return json.loads(capsys.readouterr().out)["suspects"]


def test_a_right_port_is_not_doubted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert suspects(tmp_path, capsys, PORT) == []


def test_a_mistake_of_more_than_that_is_told_all_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (found,) = suspects(tmp_path, capsys, PORT.replace("+ 0.03)", "+ 0.03001)"))
    assert found["layer"] == ""
