"""Tables that an object which is no layer makes when it is built: a schedule, a maker of anchors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn


class Schedule:
    def __init__(self, first=0.1, last=0.9):
        shares = torch.linspace(first, last, 6)
        self.kept = shares.cumprod(0).sqrt()
        self.noise = (1 - self.kept**2).sqrt()

    def mixed(self, x, noise, step):
        return self.kept[step].reshape(-1, 1) * x + self.noise[step].reshape(-1, 1) * noise


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.schedule = Schedule()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, noise, step):
        return self.head(self.schedule.mixed(self.body(x), noise, step).tanh())


def build():
    torch.manual_seed(2)
    return Net().eval(), (torch.randn(3, 8), torch.randn(3, 8), torch.tensor([1, 4, 2]))
"""
MISTAKES = {
    "a root": ("self.noise = (1 - self.kept**2).sqrt()", "self.noise = 1 - self.kept**2"),
    "a sum for a product": ("shares.cumprod(0)", "(shares.cumsum(0) / 6)"),
    "a number": ("last=0.9", "last=0.8"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_mended_where_it_is_made(tmp_path, capsys, mistake):
    old, new = MISTAKES[mistake]
    assert NET.count(old) == 1
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    (tmp_path / "port.py").write_text(NET.replace(old, new), encoding="utf-8")
    found = answer(tmp_path, capsys)
    (origin,) = found["origins"]
    assert origin["edit"]["confirmed"]
    assert not origin["edit"]["only_here"]
    assert is_right_with_the_patch(tmp_path, capsys)
