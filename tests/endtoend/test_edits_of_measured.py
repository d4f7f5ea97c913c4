"""Positions that begin at zero in every step: the edit counts them from the size of what the cache has by then."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


def tables(start, length, width):
    angles = torch.arange(start, start + length)[:, None] / 10 ** (torch.arange(width) / width)
    return angles.cos(), angles.sin()


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x, cos, sin, cache):
        keys, values = self.key(x) * cos + self.key(x).flip(-1) * sin, self.value(x)
        if cache is not None:
            keys, values = torch.cat((cache[0], keys), dim=1), torch.cat((cache[1], values), dim=1)
        return x + (x @ keys.transpose(1, 2)).softmax(-1) @ values, (keys, values)


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.places = nn.Embedding(16, 8)

    def forward(self, x, past=None):
        seen = 0 if past is None else past[0][0].shape[1]
        cos, sin = tables(seen, x.shape[1], 8)
        x = x + self.places(torch.arange(seen, seen + x.shape[1]))
        kept = []
        for number, layer in enumerate(self.layers):
            x, cache = layer(x, cos, sin, None if past is None else past[number])
            kept.append(cache)
        return x, kept


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = Decoder()

    def forward(self, x):
        out, kept = self.decoder(x[:, :5])
        found = [out]
        for at in range(5, 8):
            out, kept = self.decoder(x[:, at : at + 1], kept)
            found.append(out)
        return torch.cat(found, dim=1)


def build():
    torch.manual_seed(7)
    return Net().eval(), (torch.randn(2, 8, 8),)
"""
PLAIN = ("        seen = 0 if past is None else past[0][0].shape[1]\n", "")
CALLED = ("tables(seen, x.shape[1], 8)", "tables(0, x.shape[1], 8)")
COUNTED = ("torch.arange(seen, seen + x.shape[1])", "torch.arange(x.shape[1])")
LENGTH = "past[0][0].shape[1] if past is not None else 0"
OWN = f"({LENGTH})"
RIGHT = [(CALLED[0], f"tables({LENGTH}, x.shape[1], 8)"), (COUNTED[0], f"torch.arange(x.shape[1]) + {OWN}")]


def test_the_port_is_right(tmp_path, capsys):
    ported(tmp_path, NET, [PLAIN, *RIGHT])
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


@pytest.mark.parametrize(
    "changes", [[CALLED, RIGHT[1]], [RIGHT[0], COUNTED], [CALLED, COUNTED]], ids=["called", "counted", "both"]
)
def test_the_patch_counts_from_what_the_cache_has(tmp_path, capsys, changes):
    ported(tmp_path, NET, [PLAIN, *changes])
    found = answer(tmp_path, capsys)
    lines = [line["after"] for one in found["origins"] for line in one["edit"]["lines"]]
    assert lines
    assert all(LENGTH in line for line in lines)
    assert is_right_with_the_patch(tmp_path, capsys)
