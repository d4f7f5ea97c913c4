"""Many mistakes in the code of one layer: all are mended, or all up to one that nothing mends."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(8, 8) for _ in range(6)])

    def forward(self, x):
        # lines
        return x


class Net(nn.Module):
    def __init__(self, count):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(count)])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def build():
    torch.manual_seed(2)
    return Net(COUNT).eval(), (torch.randn(4, 8),)
"""
RIGHT = "torch.sin(1.{n} * self.steps[{n}](x)) + torch.tanh(x)"
WRONG = "torch.sin(1.7 * self.steps[{n}](x)) + torch.tanh(0.7 * x)"
UNSPELLED = "torch.special.i1e(3 * self.steps[{n}](x)) + torch.special.ndtri(torch.sigmoid(x).roll(1, 0))"
HOPELESS = "torch.sin(torch.cumsum(self.steps[{n}](x) ** 2, 0) % 0.37) + torch.erf(x).roll(3, 1)"


def net(count: int, *lines: str) -> str:
    texts = (f"        x = {line.format(n=n)}\n" for n, line in enumerate(lines))
    return NET.replace("        # lines\n", "".join(texts)).replace("COUNT", str(count))


def written(folder, count: int, *lines: str) -> None:
    (folder / "ref.py").write_text(net(count, *[RIGHT] * 6), encoding="utf-8")
    (folder / "port.py").write_text(net(count, *lines), encoding="utf-8")


def test_twelve_mistakes_in_one_layer_are_all_mended(tmp_path, capsys):
    written(tmp_path, 1, *[WRONG] * 6)
    told = answer(tmp_path, capsys)["origins"]
    assert len(told) == 6
    assert all(one["edit"] is not None for one in told)
    assert is_right_with_the_patch(tmp_path, capsys)


@pytest.mark.parametrize("count", [1, 3])
def test_those_before_one_that_nothing_mends_are_mended(tmp_path, capsys, count):
    written(tmp_path, count, RIGHT, WRONG, WRONG, HOPELESS, RIGHT, RIGHT)
    (tmp_path / "ref.py").write_text(net(count, *[RIGHT] * 3, UNSPELLED, *[RIGHT] * 2), encoding="utf-8")
    told = answer(tmp_path, capsys, "--search", "25")["origins"]
    assert len(told) == 3 * count
    assert {one["between"][1].split(".", 2)[2] for one in told if one["edit"] is None} == {"steps.4"}
    assert sum(one["edit"] is None for one in told) == count
    assert is_right_with_the_patch(tmp_path, capsys) is False
