"""Plain numbers that layers are called with: a wrong one is the mistake of the code that gives it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.first, self.deep = nn.Linear(width, 8), nn.Conv2d(8, 8, 3, padding=1, groups=8)
        self.last = nn.Linear(8, width)

    def forward(self, x, height, width):
        b, n, c = x.shape
        h = self.first(x)
        h = self.deep(h.transpose(1, 2).reshape(b, 8, height, width)).flatten(2).transpose(1, 2)
        return x + self.last(torch.tanh(h))


class Turns(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.step, self.norm = nn.Linear(width, width), nn.LayerNorm(width)

    def forward(self, x, count):
        for _ in range(count):
            x = self.norm(x + torch.relu(self.step(x)))
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.turns, self.counts = Mix(), Mix(), Turns(), (3, 2)

    def forward(self, x):
        height, width = 3, 5
        x = self.one(x, height, width)
        x = self.two(x, height, width)
        for i in range(3):
            x = self.turns(x, self.counts[min(i, 1)])
        return x


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 15, 6),)
"""
MISTAKES = {
    "sizes in each other's places": ("self.two(x, height, width)", "self.two(x, width, height)", ("input.1", 3, 5)),
    "a loop that turns once more": ("min(i, 1)", "int(i > 1)", ("input.1", 2, 3)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_code_that_gives_a_wrong_number_is_named_and_mended(tmp_path, capsys, mistake):
    right, wrong, numbers = MISTAKES[mistake]
    ported(tmp_path, NET, [(right, wrong)])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert (origin["layer"], origin["where"]) == ("", "glue")
    assert origin["number"] == dict(zip(("slot", "reference", "port"), numbers))
    assert wrong in origin["edit"]["lines"][0]["before"]
    assert origin["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)


def test_numbers_in_another_order_are_the_ports_affair(tmp_path, capsys):
    """The layer takes them so: it is right, and what else is wrong in it is told as ever."""
    turned = [
        ("self.one(x, height, width)", "self.one(x, width, height)"),
        ("self.two(x, height, width)", "self.two(x, width, height)"),
        ("def forward(self, x, height, width):", "def forward(self, x, width, height):"),
    ]
    ported(tmp_path, NET, turned)
    assert answer(tmp_path, capsys)["outcome"] == "aligned"
    ported(tmp_path, NET, [*turned, ("torch.tanh(h)", "torch.sin(h)")])
    found = answer(tmp_path, capsys)["origins"]
    assert {origin["layer"] for origin in found} <= {"one", "two"}
