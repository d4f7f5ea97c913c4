"""Layers of the user's own that the port has and forgets to call, and code that it has in another layer."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(8) + 0.5)

    def forward(self, x):
        return x / (1.0 + x.abs()) * self.gamma


class Router(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(4))

    def forward(self, x):
        scores = (x @ self.weight.T).sigmoid()
        chosen = (scores + self.bias).topk(2, dim=-1)[1]
        return scores.gather(-1, chosen), chosen


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.down, self.scale = Router(), nn.Linear(8, 8), Scale()

    def forward(self, x):
        gates, chosen = self.router(x)
        return self.scale(self.down(x) * gates.sum(-1, keepdim=True))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.mixture, self.head = nn.Linear(8, 8), Mixture(), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(x + self.mixture(self.first(x)))


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randn(2, 6, 8),)
"""
INSIDE = (
    NET.replace(
        "        self.router, self.down, self.scale = Router(), nn.Linear(8, 8), Scale()",
        "        self.down, self.scale = nn.Linear(8, 8), Scale()\n"
        "        self.weight, self.bias = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.randn(4))",
    )
    .replace("        gates, chosen = self.router(x)\n", "        scores = (x @ self.weight.T).sigmoid()\n"
             "        chosen = (scores + self.bias).topk(2, dim=-1)[1]\n        gates = scores.gather(-1, chosen)\n")
)  # fmt: skip


def told(tmp_path, capsys, port):
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    return origin["layer"], [line["after"].strip() for line in origin["edit"]["lines"]]


def test_a_layer_that_is_not_called_is_called(tmp_path, capsys):
    right = "return self.scale(self.down(x) * gates.sum(-1, keepdim=True))"
    port = NET.replace(right, "return self.down(x) * gates.sum(-1, keepdim=True)")
    layer, lines = told(tmp_path, capsys, port)
    assert layer == "mixture"
    assert lines == [right]


def test_code_that_stands_in_another_layer_is_told_as_the_references_layer(tmp_path, capsys):
    assert answer_of(tmp_path, capsys, INSIDE) == []
    wrong = INSIDE.replace("gates = scores.gather", "gates = (scores + self.bias).gather")
    layer, lines = told(tmp_path, capsys, wrong)
    assert layer == "mixture.router"
    assert lines == ["gates = scores.gather(-1, chosen)"]


def answer_of(tmp_path, capsys, port):
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    return answer(tmp_path, capsys)["origins"]
