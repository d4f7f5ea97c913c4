"""A port that hands on something else, and nobody knows where it is made: that is not called rounding."""

from __future__ import annotations

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

from aligner.cli import main  # noqa: E402
from aligner.replay import examination  # noqa: E402
from tests.endtoend.test_edits_of_ports import _here, answer, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        x = self.one(x)
        x = self.two(x.sigmoid())
        for _ in range(TURNS):
            x = 3.9 * x.sigmoid() * (1 - x.sigmoid()) * 4 - 2
        return x


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randn(2, 12, 6),)
"""


@pytest.fixture
def blind(monkeypatch):
    """A forced pass that takes all for right."""

    def right(checks, *rest):
        return [replace(check, error=0.0, deviation=None) for check in checks], rest[2]

    monkeypatch.setattr(examination, "_read", right)


@pytest.mark.usefixtures("blind")
def test_what_noise_does_not_explain_is_a_mistake_that_nobody_has_seen(tmp_path, capsys):
    ported(tmp_path, NET.replace("TURNS", "2"), [("x.sigmoid())\n        for", "1.02 * x.sigmoid())\n        for")])
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"]) == ("diverged", [])
    assert [one["id"] for one in found["warnings"]] == ["growth-unexplained"]
    assert main(["compare", "ref.h5", "port.h5"]) == 1
    assert "Nothing was found to be wrong by itself" in " ".join(capsys.readouterr().out.split())


STEPS = """
import torch
from torch import nn


class Step(nn.Module):
    def forward(self, x):
        return 1 - 1.9 * x * x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.step = nn.Linear(6, 6), Step()

    def forward(self, x):
        x = self.one(x).sigmoid()
        for _ in range(20):
            x = self.step(x)
        return x


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randn(2, 12, 6),)
"""


def test_where_rounding_grows_it_is_rounding(tmp_path, capsys):
    ported(tmp_path, STEPS, [("1.9 * x * x", "x * x * 1.9")])
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["warnings"]) == ("aligned", [], [])
    assert max(pair["error"] for pair in found["pairs"]) > 1e-3
