"""A word that a function takes by default and hands on to another: it is told where the first one is called."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn
from torch.nn import functional as F


def sample(volume, places, mode="bilinear"):
    return F.grid_sample(volume, places * 2 - 1, mode=mode, align_corners=True)


def warp(volume, places, mode="bilinear"):
    return sample(volume, places.clamp(0, 1), mode)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Conv2d(3, 3, 1)

    def forward(self, x, labels, places):
        x = self.mix(warp(x, places))
        return x, warp(labels, places, mode="nearest").long()


def build():
    torch.manual_seed(3)
    labels = torch.randint(0, 9, (2, 1, 6, 6)).float()
    return Net().eval(), (torch.randn(2, 3, 6, 6), labels, torch.rand(2, 5, 5, 2))
"""


def test_it_is_told_where_the_outer_function_is_called(tmp_path, capsys):
    ported(tmp_path, NET, [('places, mode="nearest")', "places)")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    (line,) = origin["edit"]["lines"]
    assert line["after"].strip() == "return x, warp(labels, places, mode='nearest').long()"
    assert is_right_with_the_patch(tmp_path, capsys)
