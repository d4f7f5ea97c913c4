"""Slips that show in some turns of a loop, in several places at once, or leave a variable unused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import math

import torch
from torch import nn


def inverse(x):
    return torch.log(x / (1 - x))


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.depth, self.heads = 3, 4
        self.lines, self.gate = nn.ModuleList(nn.Linear(12, 12) for _ in range(3)), nn.Linear(12, 12)
        shares = [1.0 / (1 + degree) for degree in range(3)]
        widths = [2 + degree for degree in range(3)]
        edges = torch.linspace(0.2, 2.0, 12)
        bins = edges**2
        table = torch.repeat_interleave(torch.tensor(shares), torch.tensor(widths + [3])[:3] + 1)
        self.register_buffer("bins", bins, persistent=False)
        self.register_buffer("table", table, persistent=False)

    def forward(self, first, mask):
        x = first
        for line in self.lines:
            x = first[:, None].squeeze(1) * line(x) + x
        waves = torch.roll(x.reshape(-1, 3, 4), (-1, -2), (1, 2)).reshape(-1, 12)
        a, b, c, d = waves.chunk(4, -1)
        turned = torch.cat([a * d, b - c, d + b, c * 2], -1)
        scores = self.gate(turned) / math.sqrt(3.0 * self.heads) + self.bins * self.table
        scores = torch.where(mask, scores, torch.full_like(scores, -(2.0**32) + 1))
        return scores.softmax(-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.into, self.cross, self.out = nn.Linear(5, 12), Cross(), nn.Linear(12, 3)

    def forward(self, x, mask):
        h = self.into(x)
        for _ in range(2):
            h = h + self.cross(h, mask)
        best, index = h.flatten(1).topk(3, 1)
        row = torch.div(index, 3, rounding_mode="floor")
        kept = torch.sigmoid(h)
        ref = kept
        for _ in range(2):
            ref = torch.sigmoid(self.out(ref).mean(-1, keepdim=True) + inverse(ref))
        return self.out(h.gather(1, row) * best @ torch.ones(3, 12)), ref


def build():
    torch.manual_seed(7)
    return Net().eval(), (torch.randn(4, 5), torch.rand(4, 12) > 0.3)
"""

MISTAKES = {
    "what is the same in the first turn": ("first[:, None].squeeze(1) * line(x)", "x[:, None].squeeze(1) * line(x)"),
    "what a function is given, the same in the first turn": ("+ inverse(ref))", "+ inverse(kept))"),
    "the last of four in front": ("a, b, c, d = waves", "d, a, b, c = waves"),
    "a factor": ("math.sqrt(3.0 * self.heads)", "math.sqrt(3.0)"),
    "zeros for what is hidden": (
        "torch.where(mask, scores, torch.full_like(scores, -(2.0**32) + 1))",
        "scores * mask.float()",
    ),
    "a division of whole numbers": ('torch.div(index, 3, rounding_mode="floor")', "index % 12"),
    "a table of a layer that is wrong in its second call too": ("bins = edges**2", "bins = edges"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_proved_and_the_patch_makes_the_port_right(tmp_path, capsys, mistake):
    ported(tmp_path, NET, [MISTAKES[mistake]])
    found = answer(tmp_path, capsys)
    edits = [origin["edit"] for origin in found["origins"]]
    assert all(edit["confirmed"] for edit in edits)
    assert len({line["after"] for edit in edits for line in edit["lines"]}) == 1
    assert is_right_with_the_patch(tmp_path, capsys)


TWICE = """
import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.scales = nn.Parameter(torch.randn(2, 8))
        self.inner = nn.Linear(8, 8)

    def forward(self, x, number):
        return self.inner(x * self.scales[number])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Inner()

    def forward(self, x):
        return self.block(self.block(x, 0).tanh(), 1)


def build():
    torch.manual_seed(7)
    return Net().eval(), (torch.randn(4, 8),)
"""


def test_what_does_in_one_call_and_spoils_another_of_the_same_layer_is_not_proved(tmp_path, capsys):
    """The port's code is not told the number, and always takes the first."""
    calls = "self.block(self.block(x, 0).tanh(), 1)", "self.block(self.block(x).tanh())"
    ported(tmp_path, TWICE, [("x, number)", "x)"), ("[number]", "[0]"), calls])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == "block"
    assert origin["edit"] is None
    assert not any(cause["confirmed"] for cause in origin["causes"])


LAST = """
import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(9, 8))
        self.inner = nn.Linear(8, 8)

    def forward(self, x, size):
        total = x.shape[1]
        places = torch.arange(total - size, total)
        return self.inner(x[:, -size:] + self.table[places])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block = Inner()

    def forward(self, x):
        return self.block(x, 7).mean(1) + self.block(x, 4).mean(1) + self.block(x, 3).mean(1)


def build():
    torch.manual_seed(7)
    return Net().eval(), (torch.randn(4, 7, 8),)
"""


def test_an_argument_in_the_ports_own_names(tmp_path, capsys):
    names = ("x, size):", "x, count):"), ("-size:]", "-count:]")
    ported(tmp_path, LAST, [*names, ("torch.arange(total - size, total)", "torch.arange(0, count)")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert [line["after"].strip() for line in origin["edit"]["lines"]] == [
        "places = torch.arange(total - count, total)"
    ]
    assert is_right_with_the_patch(tmp_path, capsys)


FAR = """
import torch
from torch import nn


class Inner(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.far_q, self.far_k, self.far_v = (nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        x = x.swapaxes(0, 1)
        near = (self.q(x) * self.k(x)).softmax(0) * self.v(x)
        far = (self.far_q(x) * self.far_k(x)).softmax(0) * self.far_v(x)
        return (near + far).swapaxes(0, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.last = Inner(), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.block(x))


def build():
    torch.manual_seed(7)
    return Net().eval(), (torch.randn(4, 5, 8),)
"""


def test_a_layer_that_is_never_called_for_one_that_is_called_twice(tmp_path, capsys):
    """Where the port lays its values otherwise, no text of the reference's does."""
    near, far = "self.k(x)).softmax(0) * self.v(x)", "self.far_k(x)).softmax(0) * self.far_v(x)"
    turned = ("        x = x.swapaxes(0, 1)\n", ""), ("(near + far).swapaxes(0, 1)", "near + far")
    mistake = (near, near.replace("(0)", "(1)")), (far, far.replace("(0)", "(1)").replace("far_v", "v"))
    ported(tmp_path, FAR, [*turned, *mistake])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert [line["after"].strip()[-13:] for line in origin["edit"]["lines"]] == ["self.far_v(x)"]
    assert is_right_with_the_patch(tmp_path, capsys)
