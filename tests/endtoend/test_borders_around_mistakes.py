"""A layer that ends later than the reference's, around blocks with a mistake: it is none beside them."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import (  # noqa: E402 - only after it is known to be there
    _here,  # noqa: F401 - a fixture
    answer,
    is_right_with_the_patch,
)

REFERENCE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.one, self.two = nn.Conv2d(width, 4, 1), nn.Conv2d(width + 4, 4, 1)

    def forward(self, x):
        for layer in (self.one, self.two):
            x = torch.cat((x, layer(x).relu()), 1)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 4, 1), Block(4), nn.Conv2d(12, 6, 1), Block(6), nn.BatchNorm2d(14))
        self.last = nn.Linear(14, 5)

    def forward(self, x):
        return self.last(self.features(x).relu().mean((2, 3)))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 3, 5, 5),)
"""
PORT = REFERENCE.replace("nn.BatchNorm2d(14))", "nn.BatchNorm2d(14), nn.ReLU())").replace("(x).relu().mean", "(x).mean")


def test_the_right_port_is_right(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(PORT, encoding="utf-8")
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


def test_the_blocks_alone_are_wrong(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(PORT.replace("(x, layer(x).relu())", "(layer(x).relu(), x)"), encoding="utf-8")
    assert {one["layer"] for one in answer(tmp_path, capsys)["origins"]} <= {"features.1", "features.3"}
    assert is_right_with_the_patch(tmp_path, capsys)


MIXERS = """
import torch
from torch import nn


class Pooling(nn.Module):
    def __init__(self):
        super().__init__()
        self.pool = nn.AvgPool2d(3, 1, 1, count_include_pad=False)

    def forward(self, x):
        return self.pool(x) - x


class Block(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.norm, self.mixer, self.drop = nn.BatchNorm2d(width), Pooling(), nn.Identity()
        self.scale = nn.Parameter(torch.rand(width, 1, 1) + 0.5)
        self.fc = nn.Conv2d(width, width, 1)

    def forward(self, x):
        return self.fc(x + self.scale * self.drop(self.mixer(self.norm(x))))


def build():
    torch.manual_seed(3)
    return nn.Sequential(Block(), Block()).eval(), (torch.randn(2, 6, 8, 8),)
"""


@pytest.mark.parametrize("wrong", [False, True])
def test_a_value_that_stands_at_another_border_only_while_it_is_held_excuses_no_layer(tmp_path, capsys, wrong):
    port = MIXERS.replace(
        "self.scale * self.drop(self.mixer(self.norm(x)))", "self.drop(self.scale * self.mixer(self.norm(x)))"
    )
    port = port.replace("self.pool(x) - x", "self.pool(x)") if wrong else port
    (tmp_path / "ref.py").write_text(MIXERS, encoding="utf-8")
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    found = answer(tmp_path, capsys)
    assert {one["layer"] for one in found["origins"]} == ({"0.mixer", "1.mixer"} if wrong else set())
    assert is_right_with_the_patch(tmp_path, capsys) if wrong else found["outcome"] == "aligned"


STEM = """
import torch
from torch import nn
from torch.nn import functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6))
        self.block, self.last = nn.Conv2d(6, 6, 3), nn.Linear(6, 5)
        nn.init.uniform_(self.stem[1].running_var, 0.02, 0.1)

    def forward(self, x, mask):
        x = F.silu(self.stem(x))
        return self.last(self.block(x * mask).mean((2, 3)))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 3, 9, 9), (torch.rand(2, 1, 7, 7) > 0.3).float())
"""


def test_what_ends_later_than_its_wrong_last_layer_is_no_mistake_beside_that(tmp_path, capsys):
    """The reference's block ends with that layer: what both hand on is one value."""
    port = STEM.replace("nn.BatchNorm2d(6))", "nn.BatchNorm2d(6, eps=1e-2), nn.SiLU())")
    port = port.replace("F.silu(self.stem(x))", "self.stem(x)")
    (tmp_path / "ref.py").write_text(STEM, encoding="utf-8")
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    assert [one["layer"] for one in answer(tmp_path, capsys)["origins"]] == ["stem.1"]
    assert is_right_with_the_patch(tmp_path, capsys)


MASKED = """
import torch
from torch import nn


class Act(nn.Linear):
    def forward(self, x):
        return super().forward(x).relu()


class Stem(nn.Module):
    def __init__(self):
        super().__init__()
        self.line, self.norm = nn.Linear(5, 6), nn.LayerNorm(6)

    def forward(self, x, lengths):
        x = self.norm(self.line(x[:, ::2]))
        lengths = (lengths + 1) // 2
        return x, torch.arange(x.shape[1])[None] < lengths[:, None]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 6)

    def forward(self, x, mask):
        scores = (x @ x.transpose(1, 2)).masked_fill(~mask[:, None], -1e9)
        return self.line(scores.softmax(-1) @ x)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Sequential(nn.Linear(6, 8), nn.ReLU()), nn.Sequential(nn.Linear(6, 8), nn.ReLU())
        self.norm = nn.LayerNorm(8)

    def forward(self, x, mask):
        u, v = self.one(x), self.two(x)
        scores = (u @ v.transpose(1, 2)).masked_fill(~mask[:, None], -1e9)
        return self.norm((u * (scores.softmax(-1) @ v)).sum(1)), scores.tanh() * mask[:, None]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block, self.head = Stem(), Block(), Head()

    def forward(self, x, lengths):
        x, mask = self.stem(x, lengths)
        return self.head(self.block(x, mask), mask)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(3, 12, 5), torch.tensor([11, 7, 9]))
"""


def test_a_layer_with_its_activation_is_no_mistake_beside_a_wrong_mask(tmp_path, capsys):
    """Its code is given the mask as it is: what that makes tells nothing of the layers."""
    port = MASKED.replace("nn.Sequential(nn.Linear(6, 8), nn.ReLU())", "Act(6, 8)")
    (tmp_path / "ref.py").write_text(MASKED, encoding="utf-8")
    (tmp_path / "port.py").write_text(port.replace("(lengths + 1) // 2", "lengths // 2"), encoding="utf-8")
    assert {one["layer"] for one in answer(tmp_path, capsys)["origins"]} == {"stem"}
    assert is_right_with_the_patch(tmp_path, capsys)


@pytest.mark.parametrize("functional", [False, True])
def test_a_layer_of_the_users_with_its_activation_is_right(tmp_path, capsys, functional):
    reference = MASKED
    if functional:
        reference = reference.replace("nn.Sequential(nn.Linear(6, 8), nn.ReLU())", "nn.Linear(6, 8)")
        reference = reference.replace("self.one(x), self.two(x)", "self.one(x).relu(), self.two(x).relu()")
    port = MASKED.replace("nn.Sequential(nn.Linear(6, 8), nn.ReLU())", "Act(6, 8)")
    (tmp_path / "ref.py").write_text(reference, encoding="utf-8")
    (tmp_path / "port.py").write_text(port, encoding="utf-8")
    assert answer(tmp_path, capsys)["outcome"] == "aligned"
