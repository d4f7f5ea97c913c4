"""A choice that the reference hands on as numbers, and the port as ones among zeros, or the other way round."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        self.key = nn.Linear(8, 8)

    def forward(self, x, y):
        return (self.key(x) @ self.key(y).transpose(1, 2)).argmax(-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.choice, self.last = nn.Linear(8, 8), Choice(), nn.Linear(8, 8)

    def forward(self, x, y):
        x = self.first(x)
        chosen = self.choice(x, y)
        taken = y.gather(1, chosen[..., None].expand(-1, -1, 8))
        return self.last(x + taken)


def build():
    torch.manual_seed(7)
    return Net().eval(), (torch.randn(3, 5, 8), torch.randn(3, 6, 8))
"""
HOT = [
    (".argmax(-1)", ".argmax(-1)[..., None].eq(torch.arange(y.shape[1])).float()"),
    ("y.gather(1, chosen[..., None].expand(-1, -1, 8))", "chosen @ y"),
]
LATER = ("self.last(x + taken)", "self.last(x - taken)")


def as_numbers(net):
    for old, new in HOT:
        net = net.replace(old, new)
    return net


@pytest.mark.parametrize("net", [NET, as_numbers(NET)], ids=["numbers", "ones"])
def test_the_other_form_is_right_and_no_mistake_beside_another(tmp_path, capsys, net):
    other = HOT if net == NET else [(new, old) for old, new in HOT]
    ported(tmp_path, net, other)
    assert answer(tmp_path, capsys)["outcome"] == "aligned"
    ported(tmp_path, net, [*other, LATER])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == ""
    assert is_right_with_the_patch(tmp_path, capsys)


def test_a_wrong_choice_is_told_where_it_is_made(tmp_path, capsys):
    ported(tmp_path, NET, [(HOT[0][0], HOT[0][1].replace("argmax", "argmin")), HOT[1]])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == "choice"
    assert ".argmax(-1)" in origin["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)
