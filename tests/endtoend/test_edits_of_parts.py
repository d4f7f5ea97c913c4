"""Values that are cut out of others and put into others: heads, chosen experts, a camera's numbers; and masks that are
said in other words than the reference's.
"""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.heads, self.size, self.wide = 2, 3, 5
        self.both, self.out = nn.Linear(6, 2 * (3 + 5)), nn.Linear(10, 6)

    def forward(self, x, mask):
        b, s, _ = x.shape
        both = self.both(x).view(b, s, self.heads, self.size + self.wide).transpose(1, 2)
        key, value = torch.split(both, [self.size, self.wide], dim=-1)
        scores = torch.einsum("bhsd,bhtd->bhst", key, key) + mask
        return self.out(torch.einsum("bhst,bhtd->bshd", scores.softmax(-1), value).reshape(b, s, -1))


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.kept = 2
        self.gate, self.experts = nn.Linear(6, 5), nn.ModuleList(nn.Linear(6, 6) for _ in range(5))

    def forward(self, x):
        flat = x.reshape(-1, 6)
        best, chosen = self.gate(flat).softmax(-1).topk(self.kept, -1)
        found = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            rows, slots = torch.where(chosen == number)
            found.index_add_(0, rows, expert(flat[rows]) * best[rows, slots].unsqueeze(-1))
        return found.reshape(x.shape)


