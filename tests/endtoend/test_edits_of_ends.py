"""Layers of a port that do more than the reference's: what they hand on is to be right where it is taken."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch  # noqa: E402, F401

REFERENCE = """
import torch
from torch import nn


class Normed(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.linspace(-1.0, 1.0, 6))
        self.register_buffer("scale", torch.linspace(0.5, 2.0, 6))

    def forward(self, x):
        return (x - self.mean) * self.scale


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.signal = nn.Linear(6, 6)

    def forward(self, x):
        return x * torch.sigmoid(self.signal(x))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.line, self.gate, self.last = Normed(), nn.Linear(6, 6), Gate(), nn.Linear(6, 6)

    def forward(self, x, valid):
        x = self.norm(x)
        x = x.masked_fill(~valid[..., None], 0.0)
        x = self.line(x)
        return self.last(self.gate(x))


def build():
    torch.manual_seed(7)
    return Net().eval(), (torch.randn(3, 5, 6), torch.arange(5) < torch.tensor([[5], [3], [4]]))
"""

FORMS = (
    ("forward(self, x):\n        return (x - self.mean) * self.scale",
     "forward(self, x, valid):\n        return (x - self.mean) * self.scale * valid[..., None]"),
    ("x = self.norm(x)\n        x = x.masked_fill(~valid[..., None], 0.0)\n", "x = self.norm(x, valid)\n"),
)  # fmt: skip

MISTAKES = {
    "divided": ("(x - self.mean) * self.scale", "(x - self.mean) / self.scale"),
    "the mean twice": ("(x - self.mean) * self.scale", "(x - self.mean - self.mean) * self.scale"),
    "handed on as it came": ("return x * torch.sigmoid(self.signal(x))",
                             "y = torch.sigmoid(self.signal(x))\n        return x"),
}  # fmt: skip


def written(folder, *changes):
    port = REFERENCE
    for old, new in (*FORMS, *changes):
        assert port.count(old) == 1
        port = port.replace(old, new)
    (folder / "ref.py").write_text(REFERENCE, encoding="utf-8")
    (folder / "port.py").write_text(port, encoding="utf-8")


def test_the_port_that_masks_in_its_norm_is_right(tmp_path, capsys):
    written(tmp_path)
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_handed_on_is_right_with_the_patch(tmp_path, capsys, mistake):
    written(tmp_path, MISTAKES[mistake])
    found = answer(tmp_path, capsys)
    assert found["origins"][0]["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)
