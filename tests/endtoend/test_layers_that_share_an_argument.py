"""Layers of one class, each given one of two masks in a form of the port's own: which of them got the wrong one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout(0.1)

    def forward(self, x, mask):
        scores = self.key(x) @ x.transpose(-1, -2)
        scores = scores + mask
        return x + self.drop(scores.softmax(-1)) @ self.value(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.near = 2
        self.layers = nn.ModuleList(Attention() for _ in range(4))

    def forward(self, x, keep):
        back = torch.arange(8)[:, None] - torch.arange(8)
        wide = (1.0 - keep[:, None, :].float()) * -10000.0
        narrow = (1.0 - (keep[:, None, :] & (back.abs() < 3)).float()) * -10000.0
        for number, layer in enumerate(self.layers):
            x = layer(x, narrow if number < self.near else wide)
        return x


def build():
    torch.manual_seed(3)
    keep = torch.arange(8) < torch.tensor([8, 7, 6])[:, None]
    return Net().eval(), (torch.randn(3, 8, 6), keep)
"""
FORM = [
    ("scores = scores + mask", "scores = scores.masked_fill(~mask, -10000.0)"),
    (
        "wide = (1.0 - keep[:, None, :].float()) * -10000.0",
        "wide = keep[:, None, :].expand(-1, 8, -1)",
    ),
    (
        "narrow = (1.0 - (keep[:, None, :] & (back.abs() < 3)).float()) * -10000.0",
        "narrow = keep[:, None, :] & (back.abs() < 3)",
    ),
]


def test_the_right_port_is_aligned(tmp_path, capsys):
    ported(tmp_path, NET, FORM)
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


@pytest.mark.parametrize(
    ("wrong", "place"), [("number <= self.near", "layers.2"), ("number < self.near - 1", "layers.1")]
)
def test_who_chooses_the_mask_is_wrong_and_not_the_layer(tmp_path, capsys, wrong, place):
    ported(tmp_path, NET, [*FORM, ("number < self.near", wrong)])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert (origin["layer"], origin["where"], origin["between"][1]) == ("", "glue", place)
    assert origin["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)


def test_a_layer_that_is_wrong_by_itself_is_still_one(tmp_path, capsys):
    ported(tmp_path, NET, [*FORM, ("scores.softmax(-1)", "scores.softmax(1)")])
    origins = answer(tmp_path, capsys)["origins"]
    assert {one["layer"].partition(".")[0] for one in origins} == {"layers"}
    assert is_right_with_the_patch(tmp_path, capsys)