class Camera(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(12, 6)

    def forward(self, numbers):
        return self.line(numbers)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.experts, self.camera = Attention(), Experts(), Camera()
        self.register_buffer("weights", torch.linspace(0.5, 1.0, 6), persistent=False)

    def blended(self, x):
        total, count = torch.zeros(3, 9), torch.zeros(3, 9)
        for start in (0, 2, 3):
            part = x[:, start].softmax(-1)
            total[:, start : start + 6] += self.weights * part
            count[:, start : start + 6] += self.weights
        blended = total / count
        return blended

    def forward(self, x, valid, turn, shift):
        seen = torch.ones(7, 7, dtype=torch.bool).tril() & valid[:, None]
        mask = torch.zeros(3, 1, 7, 7).masked_fill(~seen[:, None], torch.finfo(torch.float32).min)
        x = x + self.attention(x, mask)
        points = (x[..., :3] - shift[:, None]) @ turn
        numbers = torch.cat([turn, shift.unsqueeze(-1)], dim=-1)
        return self.experts(x) + self.camera(numbers.reshape(3, 12))[:, None], points, self.blended(x)


def build():
    torch.manual_seed(7)
    valid = torch.arange(7) < torch.tensor([[7], [5], [4]])
    return Net().eval(), (torch.randn(3, 7, 6), valid, torch.randn(3, 3, 3), torch.randn(3, 3))
"""

FORMS = (
    ('torch.einsum("bhsd,bhtd->bhst", key, key) + mask', "(key @ key.transpose(-1, -2)).masked_fill(mask, -1e30)"),
    (
        "        seen = torch.ones(7, 7, dtype=torch.bool).tril() & valid[:, None]\n"
        "        mask = torch.zeros(3, 1, 7, 7).masked_fill(~seen[:, None], torch.finfo(torch.float32).min)\n",
        "        order = torch.arange(7)\n"
        "        mask = ((order[None] > order[:, None]) | ~valid.unsqueeze(1)).unsqueeze(1)\n",
    ),
    (
        "found.index_add_(0, rows, expert(flat[rows]) * best[rows, slots].unsqueeze(-1))",
        "part = expert(flat[rows]) * best[rows, slots].unsqueeze(-1)\n            found[rows] = found[rows] + part",
    ),
)
"""What the right port says otherwise."""

MISTAKES = {
    "keys before values": (
        "both = self.both(x).view(b, s, self.heads, self.size + self.wide).transpose(1, 2)\n"
        "        key, value = torch.split(both, [self.size, self.wide], dim=-1)",
        "both = self.both(x)\n"
        "        key = both[..., : self.heads * self.size].view(b, s, self.heads, self.size).transpose(1, 2)\n"
        "        value = both[..., self.heads * self.size :].view(b, s, self.heads, self.wide).transpose(1, 2)",
    ),
    "padding along the queries": ("~valid.unsqueeze(1)", "~valid.unsqueeze(2)"),
    "one expert too many": ("self.kept = 2", "self.kept = 3"),
    "what experts make is written over": ("found[rows] = found[rows] + part", "found[rows] = part"),
    "rotation before shift in one row": (
        "torch.cat([turn, shift.unsqueeze(-1)], dim=-1)",
        "torch.cat([turn.reshape(3, 9), shift.reshape(3, 3)], dim=-1)",
    ),
    "a plain count of windows": ("+= self.weights\n        blended", "+= 1.0\n        blended"),
    "blended before they are shares": (
        "            part = x[:, start].softmax(-1)\n"
        "            total[:, start : start + 6] += self.weights * part\n"
        "            count[:, start : start + 6] += self.weights\n"
        "        blended = total / count\n",
        "            part = x[:, start]\n"
        "            total[:, start : start + 6] += self.weights * part\n"
        "            count[:, start : start + 6] += self.weights\n"
        "        blended = (total / count).softmax(-1)\n",
    ),
    "turned before it is shifted": (
        "points = (x[..., :3] - shift[:, None]) @ turn",
        "points = x[..., :3] @ turn\n        points = points - shift[:, None]",
    ),
}


def written(folder, *changes):
    port = NET
    for old, new in (*FORMS, *changes):
        assert port.count(old) == 1
        port = port.replace(old, new)
    (folder / "ref.py").write_text(NET, encoding="utf-8")
    (folder / "port.py").write_text(port, encoding="utf-8")


def test_the_port_in_its_own_forms_is_right(tmp_path, capsys):
    written(tmp_path)
    assert answer(tmp_path, capsys)["outcome"] == "aligned"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_proved_and_the_patch_makes_the_port_right(tmp_path, capsys, mistake):
    written(tmp_path, MISTAKES[mistake])
    found = answer(tmp_path, capsys)
    assert found["origins"]
    assert all(origin["edit"]["confirmed"] for origin in found["origins"])
    assert is_right_with_the_patch(tmp_path, capsys)


TABLES = """
import numpy as np
import torch
from torch import nn


def table(size):
    places = np.arange(size)
    return places[:, None] - places[None] + size - 1


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("index", torch.from_numpy(table(8)), persistent=False)
        self.bias, self.line = nn.Parameter(torch.randn(15)), nn.Linear(6, 6)

    def forward(self, x):
        n = x.shape[1]
        index = self.index[:n, :n].reshape(-1)
        bias = self.bias[index].reshape(n, n)
        return self.line(torch.softmax(x @ x.transpose(1, 2) + bias, -1) @ x)


def build():
    torch.manual_seed(7)
    return Net().eval(), torch.randn(2, 5, 6)
"""


def test_a_table_of_numpys_that_the_layer_keeps_stands_for_one_that_is_made_anew(tmp_path, capsys):
    kept = ('self.register_buffer("index", torch.from_numpy(table(8)), persistent=False)', "self.index = table(8)")
    used = ("index = self.index[:n, :n].reshape(-1)", "index = torch.from_numpy(table(n).reshape(-1))")
    (tmp_path / "ref.py").write_text(TABLES, encoding="utf-8")
    (tmp_path / "port.py").write_text(TABLES.replace(*kept).replace(*used), encoding="utf-8")
    found = answer(tmp_path, capsys)
    assert found["origins"][0]["edit"]["confirmed"]
    assert "self.index[:n, :n]" in found["origins"][0]["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


PAINTED = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.line = nn.Linear(6, 6)

    def forward(self, x):
        x = self.line(x)
        levels = torch.zeros(2, 7)
        for i in range(len(x)):
            far = (x[i] - x[i, 3]).pow(2).sum(-1).sqrt()
            share = far / far.max()
            for rank in (3, 2, 1):
                levels[i][share < rank / 3] = rank
        return levels


def build():
    torch.manual_seed(7)
    return Net().eval(), torch.randn(2, 7, 6)
"""


def test_what_is_written_through_a_part_of_a_value_is_followed(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(PAINTED, encoding="utf-8")
    wrong = PAINTED.replace("x[i] - x[i, 3]", "x[i] - x.mean(1)[i]").replace(
        "levels[i][share < rank / 3]", "levels[i, share < rank / 3]"
    )
    (tmp_path / "port.py").write_text(wrong, encoding="utf-8")
    assert answer(tmp_path, capsys)["origins"][0]["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)
