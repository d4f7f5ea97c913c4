"""Settings that stand in a row of numbers, of which each stage of a net is given one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import (  # noqa: E402 - only after it is known to be there
    _here,  # noqa: F401 - a fixture
    answer,
    is_right_with_the_patch,
    ported,
)

STAGES = """
import torch
from torch import nn


class Unit(nn.Module):
    def __init__(self, ins, outs, stride):
        super().__init__()
        self.conv = nn.Conv2d(ins, outs, 3, stride=stride, padding=1)
        self.short = nn.Conv2d(ins, outs, 1, stride=stride)

    def forward(self, x):
        return torch.relu(self.conv(x)) + self.short(x)


class Net(nn.Module):
    def __init__(self, widths=(4, 6, 8), strides=[1, 2, 1]):
        super().__init__()
        units, ins = [], 3
        for width, stride in zip(widths, strides):
            units.append(nn.Sequential(*(Unit(ins if not i else width, width, 1 if i else stride) for i in range(2))))
            ins = width
        self.stages = nn.Sequential(*units)
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.stages(x).mean((2, 3)))


def build():
    torch.manual_seed(3)
    return Net(), (torch.randn(2, 3, 12, 12),)
"""


def test_one_of_a_row_that_a_class_takes_by_default_is_given(tmp_path, capsys):
    ported(tmp_path, STAGES, [("strides=[1, 2, 1]", "strides=[1, 2, 2]")])
    first, *_ = answer(tmp_path, capsys)["origins"]
    (line,) = first["edit"]["lines"]
    assert line["after"].strip() == "return Net(strides=[1, 2, 1]), (torch.randn(2, 3, 12, 12),)"
    assert not first["edit"]["only_here"]
    assert is_right_with_the_patch(tmp_path, capsys)


def test_one_of_a_row_that_is_given_is_exchanged(tmp_path, capsys):
    net = STAGES.replace("return Net()", "return Net((4, 6, 8), [1, 2, 1])")
    ported(tmp_path, net, [("return Net((4, 6, 8), [1, 2, 1])", "return Net((4, 6, 8), [1, 2, 2])")])
    first, *_ = answer(tmp_path, capsys)["origins"]
    (line,) = first["edit"]["lines"]
    assert line["after"].strip() == "return Net((4, 6, 8), [1, 2, 1]), (torch.randn(2, 3, 12, 12),)"
    assert is_right_with_the_patch(tmp_path, capsys)
