"""Mistakes that no edit of one line mends: the reference's own steps stand before the line then."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from aligner.capture import following  # noqa: E402
from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

WHITENING = """
import torch
from torch import nn


class Whitening(nn.Module):
    def __init__(self, width):
        super().__init__()
        for name in ("rr", "ri", "ii"):
            self.register_parameter("weight_" + name, nn.Parameter(torch.rand(width) + (name != "ri")))
            self.register_buffer("var_" + name, torch.rand(width) * (0.4 if name == "ri" else 1.0) + (name != "ri"))

    def forward(self, x):
        re, im = torch.chunk(x, 2, dim=1)
        root = (self.var_rr * self.var_ii - self.var_ri * self.var_ri).sqrt()
        scale = 1.0 / (root * (self.var_rr + self.var_ii + 2 * root).sqrt())
        white_re = ((self.var_ii + root) * re - self.var_ri * im) * scale
        white_im = ((self.var_rr + root) * im - self.var_ri * re) * scale
        out_re = self.weight_rr * white_re + self.weight_ri * white_im
        out_im = self.weight_ri * white_re + self.weight_ii * white_im
        return torch.cat((out_re, out_im), dim=1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.norm, self.out = nn.Linear(8, 12), Whitening(6), nn.Linear(12, 3)

    def forward(self, x):
        return self.out(self.norm(self.into(x)))


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randn(9, 8),)
"""

ALONE = """        white_re = re * torch.rsqrt(self.var_rr)
        white_im = im * torch.rsqrt(self.var_ii)
"""


def test_what_takes_several_steps_is_written_as_statements(tmp_path, capsys):
    first = WHITENING.index("        root = (self")
    right = WHITENING[first : WHITENING.index("        out_re")]
    ported(tmp_path, WHITENING, [(right, ALONE)])
    origins = answer(tmp_path, capsys)["origins"]
    assert [one["layer"] for one in origins] == ["norm"]
    after = "\n".join(line["after"] for line in origins[0]["edit"]["lines"])
    assert "scale" in after
    assert "root" in after
    assert is_right_with_the_patch(tmp_path, capsys)


LOOPING = """
import torch
from torch import nn


def overlap(a, b):
    low, high = torch.maximum(a[:, None, :1], b[None, :, :1]), torch.minimum(a[:, None, 1:], b[None, :, 1:])
    shared = (high - low).clamp(min=0).prod(-1)
    return shared / ((a[:, 1] - a[:, 0])[:, None] + (b[:, 1] - b[:, 0])[None] - shared).clamp(min=1e-6)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 3)

    def forward(self, x, wanted):
        start, size, score = self.line(x).unbind(-1)
        spans = torch.stack((start, start + size.exp()), -1)
        order, kept = score.argsort(descending=True), []
        while order.numel() > 0 and len(kept) < 40:
            kept.append(order[0])
            near = overlap(spans[order[:1]], spans[order[1:]])[0]
            order = order[1:][near <= 0.999]
        picked = spans[torch.stack(kept)]
        loss = nn.functional.smooth_l1_loss(picked[:5], wanted, beta=1 / 9)
        return loss, picked[:7]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.head = nn.Linear(6, 6), Head()

    def forward(self, x, wanted):
        return self.head(self.into(x), wanted)


def build():
    torch.manual_seed(6)
    return Net().eval(), (torch.randn(90, 6), torch.rand(5, 2))
"""


def test_what_follows_a_loop_of_many_operations_is_heard(tmp_path, capsys, monkeypatch):
    for name, number in (("MOST", 400), ("FULL", 200), ("OFTEN", 12)):
        monkeypatch.setattr(following, name, number)
    ported(tmp_path, LOOPING, [(", beta=1 / 9)", ")")])
    origins = answer(tmp_path, capsys)["origins"]
    assert [one["layer"] for one in origins] == ["head"]
    assert origins[0]["causes"][0]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)
