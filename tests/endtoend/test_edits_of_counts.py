"""How many rows a layer is given: a number that steers, and a part that is enough."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch  # noqa: E402, F401

MASKED = """
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.places = nn.Parameter(torch.randn(9, 8))

    def forward(self, x, ids):
        taken = torch.gather(x, 1, ids[:, :, None].expand(-1, -1, x.shape[2]))
        return self.norm(self.first(taken) + self.places[ids])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.last = Encoder(), nn.Linear(8, 3)
        self.share = 0.6

    def forward(self, x, noise):
        length = x.shape[1]
        keep = int(length * (1 - self.share))
        order = torch.argsort(noise, dim=1)
        return self.last(self.encoder(x, order[:, :keep])), torch.argsort(order, dim=1) < keep


def build():
    torch.manual_seed(2)
    return Net().eval(), (torch.randn(2, 9, 6), torch.rand(2, 9))
"""

DRAWN = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act = nn.Linear(6, 6), nn.LeakyReLU(0.1)

    def forward(self, x, drawn):
        return x + self.act(self.first(x[:, drawn]))


class Stack(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(depth)])

    def forward(self, x, draws):
        for i, layer in enumerate(self.layers):
            x = layer(x, draws[i])
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stacks, self.last = nn.ModuleList([Stack(2), Stack(1)]), nn.Linear(6, 3)

    def forward(self, x, draws):
        site = 0
        for stack in self.stacks:
            x = stack(x, draws[site:])
            site += len(stack.layers)
        return self.last(x)


def build():
    torch.manual_seed(2)
    return Net().eval(), (torch.randn(2, 5, 6), torch.randint(0, 5, (4, 5)))
"""


def test_a_number_that_gives_one_row_more_is_found_behind_what_does_not_fit(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(MASKED, encoding="utf-8")
    wrong = MASKED.replace("int(length * (1 - self.share))", "length - int(length * self.share)")
    (tmp_path / "port.py").write_text(wrong, encoding="utf-8")
    origins = answer(tmp_path, capsys)["origins"]
    assert {origin["layer"] for origin in origins} == {""}
    assert all(origin["edit"]["confirmed"] for origin in origins)
    assert is_right_with_the_patch(tmp_path, capsys)


@pytest.mark.parametrize("slope", [0.1, 0.2])
def test_a_part_that_is_enough_is_right_beside_what_is_wrong_inside(tmp_path, capsys, slope):
    port = DRAWN.replace("draws[site:]", "draws[site : site + len(stack.layers)]")
    (tmp_path / "ref.py").write_text(DRAWN, encoding="utf-8")
    (tmp_path / "port.py").write_text(port.replace("LeakyReLU(0.1)", f"LeakyReLU({slope})"), encoding="utf-8")
    said = answer(tmp_path, capsys)
    assert not said["suspects"]
    layers = {origin["layer"] for origin in said["origins"]}
    assert layers == (
        set() if slope == 0.1 else {f"stacks.{at}.act" for at in ("0.layers.0", "0.layers.1", "1.layers.0")}
    )


LAGS = """
import math
import torch
from torch import nn


class Lags(nn.Module):
    def __init__(self, factor=2.0):
        super().__init__()
        self.factor, self.line = factor, nn.Linear(7, 7)

    def forward(self, x):
        batch, length, dim = x.shape
        most = int(self.factor * math.log(length))
        far, lags = torch.fft.irfft(torch.fft.rfft(x, dim=1).abs(), n=length, dim=1).mean(2).topk(most, dim=-1)
        weights = far.softmax(-1)
        found = torch.zeros_like(x)
        for i in range(most):
            place = (torch.arange(length)[None] + lags[:, i : i + 1]) % length
            moved = torch.gather(x, 1, place[..., None].expand(batch, length, dim))
            found = found + moved * weights[:, i].view(-1, 1, 1)
        return self.line(found)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = Lags(), Lags()

    def forward(self, x, y):
        return self.one(x), self.two(y)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 12, 7), torch.randn(2, 20, 7))
"""


def test_a_number_that_is_right_in_one_layer_gives_way_to_what_is_right_in_all(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(LAGS, encoding="utf-8")
    wrong = LAGS.replace("int(self.factor * math.log(length))", "int(round(self.factor * math.log(length)))")
    (tmp_path / "port.py").write_text(wrong, encoding="utf-8")
    (edit,) = answer(tmp_path, capsys)["origins"][0]["edit"]["lines"]
    assert edit["after"].strip() == "most = int(self.factor * math.log(length))"
    assert is_right_with_the_patch(tmp_path, capsys)
