"""A loop that ends when its own values say so turns otherwise in a wrong port: its turns are still each other's."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.context, self.dynamic, self.out = nn.Linear(9, 8), nn.Linear(1, 8), nn.Linear(8, 6)

    def forward(self, x, left):
        query = self.context(torch.cat((x, left), dim=-1))
        keys = self.dynamic(torch.cos(left))
        return self.out(torch.tanh(query * keys))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.step, self.names = Step(), nn.Embedding(6, 8)

    def forward(self, x):
        left, made = torch.ones(x.shape[0], 1), []
        while left.max() > 0 and len(made) < 12:
            scores = self.step(x, left)
            made.append(scores)
            chosen = scores.argmax(-1)
            left = (left - 0.1 - 0.05 * chosen[:, None]).clamp(min=0.0)
            x = x + self.names(chosen)
        return torch.stack(made).sum(0)


def build():
    torch.manual_seed(0)
    return Net().eval(), (torch.randn(4, 8),)
"""
TURNED = [
    (
        "        query = self.context(torch.cat((x, left), dim=-1))\n        keys = self.dynamic(torch.cos(left))\n",
        "        keys = self.dynamic(torch.cos(left))\n        query = self.context(torch.cat((x, left), dim=-1))\n",
    ),
]
USED = (TURNED[0][0], TURNED[0][1].replace("(x, left)", "(x, 1.0 - left)"))


def test_what_each_turn_calls_is_what_its_counterpart_calls(tmp_path, capsys):
    ported(tmp_path, NET, [USED])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == "step"
    assert origin["edit"]["lines"][0]["after"].strip() == "query = self.context(torch.cat((x, left), dim=-1))"
    assert is_right_with_the_patch(tmp_path, capsys)


def test_the_other_order_alone_is_right(tmp_path, capsys):
    ported(tmp_path, NET, TURNED)
    assert answer(tmp_path, capsys)["outcome"] == "aligned"
