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
