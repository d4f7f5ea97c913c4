"""Ports that hand over joined what the reference hands over in parts, pad in the layer and not before it, end a block
later, keep a table, or predict how long something is: right ones, and mistakes in them.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn
from torch.nn import functional as F


class Cell(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate, self.new = nn.Linear(14, 6), nn.Linear(14, 6)

    def forward(self, h, cz, cq, *seen):
        x = torch.cat((h, *seen), -1)
        z = torch.sigmoid(self.gate(x) + cz)
        return (1 - z) * h + z * (self.new(x) + cq).relu()


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv1d(6, 8, 3), nn.Conv1d(8, 6, 3)

    def forward(self, x, mask):
        x = self.one(F.pad(x * mask, (1, 1))).relu()
        return self.two(F.pad(x * mask, (1, 1))) * mask


class Up(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv1d(6, 6, 1), nn.BatchNorm1d(6)

    def forward(self, x):
        return self.norm(self.conv(x))


class Tall(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x, table):
        return self.linear(x) * table


class Lengths(nn.Module):
    def __init__(self):
        super().__init__()
        self.length, self.embedding, self.out = nn.Linear(6, 1), nn.Embedding(8, 6), nn.Linear(6, 6)
        self.register_buffer("bins", torch.linspace(-2.0, 2.0, 7), persistent=False)

    def forward(self, x, mask):
        far = self.length(x.transpose(1, 2))[..., 0] * mask[:, 0]
        x = x.transpose(1, 2) + self.embedding(torch.bucketize(far, self.bins)) * mask.transpose(1, 2)
        times = torch.round(far.abs().mean(0) * 3 + 0.7).long() + 1
        return self.out(x.repeat_interleave(times, 1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.feed, self.up, self.tall, self.lengths = Cell(), Feed(), Up(), Tall(), Lengths()
        self.gates = nn.Linear(6, 12)
        self.register_buffer("table", torch.linspace(0.5, 1.5, 6), persistent=False)

    def forward(self, x, seen, mask):
        h, contexts = torch.tanh(x), self.gates(x).chunk(2, -1)
        for _ in range(2):
            h = self.cell(h, *contexts, seen[..., :3], seen[..., 3:])
        h = self.tall(h, self.table)
        y = self.feed(h.transpose(1, 2), mask)
        up = F.interpolate(self.up(y), scale_factor=2.0, mode="linear", align_corners=False)
        return up.relu(), self.lengths(y, mask)


def build():
    torch.manual_seed(4)
    net = Net()
    net.up.norm.running_mean.uniform_(-1, 1)
    mask = (torch.arange(9) < torch.tensor([[9], [6]]))[:, None].float()
    return net.eval(), (torch.randn(2, 9, 6), torch.randn(2, 9, 8), mask)
"""

PORT = (
    ("def forward(self, h, cz, cq, *seen):", "def forward(self, h, gates, seen):\n        cz, cq = gates.chunk(2, -1)"),
    ("torch.cat((h, *seen), -1)", "torch.cat((h, seen), -1)"),
    ("contexts = torch.tanh(x), self.gates(x).chunk(2, -1)", "gates = torch.tanh(x), self.gates(x)"),
    ("self.cell(h, *contexts, seen[..., :3], seen[..., 3:])", "self.cell(h, gates, seen)"),
    ("nn.Conv1d(6, 8, 3), nn.Conv1d(8, 6, 3)", "nn.Conv1d(6, 8, 3, padding=1), nn.Conv1d(8, 6, 3, padding=1)"),
    ("self.one(F.pad(x * mask, (1, 1)))", "self.one(x * mask)"),
    ("self.two(F.pad(x * mask, (1, 1)))", "self.two(x * mask)"),
    (
        "        return self.norm(self.conv(x))\n",
        "        x = self.norm(self.conv(x))\n"
        '        return F.interpolate(x, scale_factor=2.0, mode="linear", align_corners=False)\n',
    ),
    ('F.interpolate(self.up(y), scale_factor=2.0, mode="linear", align_corners=False)', "self.up(y)"),
    ('self.register_buffer("bins", torch.linspace(-2.0, 2.0, 7), persistent=False)', "self.bins = BINS"),
    (
        'self.register_buffer("table", torch.linspace(0.5, 1.5, 6), persistent=False)',
        "self.table = torch.linspace(0.5, 1.5, 6)",
    ),
    ("class Cell", "BINS = torch.linspace(-2.0, 2.0, 7) - 1e-8\n\n\nclass Cell"),
)

MISTAKES = {
    "the mask before the second convolution": (("self.two(x * mask)", "self.two(x)"), "feed"),
    "an enlargement of its own": (("align_corners=False)\n\n", "align_corners=True)\n\n"), ""),
    "a table": (("torch.linspace(0.5, 1.5, 6)", "torch.linspace(0.5, 2.5, 6)"), ""),
    "what a length is rounded to": (("torch.round(", "torch.floor("), "lengths"),
    "the other gate": (("return (1 - z) * h + z *", "return z * h + (1 - z) *"), "cell"),
}


def test_the_port_is_right(tmp_path, capsys):
    ported(tmp_path, NET, PORT)
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_found_at_its_place_and_the_patch_is_right(tmp_path, capsys, mistake):
    edit, layer = MISTAKES[mistake]
    ported(tmp_path, NET, (*PORT, edit))
    found = answer(tmp_path, capsys)
    assert [origin["layer"] for origin in found["origins"]] == [layer]
    assert is_right_with_the_patch(tmp_path, capsys)
