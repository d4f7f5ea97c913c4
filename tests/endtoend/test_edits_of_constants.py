"""Constants of a file, in another order or with another number: mended where they stand."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - as above

REFERENCE = """
import torch
from torch import nn

MEAN = (0.48, 0.45, 0.4)
STD = (0.22, 0.24, 0.25)
SIZES = ((5.0, 7.0), (8.0, 15.0), (16.0, 11.0))
SLOPE: float = 0.3
STEPS = ((1 / 5,), (3 / 40, 9 / 40), (44 / 45, -56 / 15, 32 / 9))
HALF = 0.27 / 2


def travelled(x):
    for row in STEPS:
        x = x + sum(one * torch.tanh(x + number) for number, one in enumerate(row))
    return x + torch.sin(x) * HALF


def spread(x):
    return torch.where(x > 0, x, x * SLOPE)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.tensor(MEAN).reshape(1, 3, 1)
        self.std = torch.tensor(STD).reshape(1, 3, 1)
        self.sizes, self.order = torch.tensor(SIZES), torch.tensor([4, 1, 0, 3, 2, 5])
        self.one, self.two = nn.Linear(6, 2), nn.Linear(2, 2)

    def forward(self, x):
        x = self.one((x[..., self.order] - self.mean) / self.std)
        x = x * self.sizes
        return travelled(self.two(spread(x)))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 3, 6),)
"""

MISTAKES = {
    "one backwards": [("(0.48, 0.45, 0.4)", "(0.4, 0.45, 0.48)")],
    "two backwards": [("(0.48, 0.45, 0.4)", "(0.4, 0.45, 0.48)"), ("(0.22, 0.24, 0.25)", "(0.25, 0.24, 0.22)")],
    "rows backwards": [("((5.0, 7.0), (8.0, 15.0), (16.0, 11.0))", "((16.0, 11.0), (8.0, 15.0), (5.0, 7.0))")],
    "all pairs turned": [("((5.0, 7.0), (8.0, 15.0), (16.0, 11.0))", "((7.0, 5.0), (15.0, 8.0), (11.0, 16.0))")],
    "two exchanged": [("(5.0, 7.0), (8.0, 15.0)", "(8.0, 15.0), (5.0, 7.0)")],
    "other numbers in a table": [("(0.22, 0.24, 0.25)", "(0.23, 0.24, 0.26)")],
    "a number in rows": [("(8.0, 15.0)", "(8.0, 16.0)")],
    "a number of a table without a name": [("torch.tensor([4, 1, 0, 3, 2, 5])", "torch.tensor([4, 1, 2, 3, 0, 5])")],
    "a fraction": [("-56 / 15", "-65 / 15")],
    "a number that is worked out": [("0.27 / 2", "0.24 / 2")],
    "another number": [("SLOPE: float = 0.3", "SLOPE: float = 0.2")],
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_patch_makes_the_port_right(tmp_path, capsys, monkeypatch, mistake):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    text = REFERENCE
    for old, new in MISTAKES[mistake]:
        assert text.count(old) == 1
        text = text.replace(old, new)
    (tmp_path / "port.py").write_text(text, encoding="utf-8")
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"] is not None
    assert {line["line"] for line in origin["edit"]["lines"]} <= {5, 6, 7, 8, 9, 10, 28}
    assert is_right_with_the_patch(tmp_path, capsys)
