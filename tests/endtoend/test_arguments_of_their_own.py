"""Layers of a port that take other things than the reference's: a sum of two arguments, two halves of a stacked one."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn


class Angles(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn = nn.Linear(2, 4, bias=False)

    def forward(self, places):
        turned = self.turn(places)
        return torch.stack([turned.cos(), turned.sin()], 0).unsqueeze(-3).repeat_interleave(2, dim=-1)


def rotated(x, table):
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    return x * table[0] + torch.stack((-b, a), dim=-1).flatten(-2) * table[1]


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x, hidden, near, far, table):
        q, k, v = (part(x).unflatten(-1, (2, 8)).transpose(1, 2) for part in (self.query, self.key, self.value))
        scores = rotated(q, table) @ rotated(k, table).transpose(-1, -2) / 8**0.5
        scores = scores + (near + far) / 8**0.5 + hidden
        return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.out, self.norm = Attention(), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x, hidden, near, far, table):
        return self.norm(x + self.out(self.attention(x, hidden, near, far, table)))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.angles = nn.Linear(16, 16), Angles()
        self.near, self.far = nn.Linear(5, 2, bias=False), nn.Linear(7, 2, bias=False)
        self.blocks = nn.ModuleList([Block() for _ in range(2)])

    def forward(self, x, places, keep):
        places = places / 4
        apart = (places[:, None, :, 0] - places[:, :, None, 0]).abs() * 3
        near = self.near(nn.functional.one_hot(apart.long() % 5, 5).float()).permute(0, 3, 1, 2)
        far = self.far(nn.functional.one_hot(apart.long() % 7, 7).float()).permute(0, 3, 1, 2)
        hidden = (1 - keep[:, None, None].float()) * -10000.0
        x, table = self.before(x).relu(), self.angles(places)
        for block in self.blocks:
            x = block(x, hidden, near, far, table)
        return x


def build():
    torch.manual_seed(5)
    keep = torch.arange(9)[None] < torch.tensor([[9], [6]])
    return Net().eval(), (torch.randn(2, 9, 16), torch.randn(2, 9, 2) * 8, keep)
"""
FORM = (
    ("x, hidden, near, far, table):\n        q, k", "x, bias, hidden, cos, sin):\n        q, k"),
    ("(near + far) / 8**0.5", "bias / 8**0.5"),
    ("rotated(q, table) @ rotated(k, table)", "rotated(q, cos, sin) @ rotated(k, cos, sin)"),
    ("def rotated(x, table)", "def rotated(x, cos, sin)"),
    ("x * table[0]", "x * cos"),
    (".flatten(-2) * table[1]", ".flatten(-2) * sin"),
    (
        "x, hidden, near, far, table):\n        return self.norm",
        "x, bias, hidden, cos, sin):\n        return self.norm",
    ),
    ("self.attention(x, hidden, near, far, table)", "self.attention(x, bias, hidden, cos, sin)"),
    (
        "torch.stack([turned.cos(), turned.sin()], 0).unsqueeze(-3).repeat_interleave(2, dim=-1)",
        "tuple(one.unsqueeze(-3).repeat_interleave(2, dim=-1) for one in (turned.cos(), turned.sin()))",
    ),
    (
        "x, table = self.before(x).relu(), self.angles(places)",
        "x, (cos, sin) = self.before(x).relu(), self.angles(places)",
    ),
    ("x = block(x, hidden, near, far, table)", "x = block(x, near + far, hidden, cos, sin)"),
)
MISTAKES = {
    "before all": (".relu(), self", ".sigmoid(), self", ""),
    "the layer that takes them": ("bias / 8**0.5 +", "bias +", "blocks.0.attention"),
    "what makes them": ("block(x, near + far", "block(x, near - far", ""),
    "the places": ("places / 4", "places / 2", ""),
}


def written(folder, old="", new=""):
    text = NET
    for pair in FORM:
        assert text.count(pair[0]) == 1
        text = text.replace(*pair)
    assert not old or text.count(old) == 1
    (folder / "ref.py").write_text(NET, encoding="utf-8")
    (folder / "port.py").write_text(text.replace(old, new) if old else text, encoding="utf-8")


def test_a_port_with_other_arguments_is_right(tmp_path, capsys):
    written(tmp_path)
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_wrong_beside_them_is_named_alone_and_mended(tmp_path, capsys, mistake):
    old, new, layer = MISTAKES[mistake]
    written(tmp_path, old, new)
    found = answer(tmp_path, capsys)
    assert {origin["layer"].replace("1", "0") for origin in found["origins"]} == {layer}
    assert any((origin["edit"] or {}).get("confirmed") for origin in found["origins"])
    assert is_right_with_the_patch(tmp_path, capsys)
