"""Axes that are split into the same parts in another order: heads and groups, q, k and v, cells and channels."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

REFERENCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.kv, self.o = nn.Linear(12, 16), nn.Linear(12, 16), nn.Linear(16, 16)
        self.up, self.last = nn.Conv2d(1, 12, 1), nn.Conv2d(3, 2, 1)

    def forward(self, x):
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 4, 4).transpose(1, 2)
        k, v = self.kv(x).view(b, n, 2, 2, 4).permute(2, 0, 3, 1, 4)
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        y = self.o(y.transpose(1, 2).reshape(b, n, 16))
        z = self.up(y[:, None])
        z = z.view(b, 3, 2, 2, n, 16).permute(0, 1, 4, 2, 5, 3).reshape(b, 3, 2 * n, 32)
        return self.last(z)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 5, 12),)
"""

PORT = REFERENCE.replace("view(b, n, 4, 4).transpose(1, 2)", "reshape(b, n, 2, 2, 4).permute(0, 2, 3, 1, 4)")
PORT = PORT.replace("        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)\n", "")
PORT = PORT.replace("(q @ k.transpose(-2, -1)).softmax(-1) @ v", "(q @ k[:, :, None].mT).softmax(-1) @ v[:, :, None]")
PORT = PORT.replace("y.transpose(1, 2).reshape", "y.flatten(1, 2).transpose(1, 2).reshape")

MISTAKES = {
    "groups": ("reshape(b, n, 2, 2, 4).permute(0, 2, 3, 1, 4)", "reshape(b, n, -1, 2, 4).permute(0, 3, 2, 1, 4)"),
    "keys and values": (".view(b, n, 2, 2, 4).permute(2, 0, 3, 1, 4)", ".view(b, n, 2, 2, 4).permute(3, 0, 2, 1, 4)"),
    "cells": (
        "z.view(b, 3, 2, 2, n, 16).permute(0, 1, 4, 2, 5, 3)",
        "z.view(b, 2, 2, 3, n, 16).permute(0, 3, 4, 1, 5, 2)",
    ),
    "cells, in two steps": (
        "        z = z.view(b, 3, 2, 2, n, 16).permute(0, 1, 4, 2, 5, 3)",
        "        z = torch.reshape(z, (b, 2, 2, 3, n, 16))\n        z = torch.permute(z, (0, 3, 4, 1, 5, 2))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_parts_are_put_in_the_references_order(tmp_path, capsys, mistake):
    assert PORT.count(MISTAKES[mistake][0]) == 1
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(PORT.replace(*MISTAKES[mistake]), encoding="utf-8")
    told = answer(tmp_path, capsys)["origins"]
    assert told
    assert all(one["edit"] is not None and one["edit"]["confirmed"] for one in told)
    assert is_right_with_the_patch(tmp_path, capsys)


def test_the_right_port_is_aligned(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(PORT, encoding="utf-8")
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


HALVES = """
import torch
from torch import nn


class Joined(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mix = nn.Linear(2 * width, 6)

    def forward(self, x, skip):
        parts = [one.chunk(2, -1) for one in (x, skip)]
        return self.mix(torch.cat([side[part] for part in range(2) for side in parts], -1))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.wide, self.narrow = nn.Linear(6, 8), nn.Linear(6, 4), Joined(8), Joined(4)

    def forward(self, x):
        y = self.wide(self.a(x), self.a(x.cos()))
        return self.narrow(self.b(y), self.b(y.sin()))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(5, 6),)
"""


def test_halves_are_said_as_halves_where_layers_have_other_widths(tmp_path, capsys):
    right = "torch.cat([side[part] for part in range(2) for side in parts], -1)"
    (tmp_path / "ref.py").write_text(HALVES, encoding="utf-8")
    (tmp_path / "port.py").write_text(HALVES.replace(right, "torch.cat((x, skip), -1)"), encoding="utf-8")
    found = answer(tmp_path, capsys)["origins"]
    assert {one["layer"] for one in found} == {"wide", "narrow"}
    assert len({one["edit"]["lines"][0]["after"] for one in found}) == 1
    assert not any(one["edit"]["only_here"] for one in found)
    assert is_right_with_the_patch(tmp_path, capsys)
