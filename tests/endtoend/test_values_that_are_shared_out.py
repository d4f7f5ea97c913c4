"""A head that hands on several values, some of which are one in the port."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 25)

    def forward(self, x, bias=0.0):
        raw = self.out(x)
        lift, scores, ax, ay, bx, by, rho = raw.split([1, 4, 4, 4, 4, 4, 4], -1)
        return {
            "lift": lift[..., 0], "scores": scores.softmax(-1), "ax": ax, "ay": ay,
            "bx": bx.clamp(-1, 1) - bias, "by": by.clamp(-1, 1) - bias, "rho": rho.tanh(),
        }


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(5, 6), Head()

    def forward(self, x):
        found = []
        for bias in (0.0, 0.4):
            told = self.head(torch.tanh(self.first(x)), bias)
            spread = torch.exp(told["bx"] + told["by"]) * (1 - told["rho"])
            place = torch.stack([told["ax"], told["ay"]], -2)
            found.append((told["scores"] * spread)[..., None, :] * place + told["lift"][..., None, None])
            x = x + found[-1].sum((-1, -2))[..., None]
        return torch.stack(found)


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(3, 7, 5),)
"""
PORT = (
    NET.replace(
        NET[NET.index("        lift, scores") : NET.index("\n\nclass Net")],
        """        lift, raw = raw[..., 0], raw[..., 1:].reshape(raw.shape[:-1] + (6, 4))
        means, spreads = raw[..., 1:3, :], raw[..., 3:5, :].clamp(-1, 1) - bias
        return lift, raw[..., 0, :].softmax(-1), means, spreads, raw[..., 5, :].tanh()
""",
    )
    .replace("told = self.head", "lift, scores, place, spreads, rho = self.head")
    .replace('torch.exp(told["bx"] + told["by"]) * (1 - told["rho"])', "torch.exp(spreads.sum(-2)) * (1 - rho)")
    .replace('            place = torch.stack([told["ax"], told["ay"]], -2)\n', "")
    .replace('(told["scores"] * spread)', "(scores * spread)")
    .replace('told["lift"]', "lift")
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ("- bias", "* (1.0 - bias)"),
        ("raw[..., 1:3, :],", "raw[..., 1:3, :].reshape(raw.shape[:-2] + (4, 2)).swapaxes(-1, -2),"),
    ],
)
def test_they_are_each_others_and_a_wrong_one_is_the_heads_mistake(tmp_path, capsys, old, new):
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    assert PORT.count(old) == 1 or not old
    (tmp_path / "port.py").write_text(PORT.replace(old, new) if old else PORT, encoding="utf-8")
    found = answer(tmp_path, capsys)
    assert [origin["layer"] for origin in found["origins"]] == ["head"] * bool(old)
    assert found["outcome"] == ("diverged" if old else "aligned")
