"""Mistakes beside arguments in another form: each is looked into by itself, and the other form is none."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

RELATIONS = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.relation = nn.Embedding(7, 8)

    def forward(self, x, relations, mask):
        scores = torch.einsum("bqd,bkd->bqk", self.query(x), self.key(x))
        scores = scores + torch.einsum("bqd,bqkd->bqk", self.query(x), self.relation(relations))
        scores = scores.masked_fill(~mask[:, None, :], -1e9)
        return x + self.out(scores.softmax(-1) @ x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Attention() for _ in range(2))

    def forward(self, x, kinds, lengths):
        mask = torch.arange(x.shape[1])[None] < lengths[:, None]
        relations = (kinds[:, :, None] - kinds[:, None, :]) + 3
        for layer in self.layers:
            x = layer(x, relations, mask)
        return x


def build():
    torch.manual_seed(2)
    kinds = torch.tensor([[0, 1, 3, 2, 1], [2, 0, 1, 3, 3], [1, 1, 0, 2, 3]])
    return Net().eval(), (torch.randn(3, 5, 8), kinds, torch.tensor([5, 3, 4]))
"""
INVERTED = [
    (
        "mask = torch.arange(x.shape[1])[None] < lengths[:, None]",
        "mask = torch.arange(x.shape[1])[None] >= lengths[:, None]",
    ),
    ("~mask[:, None, :]", "mask[:, None, :]"),
]


def test_wrong_indices_beside_a_mask_in_other_words(tmp_path, capsys):
    ported(
        tmp_path,
        RELATIONS,
        [*INVERTED, ("kinds[:, :, None] - kinds[:, None, :]", "kinds[:, None, :] - kinds[:, :, None]")],
    )
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"]["confirmed"]
    assert origin["layer"] == ""
    assert is_right_with_the_patch(tmp_path, capsys)


def test_the_mask_alone_is_right(tmp_path, capsys):
    ported(tmp_path, RELATIONS, INVERTED)
    assert answer(tmp_path, capsys)["origins"] == []


SEGMENTS = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.kinds, self.drop = nn.Parameter(torch.randn(2, 8)), nn.Dropout(0.1)

    def forward(self, x, segments, memory=None):
        query = self.query(x)
        by_kind = torch.einsum("bqd,sd->bqs", query, self.kinds)
        scores = query @ self.key(x).transpose(1, 2) + torch.einsum("qkbs,bqs->bqk", segments, by_kind)
        return x + self.out(self.drop((scores * 8**-0.5).softmax(-1)) @ x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x, kinds):
        differ = kinds[:, :, None] != kinds[:, None, :]
        return self.attention(x, nn.functional.one_hot(differ.long(), 2).permute(1, 2, 0, 3).float())


def build():
    torch.manual_seed(2)
    kinds = torch.tensor([[0, 0, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 1, 1, 1]])
    return Net().eval(), (torch.randn(3, 5, 8), kinds)
"""
AS_TRUTHS = [
    ("def forward(self, x, segments, memory=None):", "def forward(self, x, memory=None, *, differ):"),
    ("nn.functional.one_hot(differ.long(), 2).permute(1, 2, 0, 3).float()", "differ=differ"),
    ('torch.einsum("qkbs,bqs->bqk", segments, by_kind)', "torch.where(differ, by_kind[..., 1:], by_kind[..., :1])"),
]


def test_what_one_tells_by_an_axis_the_other_tells_by_a_number(tmp_path, capsys):
    """The layer is wrong, and no argument is missing."""
    ported(tmp_path, SEGMENTS, [*AS_TRUTHS, ("scores * 8**-0.5", "scores * 8**-0.25")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"]["confirmed"]
    assert origin["layer"] == "attention"
    assert is_right_with_the_patch(tmp_path, capsys)


RANKS = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(9, 6), nn.LayerNorm(6, eps=1e-3)
        self.head = nn.Linear(6, 4)

    def words(self, ids):
        b, items, words = ids.shape
        return self.norm(self.embed(ids)).reshape(b * items, words, 6).mean(1).reshape(b, items, 6)

    def forward(self, question, columns):
        return self.head(torch.cat([self.words(columns), self.norm(self.embed(question))], 1))


def build():
    torch.manual_seed(2)
    net = Net()
    nn.init.normal_(net.embed.weight, 0.0, 0.02)
    return net.eval(), (torch.randint(9, (2, 5)), torch.randint(9, (2, 4, 3)))
"""


def test_a_layer_that_is_called_with_values_of_other_ranks(tmp_path, capsys):
    """In one call the port's has an axis less than the reference's, and in the other as many."""
    flat = (
        "self.norm(self.embed(ids)).reshape(b * items, words, 6)",
        "self.norm(self.embed(ids.reshape(b * items, words)))",
    )
    ported(tmp_path, RANKS, [flat, ("LayerNorm(6, eps=1e-3)", "LayerNorm(6)")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["layer"] == "norm"
    assert origin["causes"][0]["confirmed"]


SPECTRUM = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight, self.head = nn.Parameter(torch.randn(2, 3, 4)), nn.Linear(6, 5)

    def forward(self, x, horizon):
        spectrum = torch.fft.rfft2(x, norm="ortho")
        kept = torch.zeros_like(spectrum)
        kept[:, :2, :3] = spectrum[:, :2, :3] * self.weight[:, :, 0]
        kept[:, -2:, :3] = spectrum[:, -2:, :3] * self.weight[:, :, 1]
        x = torch.fft.irfft2(kept, s=x.shape[-2:], norm="ortho")
        for step in range(3):
            active = horizon > step
            x = torch.where(active[:, None, None], torch.tanh(x * 1.5), x)
        return self.head(x)


def build():
    torch.manual_seed(2)
    return Net().eval(), (torch.randn(3, 7, 6), torch.tensor([3, 1, 2]))
"""


@pytest.mark.parametrize(
    "mistake",
    [
        ("spectrum[:, -2:, :3] *", "spectrum[:, 2:4, :3] *"),
        ("self.weight[:, :, 1]", "self.weight[:, :, 2]"),
        ("horizon > step", "horizon >= step"),
        ('irfft2(kept, s=x.shape[-2:], norm="ortho")', "irfft2(kept, s=x.shape[-2:])"),
    ],
    ids=["a corner", "a weight", "a step of a loop that is right until then", "how it is scaled"],
)
def test_complex_numbers_are_followed(tmp_path, capsys, mistake):
    ported(tmp_path, SPECTRUM, [mistake])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert origin["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)
