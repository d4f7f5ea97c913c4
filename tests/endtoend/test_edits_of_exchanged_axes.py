"""A port whose norm stands on the other side of the line that exchanges two axes, with a mistake beside it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.out = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        return self.out((self.query(x) @ x.transpose(-1, -2)).softmax(-1) @ x)


class Columns(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(6), Mix()

    def forward(self, x):
        x = x.transpose(1, 2)
        x = self.norm(x)
        x = self.mix(x) * 2.0
        return x.transpose(1, 2)


class Turn(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 6)
        self.register_buffer("steps", torch.linspace(0.5, 2.0, 6), persistent=False)

    def forward(self, x, by):
        return self.line(x.flip(-1) + by * self.steps)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.columns, self.turn = nn.Linear(3, 6), Columns(), Turn()

    def forward(self, x):
        x = self.into(x)
        x = x + self.columns(x)
        for by in range(3):
            x = x + self.turn(x, by)
        return x


def build():
    torch.manual_seed(2)
    return Net().eval(), (torch.randn(2, 5, 5, 3),)
"""

EARLY = ("x = x.transpose(1, 2)\n        x = self.norm(x)\n", "x = self.norm(x)\n        x = x.transpose(1, 2)\n")
MISTAKES = {
    "the axes stay exchanged": ("return x.transpose(1, 2)\n", "return x\n"),
    "a factor": ("self.mix(x) * 2.0", "self.mix(x)"),
    "the axes are not exchanged": (EARLY[0], "x = self.norm(x)\n"),
    "what shows in the first turn otherwise than later": ("x.flip(-1) + by", "x + by"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_patch_makes_the_port_right(tmp_path, capsys, mistake):
    edits = [MISTAKES[mistake]]
    ported(tmp_path, NET, edits if edits[0][0] == EARLY[0] else [EARLY, *edits])
    found = answer(tmp_path, capsys)
    assert all(origin["edit"] is not None and origin["edit"]["confirmed"] for origin in found["origins"])
    assert is_right_with_the_patch(tmp_path, capsys)


ROWS = """
import torch
from torch import nn


class Walks(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.line = nn.BatchNorm1d(4), nn.Linear(4, 5)

    def forward(self, x):
        steps, state = [], x
        for _ in range(4):
            steps.append(state.diagonal(dim1=1, dim2=2))
            state = state @ x
        walks = torch.stack(steps, -1)
        walks = self.norm(walks.transpose(1, 2)).transpose(1, 2)
        return self.line(walks)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.walks, self.last = Walks(), nn.Linear(5, 3)

    def forward(self, x):
        return self.last(self.walks(x))


def build():
    torch.manual_seed(3)
    net = Net().eval()
    net.walks.norm.running_mean.copy_(torch.randn(4))
    net.walks.norm.running_var.copy_(torch.rand(4) + 0.5)
    return net, torch.randn(3, 7, 7) * 0.4
"""


def test_a_norm_of_rows_hands_on_rows(tmp_path, capsys):
    """The reference's (3, 4, 7) are the port's (21, 4): not the same numbers one after the other."""
    rows = "self.norm(walks.transpose(1, 2)).transpose(1, 2)", "self.norm(walks.reshape(21, 4)).reshape(3, 7, 4)"
    append, state = "steps.append(state.diagonal(dim1=1, dim2=2))", "state = state @ x"
    order = f"{append}\n            {state}", f"{state}\n            {append}"
    ported(tmp_path, ROWS, [rows, order])
    origins = answer(tmp_path, capsys)["origins"]
    assert {line["line"] for origin in origins for line in origin["edit"]["lines"]} == {14, 15}
    assert is_right_with_the_patch(tmp_path, capsys)
