"""Two layers of the reference's that a port has as one: what is wrong in the other's code is mended in that layer."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import math

import torch
from torch import nn


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([2.5]))

    def forward(self, x):
        return x.clamp(min=1e-6).pow(self.p).mean(2).pow(1 / self.p)


class Parts(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = nn.Parameter(torch.tensor([2.0, 3.0, 3.5]))

    def forward(self, x):
        found = []
        for part in range(3):
            start, end = part * x.shape[2] // 3, math.ceil((part + 1) * x.shape[2] / 3)
            found.append(x[:, :, start:end].clamp(min=1e-6).pow(self.p[part]).mean(2).pow(1 / self.p[part]))
        return found


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.out = nn.Conv1d(4, 6, 3), nn.Linear(6, 3)
        self.whole, self.parts = Whole(), Parts()
        self.heads = nn.ModuleList(nn.Linear(6, 4) for _ in range(3))

    def forward(self, x):
        x = self.mix(x)
        whole, parts = self.whole(x), self.parts(x)
        return self.out(whole), [head(part) for head, part in zip(self.heads, parts)]


def build():
    torch.manual_seed(7)
    return Net().eval(), torch.rand(2, 4, 10)
"""
JOINED = """class Pooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.p, self.part_p = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(3))

    def mean(self, x, p):
        return x.clamp(min=1e-6).pow(p).mean(2).pow(1 / p)

    def forward(self, x):
        size, found = x.shape[2], []
        for part in range(3):
            first, last = part * size // 3, -(-(part + 1) * size // 3)
            found.append(self.mean(x[:, :, first:last], self.part_p[part]))
        return self.mean(x, self.p), found


"""
FORMS = [
    (NET[NET.index("class Whole") : NET.index("class Net")], JOINED),
    ("self.whole, self.parts = Whole(), Parts()", "self.pooling = Pooling()"),
    ("whole, parts = self.whole(x), self.parts(x)", "whole, parts = self.pooling(x)"),
]


def written(mistake=()):
    """The forms of the port, with a mistake in its own code."""
    return [(old, new.replace(*mistake) if mistake else new) for old, new in FORMS]


def test_the_port_is_right(tmp_path, capsys):
    ported(tmp_path, NET, written())
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


@pytest.mark.parametrize(
    "mistake", [("-(-(part + 1) * size // 3)", "(part + 1) * size // 3"), ("self.part_p[part]", "self.part_p[0]")]
)
def test_the_mistake_is_the_other_layers(tmp_path, capsys, mistake):
    ported(tmp_path, NET, written(mistake))
    origins = answer(tmp_path, capsys)["origins"]
    assert {origin["layer"] for origin in origins} == {"parts"}
    assert origins[0]["edit"] is not None
    assert is_right_with_the_patch(tmp_path, capsys)
