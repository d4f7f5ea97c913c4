"""Cosines and sines that a layer is given one by one, beside masks of their size: no mask is set against them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch  # noqa: E402, F401

REFERENCE = """
import torch
from torch import nn


def turned(x, cos, sin):
    return x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin


class Block(nn.Module):
    def __init__(self, near):
        super().__init__()
        self.near, self.into, self.out = near, nn.Linear(8, 16), nn.Linear(8, 8)

    def forward(self, x, angles, full, near):
        cos, sin = angles
        q, k = (turned(one, cos, sin) for one in self.into(x).chunk(2, -1))
        scores = (q @ k.transpose(1, 2) / 8).masked_fill(~(near if self.near else full)[:, 0], -1e9)
        return x + self.out(scores.softmax(-1) @ x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block(near) for near in (False, True))
        self.register_buffer("rates", 1.0 / 1000.0 ** (torch.arange(0, 8, 2) / 8), persistent=False)

    def forward(self, x, places):
        angles = places[:, :, None] * self.rates
        both = torch.cat((angles, angles), -1)
        apart = places[:, :, None] - places[:, None]
        full = (apart >= 0)[:, None]
        near = full & (apart < 2)[:, None]
        for block in self.blocks:
            x = block(x, (both.cos(), both.sin()), full, near)
        return x


def build():
    torch.manual_seed(2)
    return Net().eval(), (torch.randn(3, 4, 8), torch.tensor([[0.0, 1, 2, 3], [1, 2, 3, 4], [0, 2, 4, 6]]))
"""

PORT = [
    (
        "    return x * cos + torch.cat((-x[..., 4:], x[..., :4]), -1) * sin",
        "    cos, sin = (one.squeeze(1) for one in (cos, sin))\n    one, other = x.chunk(2, -1)\n"
        "    return torch.cat((one * cos - other * sin, other * cos + one * sin), -1)",
    ),
    (
        "def forward(self, x, angles, full, near):\n        cos, sin = angles\n",
        "def forward(self, x, cos, sin, seen):\n",
    ),
    ("def __init__(self, near):", "def __init__(self):"),
    ("self.near, self.into, self.out = near, nn", "self.into, self.out = nn"),
    ("(near if self.near else full)[:, 0]", "seen[:, 0]"),
    ("Block(near) for near in (False, True)", "Block() for _ in range(2)"),
    (
        "        angles = places[:, :, None] * self.rates\n        both = torch.cat((angles, angles), -1)\n",
        "        angles = (places[:, :, None] * self.rates)[:, None]\n",
    ),
    (
        "        for block in self.blocks:\n            x = block(x, (both.cos(), both.sin()), full, near)",
        "        for i, block in enumerate(self.blocks):\n"
        "            x = block(x, angles.cos(), angles.sin(), near if i % 2 else full)",
    ),
]


def ported(folder, wrong):
    text = REFERENCE
    for old, new in [*PORT, *wrong]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (folder / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (folder / "port.py").write_text(text, encoding="utf-8")


def test_the_right_port_is_aligned(tmp_path, capsys):
    ported(tmp_path, [])
    said = answer(tmp_path, capsys)
    assert (said["outcome"], said["origins"], said["suspects"]) == ("aligned", [], [])


@pytest.mark.parametrize(("right", "wrong"), [("1000.0 **", "10.0 **"), ("(apart < 2)", "(apart < 3)")])
def test_a_wrong_one_is_one_mistake_with_its_edit(tmp_path, capsys, right, wrong):
    ported(tmp_path, [(right, wrong)])
    said = answer(tmp_path, capsys)
    assert len({str(one["edit"] and one["edit"]["lines"]) for one in said["origins"]}) == 1
    assert is_right_with_the_patch(tmp_path, capsys)
