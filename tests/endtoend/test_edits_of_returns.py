"""A helper or a layer hands on the wrong one of the values that it has names for, in the place of one that goes far."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.gate = nn.Linear(4, 1)
        self.table = nn.Embedding(9, 2) if first else None

    def forward(self, x, bias):
        b, n, _ = x.shape
        if bias is None:
            places = torch.arange(n)
            bias = self.table(places[None] - places[:, None] + 4).permute(2, 0, 1)[None]
        query, key, value = (f(x).reshape(b, n, 2, 4).transpose(1, 2) for f in (self.query, self.key, self.value))
        gate = torch.sigmoid(self.gate(query)) + 1.0
        scores = query @ key.transpose(-1, -2) + gate * bias
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).reshape(b, n, 8)), bias


class Block(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.attention, self.norm = Attention(first), nn.LayerNorm(8)

    def forward(self, x, bias):
        y, bias = self.attention(x, bias)
        return self.norm(x + y), bias


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(i == 0) for i in range(3))

    def forward(self, x):
        bias = None
        for block in self.blocks:
            x, bias = block(x, bias)
        return x


def build():
    torch.manual_seed(3)
    net = Net().eval()
    nn.init.normal_(net.blocks[0].attention.table.weight, std=2.0)
    return net, (torch.randn(3, 5, 8),)
"""
JOINED = [
    (
        "class Attention(nn.Module):\n    def __init__(self, first):",
        "class Block(nn.Module):\n    def __init__(self, first):",
    ),
    ("self.gate = nn.Linear(4, 1)", "self.gate, self.norm = nn.Linear(4, 1), nn.LayerNorm(8)"),
    ("    def forward(self, x, bias):\n        b, n, _", "    def attend(self, x, bias):\n        b, n, _"),
    (
        "scores = query @ key.transpose(-1, -2) + gate * bias",
        "gated = gate * bias\n        scores = query @ key.transpose(-1, -2) + gated",
    ),
    (
        "class Block(nn.Module):\n    def __init__(self, first):\n        super().__init__()\n"
        "        self.attention, self.norm = Attention(first), nn.LayerNorm(8)\n",
        "",
    ),
    ("y, bias = self.attention(x, bias)", "y, bias = self.attend(x, bias)"),
    (
        "    net = Net().eval()\n    nn.init.normal_(net.blocks[0].attention.table.weight, std=2.0)\n    return net,",
        "    return Net().eval(),",
    ),
]
GATED = ("reshape(b, n, 8)), bias", "reshape(b, n, 8)), gated")


def test_a_layer_hands_on_what_it_has_changed(tmp_path, capsys):
    ported(tmp_path, NET, [*JOINED, GATED])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"]["confirmed"]
    assert origin["layer"].startswith("blocks.0")
    assert origin["edit"]["lines"][0]["after"].strip().endswith("reshape(b, n, 8)), bias")
    assert is_right_with_the_patch(tmp_path, capsys)


def test_what_it_was_given_is_right(tmp_path, capsys):
    ported(tmp_path, NET, JOINED)
    assert answer(tmp_path, capsys)["origins"] == []
