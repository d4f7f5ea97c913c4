"""Numbers that an operation of the framework's has inside, and the port has to write."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch  # noqa: E402, F401

NET = """
import torch
from torch import nn

SHIFT, LIMIT = 3.0, 0.5
CUT = 6.0


def gated(x, cut=CUT):
    return x * torch.minimum((x + SHIFT).clamp(min=0), torch.tensor(cut)) / cut


class Act(nn.Module):
    def forward(self, x):
        return gated(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(6, 8), Act(), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.act(self.first(x)))


def build():
    torch.manual_seed(4)
    return Net().eval(), 4 * torch.randn(5, 6)
"""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [("CUT = 6.0", "CUT = 5.2"), ("SHIFT, LIMIT = 3.0, 0.5", "SHIFT, LIMIT = 2.6, 0.5")],
    ids=["a default", "one of two"],
)
def test_runs_tell_what_the_reference_does_not_say(tmp_path, capsys, right, wrong):
    (tmp_path / "ref.py").write_text(NET.replace("Act(),", "nn.Hardswish(),"), encoding="utf-8")
    (tmp_path / "port.py").write_text(NET.replace(right, wrong), encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == "act"
    assert origin["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)


COUNTED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 8)

    def forward(self, x, keep):
        x, keep = self.first(x), keep.float()
        counted = (keep > 0).float() * 0.5 + 0.5
        part = (x.square().mean(-1) * keep).sum() / keep.sum()
        whole = x.abs().mean(-1) * counted
        return part, whole.sum() / counted.sum(), x


def build():
    torch.manual_seed(4)
    return Net().eval(), (torch.randn(2, 9, 6), torch.arange(9) < torch.tensor([[7], [4]]))
"""


@pytest.mark.parametrize(
    ("right", "wrong", "count"),
    [
        ("(x.square().mean(-1) * keep).sum() / keep.sum()", "x.square().mean(-1).mean()", "keep.sum()"),
        ("whole.sum() / counted.sum()", "whole.sum() / keep.sum()", "counted.sum()"),
    ],
    ids=["a mean of all", "another count"],
)
def test_a_count_is_worked_out_and_no_number(tmp_path, capsys, right, wrong, count):
    (tmp_path / "ref.py").write_text(COUNTED, encoding="utf-8")
    assert COUNTED.count(right) == 1
    (tmp_path / "port.py").write_text(COUNTED.replace(right, wrong), encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    (line,) = origin["edit"]["lines"]
    assert count in line["after"]
    assert is_right_with_the_patch(tmp_path, capsys)
