"""A mask of zeros and ones whose axes stand in another order in the port, where it is one of true and false."""

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
        self.query, self.key, self.value = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x, mask):
        scores = torch.einsum("ibd,jbd->bij", self.query(x), self.key(x))
        scores = scores - 1e30 * mask.permute(2, 0, 1)
        return x + torch.einsum("bij,jbd->ibd", scores.softmax(-1), self.value(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.layers = nn.Linear(8, 8), nn.ModuleList(Attention() for _ in range(1))

    def forward(self, x, lengths, ranks):
        x = self.first(x).transpose(0, 1)
        padding = (torch.arange(x.shape[0])[:, None] >= lengths[None]).float()
        early = (ranks[:, :, None] < ranks[:, None, :]).float()
        mask = ((early.permute(1, 2, 0) + padding[None]) > 0).float()
        for layer in self.layers:
            x = layer(x, mask)
        return x


def build():
    torch.manual_seed(4)
    ranks = torch.stack([torch.randperm(6) for _ in range(3)])
    ranks[1, 0] = ranks[1, 1] = 0
    return Net().eval(), (torch.randn(3, 6, 8), torch.tensor([6, 4, 5]), ranks)
"""
PORT = [
    ("scores = scores - 1e30 * mask.permute(2, 0, 1)", "scores = torch.where(mask, scores, -1e30)"),
    (
        "padding = (torch.arange(x.shape[0])[:, None] >= lengths[None]).float()",
        "real = torch.arange(x.shape[0])[None] < lengths[:, None]",
    ),
    ("early = (ranks[:, :, None] < ranks[:, None, :]).float()", "late = ranks[:, :, None] >= ranks[:, None, :]"),
    ("mask = ((early.permute(1, 2, 0) + padding[None]) > 0).float()", "mask = late & real[:, None, :]"),
]


def test_a_wrong_one_is_the_mistake_of_who_makes_it(tmp_path, capsys):
    ported(tmp_path, NET, [*PORT[:2], (PORT[2][0], PORT[2][1].replace(">=", ">")), PORT[3]])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == ""
    assert "ranks[:, :, None] >= ranks[:, None, :]" in origin["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


def test_a_right_one_is_right(tmp_path, capsys):
    ported(tmp_path, NET, PORT)
    found = answer(tmp_path, capsys)
    assert found["origins"] == []
    assert found["outcome"] == "aligned"


def test_a_right_one_beside_a_mistake_is_not_blamed(tmp_path, capsys):
    ported(tmp_path, NET, [*PORT, ("scores.softmax(-1)", "scores.softmax(-2)")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"].startswith("layers.0")
    assert origin["edit"]["confirmed"]
