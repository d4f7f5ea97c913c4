"""An argument in another form than the reference's: that the code can hand over the reference's proves nothing."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

REFERENCE = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.registers = nn.Parameter(torch.randn(2, 8))
        self.q, self.k, self.v, self.o = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, seen):
        b, n, _ = x.shape
        x = torch.cat((x, self.registers.expand(b, -1, -1)), 1)
        seen = torch.cat((seen, seen.new_ones(b, 2)), 1)
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        scores = scores.masked_fill(~seen[:, None, :], float("-inf"))
        return self.o(scores.softmax(-1) @ self.v(x))[:, :n]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.block, self.last = nn.Linear(6, 8), Block(), nn.Linear(8, 3)

    def forward(self, x, seen):
        return self.last(self.block(self.first(x), seen))


def build():
    torch.manual_seed(3)
    seen = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]).bool()
    return Net().eval(), (torch.randn(2, 5, 6), seen)
"""

PORT = REFERENCE.replace("        seen = torch.cat((seen, seen.new_ones(b, 2)), 1)\n", "")
PORT = PORT.replace('.masked_fill(~seen[:, None, :], float("-inf"))', " + seen[:, None, :]")
PORT = PORT.replace(
    "return self.last(self.block(self.first(x), seen))",
    "bias = torch.cat(((~seen).float() * -1e9, torch.zeros(len(x), 2)), 1)\n"
    "        return self.last(self.block(self.first(x), bias))",
)


def written(tmp_path, edit):
    assert PORT.count(edit[0]) == 1
    (tmp_path / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (tmp_path / "port.py").write_text(PORT.replace(*edit), encoding="utf-8")


def test_the_right_port_is_aligned(tmp_path, capsys):
    written(tmp_path, ("-1e9", "-1e9"))
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


@pytest.mark.parametrize("edit", [("seen[:, None, :]", "seen[:, :, None]"), ("softmax(-1)", "softmax(1)")])
def test_what_is_confirmed_makes_the_port_right(tmp_path, capsys, edit):
    written(tmp_path, edit)
    told = answer(tmp_path, capsys)["origins"]
    assert told
    if any(one["edit"] is not None for one in told):
        assert is_right_with_the_patch(tmp_path, capsys)
