"""A layer of a class of the user's, where the port has the framework's: the file has the class, and it is tried."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Quick(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


class Root(nn.Module):
    def __init__(self, width, eps=1e-6):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width) + 0.5), eps

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


class Block(nn.Module):
    def __init__(self, width, act):
        super().__init__()
        self.norm, self.first, self.act, self.last = Root(width), nn.Linear(width, 12), act, nn.Linear(12, width)

    def forward(self, x):
        return x + self.last(self.act(self.first(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block(8, Quick()) for _ in range(3)])
        self.norm = Root(8)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(4, 5, 8),)
"""


@pytest.mark.parametrize(
    ("right", "wrong", "layer"),
    [
        ("Block(8, Quick())", "Block(8, nn.GELU())", "blocks.0.act"),
        ("Block(8, Quick())", "Block(8, nn.ReLU())", "blocks.0.act"),
        ("self.norm = Root(8)", "self.norm = nn.RMSNorm(8, eps=1e-2)", "norm"),
    ],
)
def test_the_patch_makes_the_port_right(tmp_path, capsys, right, wrong, layer):
    ported(tmp_path, NET, [(right, wrong)])
    origins = answer(tmp_path, capsys)["origins"]
    assert origins[0]["layer"] == layer
    assert origins[0]["causes"][0]["confirmed"]
    assert len({str(one["edit"]["lines"]) for one in origins}) == 1
    assert is_right_with_the_patch(tmp_path, capsys)


def test_a_class_that_is_wrong_as_well_is_not_told(tmp_path, capsys):
    ported(tmp_path, NET, [("Block(8, Quick())", "Block(8, nn.GELU())"), ("sigmoid(1.702 * x)", "sigmoid(1.5 * x)")])
    assert not any(one["edit"] for one in answer(tmp_path, capsys)["origins"])
