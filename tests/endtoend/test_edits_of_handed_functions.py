"""A sampler that is given a function which calls the net with its caller's values: the code of both is mended."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import math

import torch
from torch import nn


class Noise(nn.Module):
    def __init__(self):
        super().__init__()
        self.label, self.mix, self.last = nn.Embedding(5, 8), nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, time, label):
        return self.last(torch.relu(self.mix(x) * time + self.label(label)))


class Sampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.levels = [0.2, 0.5, 0.9, 1.0]

    def forward(self, x, predict):
        for now, after in zip(self.levels[:-1], self.levels[1:]):
            guess = predict(x, now)
            start = (x - math.sqrt(1.0 - now) * guess) / math.sqrt(now)
            x = math.sqrt(after) * start + math.sqrt(1.0 - after) * guess
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.noise, self.sampler = Noise(), Sampler()

    def guided(self, x, time, label):
        both = torch.cat((label, torch.full_like(label, 4)))
        found = self.noise(torch.cat((x, x)), time, both)
        told, plain = found[: len(x)], found[len(x) :]
        return plain + 2.0 * (told - plain)

    def forward(self, x, label):
        few = label[:2]

        def predict(part, time):
            return self.guided(part, time, few) * 0.5

        return self.noise(x, 0.3, label), self.sampler(x[:2], predict)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(4, 8), torch.tensor([0, 3, 1, 2]))
"""

MISTAKES = [
    ("torch.cat((label, torch.full_like(label, 4)))", "torch.cat((torch.full_like(label, 4), label))"),
    ("plain + 2.0 * (told - plain)", "plain + 2.0 * (plain - told)"),
    ("math.sqrt(after) * start", "math.sqrt(now) * start"),
    ("few) * 0.5", "few) * 0.6"),
    ("self.guided(part, time, few)", "self.guided(part, time, few + 1)"),
]


@pytest.mark.parametrize(("right", "wrong"), MISTAKES)
def test_the_patch_makes_the_port_right(tmp_path, capsys, right, wrong):
    ported(tmp_path, NET, [(right, wrong)])
    assert answer(tmp_path, capsys)["origins"][0]["layer"] == "sampler"
    assert is_right_with_the_patch(tmp_path, capsys)
