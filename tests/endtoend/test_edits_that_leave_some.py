"""Two mistakes in one layer, of which one has an edit: what that leaves wrong is told, with its own line."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from aligner.cli import main  # noqa: E402
from tests.endtoend.test_edits_of_ports import _here, answer, ported  # noqa: E402, F401

NET = """
import math

import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(8, 8)

    def forward(self, x, keep):
        x = self.mix(x)
        mean = (x * keep).sum(1) / keep.sum(1)
        table = torch.tensor([math.sin(i * i + 1.0) for i in range(8)])
        return mean, x.sigmoid() * table


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.one, self.two = Head(), nn.Linear(8, 3), nn.Linear(8, 4)

    def forward(self, x, keep):
        mean, rows = self.head(x, keep)
        return self.one(mean), self.two(rows)


def build():
    torch.manual_seed(3)
    keep = torch.ones(2, 6, 1)
    keep[1, 4:] = 0
    return Net().eval(), (torch.randn(2, 6, 8), keep)
"""

MEAN = ("(x * keep).sum(1) / keep.sum(1)", "x.mean(1)")
TABLE = ("math.sin(i * i + 1.0)", "math.erf(i - 3.0) + i % 3")


def test_what_an_edit_leaves_wrong_is_told_with_its_line(tmp_path, capsys):
    ported(tmp_path, NET, [MEAN, TABLE])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert "keep" in origin["edit"]["lines"][0]["after"]
    assert [(one["layer"], one["slot"]) for one in origin["left"]] == [("head", "output.1")]
    assert "table" in origin["left_line"]["port"]["text"]
    main(["compare", "ref.h5", "port.h5"])
    said = " ".join(capsys.readouterr().out.split())
    assert "also wrong head output.1, with the change as well" in said


def test_nothing_is_left_where_the_edit_puts_all_right(tmp_path, capsys):
    ported(tmp_path, NET, [MEAN])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"] is not None
    assert (origin["left"], origin["left_line"]) == ([], None)
