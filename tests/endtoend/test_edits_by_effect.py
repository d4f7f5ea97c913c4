"""Arguments in the port's own form: indices that count from elsewhere, masks in other words that layers hand on."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch  # noqa: E402 - only after it is there
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn


def buckets(length):
    places = torch.arange(length)
    apart = places[:, None] - places[None, :]
    far = torch.ceil(torch.log2(apart.abs().clamp(min=2) / 2.0)).long() + 2
    return torch.where(apart.abs() <= 2, apart, far * apart.sign())


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)

    def forward(self, tokens):
        ends = tokens.argmax(dim=-1)
        return self.embed(tokens), torch.arange(tokens.shape[1]) <= ends.unsqueeze(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.table, self.out = nn.Linear(16, 48), nn.Parameter(torch.randn(2, 12)), nn.Linear(16, 16)

    def forward(self, x, keep, apart):
        b, n, _ = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, 2, 8).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / 8**0.5
        scores = scores + self.table[:, apart + 6] / 8**0.5
        scores = scores.masked_fill(~keep[:, None, None, :], -1e9)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, 16))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.blocks = Words(), nn.ModuleList([Attention() for _ in range(2)])
        self.head = nn.Linear(16, 5)

    def forward(self, tokens):
        x, keep = self.words(tokens)
        apart = buckets(tokens.shape[1])
        for block in self.blocks:
            x = x + block(x, keep, apart)
        return (self.head(x) + 1).tanh() / 2


def build():
    torch.manual_seed(7)
    return Net().eval(), (torch.randint(0, 20, (3, 14)),)
"""
WHERE = "return torch.where(apart.abs() <= 2, apart, far * apart.sign())"
KEEP = "torch.arange(tokens.shape[1]) <= ends.unsqueeze(1)"
FORM = (
    (WHERE, f"{WHERE} + 6"),
    ("self.table[:, apart + 6]", "self.table[:, apart]"),
    (KEEP, f"({KEEP.replace('<=', '>')}).float()[:, None, None] * -1e9"),
    ("scores = scores.masked_fill(~keep[:, None, None, :], -1e9)", "scores = scores + keep"),
)
MISTAKES = {
    "the maker of the index": ("torch.ceil(", "torch.floor(", ""),
    "the layer that takes it": ("k.transpose(-1, -2) / 8**0.5", "k.transpose(-1, -2) / 8", "blocks.0"),
    "the mask that a layer hands on": (" > ends", " >= ends", "words"),
    "something else": (".tanh() / 2", ".sigmoid() / 2", ""),
}


def written(folder, old="", new=""):
    text = NET
    for pair in FORM:
        assert text.count(pair[0]) == 1
        text = text.replace(*pair)
    (folder / "ref.py").write_text(NET, encoding="utf-8")
    (folder / "port.py").write_text(text.replace(old, new) if old else text, encoding="utf-8")


def test_a_port_in_its_own_form_is_right(tmp_path, capsys):
    written(tmp_path)
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_is_wrong_beside_a_form_is_named_and_mended(tmp_path, capsys, mistake):
    old, new, layer = MISTAKES[mistake]
    written(tmp_path, old, new)
    found = answer(tmp_path, capsys)
    assert {origin["layer"].replace("1", "0") for origin in found["origins"]} == {layer}
    edits = [origin["edit"] for origin in found["origins"]]
    assert all(edit is not None and edit["confirmed"] for edit in edits)
    assert is_right_with_the_patch(tmp_path, capsys)


INVERTED = (
    "torch.arange(tokens.shape[1]) <= ends.unsqueeze(1)",
    "(torch.arange(tokens.shape[1]) > ends.unsqueeze(1)).float()",
)
ENDS = ("return (self.head(x) + 1).tanh() / 2", "return self.head(x), keep")
BLOCKS = ("            x = x + block(x, keep, apart)\n", "            x = x + block(x, keep > -1, apart)\n")


def test_a_mask_that_nobody_takes_is_wrong_the_wrong_way_round(tmp_path, capsys):
    reference = NET.replace(*ENDS).replace(*BLOCKS)
    assert reference.count(INVERTED[0]) == 1
    (tmp_path / "ref.py").write_text(reference, encoding="utf-8")
    (tmp_path / "port.py").write_text(reference.replace(*INVERTED), encoding="utf-8")
    found = answer(tmp_path, capsys)
    assert found["outcome"] == "diverged"
    assert [origin["layer"] for origin in found["origins"]] == ["words"]


GATED = """
from torch import nn
import torch


class Gate(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.narrow, self.wide = nn.Conv2d(width, 2, 1), nn.Conv2d(2, width, 1)

    def forward(self, x):
        return x * self.wide(self.narrow(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


class Block(nn.Module):
    def __init__(self, width, gated):
        super().__init__()
        depth = nn.Sequential(nn.Conv2d(width, width, 3, 2, 1, groups=width), nn.BatchNorm2d(width), nn.ReLU())
        out = nn.Sequential(nn.Conv2d(width, 8, 1), nn.BatchNorm2d(8))
        self.block = nn.Sequential(*([depth, Gate(width), out] if gated else [depth, out]))

    def forward(self, x):
        return self.block(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stages = nn.Sequential(Block(8, True), Block(8, False), Block(8, True))
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        return self.head(self.stages(x))


def build():
    torch.manual_seed(3)
    net = Net()
    for _ in range(4):
        net(torch.randn(4, 8, 32, 32))
    return net.eval(), (torch.randn(2, 8, 32, 32),)
"""
INLINE = GATED.replace(
    "        self.block = nn.Sequential(*([depth, Gate(width), out] if gated else [depth, out]))\n",
    "        self.depth, self.gate, self.out = depth, Gate(width) if gated else None, out\n",
).replace(
    "        return self.block(x)\n",
    """        if self.gate is not None:
            x = self.gate(x)
        x = self.depth(x)
        return self.out(x)
""",
)


def test_statements_in_another_order_before_a_layer_that_takes_any_size(tmp_path, capsys):
    (tmp_path / "ref.py").write_text(GATED, encoding="utf-8")
    (tmp_path / "port.py").write_text(INLINE, encoding="utf-8")
    found = answer(tmp_path, capsys)
    assert any((origin["edit"] or {}).get("confirmed") for origin in found["origins"])
    assert is_right_with_the_patch(tmp_path, capsys)
