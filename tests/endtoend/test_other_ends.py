"""Blocks that end at another value than the reference's: what is wrong before them is still seen."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch, ported  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn


class Points(nn.Module):
    def __init__(self, narrow, wide):
        super().__init__()
        self.linear, self.norm = nn.Linear(narrow, wide, bias=False), nn.BatchNorm1d(wide)

    def forward(self, x, mask):
        x = self.norm(self.linear(x).permute(0, 2, 1)).permute(0, 2, 1)
        x = x.relu() * mask
        return torch.cat([x, x.amax(1, keepdim=True).expand_as(x)], -1)


class Pillars(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Points(6, 6), Points(12, 8)])

    def forward(self, points, count):
        mask = (torch.arange(points.shape[1]) < count[:, None])[..., None].float()
        weight = torch.exp(-points[..., 3:] / 0.3) * mask
        mean = (points * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
        x = torch.cat([points, (points - mean)[..., :2]], -1) * mask
        for layer in self.layers:
            x = layer(x, mask)
        return x.amax(1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.pillars, self.head = Pillars(), nn.Linear(16, 3)

    def forward(self, points, count):
        return self.head(self.pillars(points, count))


def build():
    torch.manual_seed(2)
    net, points = Net(), torch.rand(40, 5, 4)
    for _ in range(3):
        net(points, torch.randint(1, 6, (40,)))
    return net.eval(), (points, torch.randint(1, 6, (40,)))
"""
ENDS = (
    (
        "x = self.norm(self.linear(x).permute(0, 2, 1)).permute(0, 2, 1)",
        "x = self.norm(self.linear(x.flatten(0, 1))).view(*x.shape[:2], -1)",
    ),
    (
        "        return torch.cat([x, x.amax(1, keepdim=True).expand_as(x)], -1)\n",
        "        return x, x.amax(1, keepdim=True)\n",
    ),
    (
        "            x = layer(x, mask)\n",
        "            x, peak = layer(x, mask)\n            x = torch.cat([x, peak.expand_as(x)], -1)\n",
    ),
)


def test_a_port_whose_blocks_end_elsewhere_is_right(tmp_path, capsys):
    ported(tmp_path, NET, ENDS)
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


@pytest.mark.parametrize("mistake", [("/ 0.3) * mask", "/ 0.3)"), ("/ 0.3) * mask", "/ 0.2) * mask")])
def test_what_is_wrong_before_them_is_the_origin(tmp_path, capsys, mistake):
    ported(tmp_path, NET, (*ENDS, mistake))
    found = answer(tmp_path, capsys)
    assert [(origin["layer"], origin["between"]) for origin in found["origins"]] == [
        ("pillars", ["", "pillars.layers.0"])
    ]
    assert is_right_with_the_patch(tmp_path, capsys)
