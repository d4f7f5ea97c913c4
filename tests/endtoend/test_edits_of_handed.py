"""A right value that is handed to a layer in another one's place."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, q, k, v):
        scores = self.q(q) @ self.k(k).transpose(1, 2)
        return self.o(scores.softmax(-1) @ self.v(v))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = Attention(), nn.LayerNorm(8)

    def forward(self, x, places):
        placed = x + places
        return self.norm(x + self.attention(placed, placed, x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block = nn.Linear(8, 8), Block()

    def forward(self, x, places):
        return self.block(self.first(x), places)


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randn(2, 6, 8), torch.randn(1, 6, 8))
"""


def test_a_value_handed_in_anothers_place_is_the_mistake_of_who_hands_it(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    (tmp_path / "port.py").write_text(NET.replace("(placed, placed, x)", "(placed, placed, placed)"), encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == "block"
    assert [line["after"].strip() for line in origin["edit"]["lines"]] == [
        "return self.norm(x + self.attention(placed, placed, x))"
    ]
