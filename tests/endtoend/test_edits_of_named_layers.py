"""A layer of the user's that bears a name of the framework's is his code: it is read, searched and mended as such."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch, ported  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

REFERENCE = """
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, width, eps=1e-2):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.rand(width)), eps

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)


class LayerNorm(nn.LayerNorm):
    def forward(self, x):
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class GELU(nn.Module):
    def forward(self, x):
        return x * (x * 1.702).sigmoid()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.other = nn.ModuleList([RMSNorm(6, eps=1e-1) for _ in range(2)])
        self.one, self.last, self.act = RMSNorm(6), LayerNorm(6), nn.GELU()

    def forward(self, x):
        return self.act(self.last(self.other[1](self.other[0](self.one(x)))))


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(2, 6, 6),)
"""

MISTAKES = {
    "a step too many": ("        return self.weight * x",
                        "        x = x - x.mean(-1, keepdim=True)\n        return self.weight * x"),
    "another axis": ("mean(-1, keepdim=True)", "mean(1, keepdim=True)"),
    "another order": ("torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
                      "torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) + self.eps"),
    "a setting": ("RMSNorm(6, eps=1e-1)", "RMSNorm(6)"),
    "the framework's written by hand": (", nn.GELU()", ", GELU()"),
    "around the framework's": ("x.transpose(1, 2)).transpose(1, 2)", "x)"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_its_code_is_mended(tmp_path, capsys, mistake):
    ported(tmp_path, REFERENCE, [MISTAKES[mistake]])
    told = answer(tmp_path, capsys)["origins"]
    assert told
    assert all(one["edit"] is not None and one["causes"][0]["confirmed"] for one in told)
    assert is_right_with_the_patch(tmp_path, capsys)
