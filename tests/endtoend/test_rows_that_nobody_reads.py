"""Rows of padding in which the port makes something else of nothing: no mistake, and none is hidden by it."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value, self.drop = nn.Linear(6, 6), nn.Linear(6, 6), nn.Dropout(0.1)

    def forward(self, x, keep):
        both = keep[:, :, None] & keep[:, None, :]
        scores = (self.key(x) @ x.transpose(-1, -2)).masked_fill(~both, -1e9)
        shares = torch.exp(scores - scores.logsumexp(-1, keepdim=True))
        return x + self.drop(shares) @ self.value(x)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers, self.head = nn.ModuleList(Attention() for _ in range(2)), nn.Linear(6, 7)

    def forward(self, x, keep):
        for layer in self.layers:
            x = layer(x, keep)
        pooled = (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)
        return self.head(pooled)


def build():
    torch.manual_seed(5)
    keep = torch.arange(9) < torch.tensor([9, 6, 4])[:, None]
    return Net().eval(), (torch.randn(3, 9, 6), keep)
"""
FORM = ("torch.exp(scores - scores.logsumexp(-1, keepdim=True))", "scores.softmax(-1)")
UNREAD = "wrong-unread"


def warned(found):
    return [one["id"] for one in found["warnings"]]


def test_a_right_port_is_aligned_and_the_rows_are_told(tmp_path, capsys):
    ported(tmp_path, NET, [FORM])
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])
    assert warned(found).count(UNREAD) == 1


def test_a_port_without_such_rows_has_no_word_of_them(tmp_path, capsys):
    ported(tmp_path, NET, [("self.drop(shares) @", "self.drop(shares + 0.0) @")])
    found = answer(tmp_path, capsys)
    assert found["outcome"] == "aligned"
    assert UNREAD not in warned(found)


@pytest.mark.parametrize(
    "mistake",
    [
        ("x + self.drop(shares) @ self.value(x)", "self.drop(shares) @ self.value(x)"),
        ("keep.sum(1, keepdim=True)", "9"),
    ],
)
def test_beside_a_mistake_the_rows_are_none(tmp_path, capsys, mistake):
    ported(tmp_path, NET, [FORM, mistake])
    found = answer(tmp_path, capsys)
    assert len({(one["layer"].partition(".")[0], *(one["between"] or ())[-1:]) for one in found["origins"]}) <= 2
    lines = {line["after"].strip() for one in found["origins"] for line in one["edit"]["lines"]}
    assert not any("logsumexp" in line for line in lines)
    assert is_right_with_the_patch(tmp_path, capsys)


def test_a_mistake_in_some_rows_that_are_read_is_one(tmp_path, capsys):
    ported(tmp_path, NET, [FORM, ("scores = (self.key(x)", "scores = (self.key(x * (x[..., :1] > 0))")])
    found = answer(tmp_path, capsys)
    assert found["outcome"] == "diverged"
    assert found["origins"][0]["layer"] == "layers.0"
    assert UNREAD not in warned(found)


def test_tokens_alone_show_nothing(tmp_path, capsys):
    net = NET.replace("return self.head(pooled)", "return self.head(pooled).argmax(-1)")
    ported(tmp_path, net, [FORM])
    found = answer(tmp_path, capsys)
    assert found["outcome"] == "diverged"
    assert UNREAD not in warned(found)


HANDED_ON = """
import torch
from torch import nn


class Loss(nn.Module):
    def forward(self, image, target):
        inner = (slice(None), slice(2, -2))
        return ((image - target)[inner] ** 2).mean()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix, self.loss = nn.Linear(6, 6), Loss()

    def forward(self, x, target):
        image = nn.functional.pad(self.mix(x).mT, (1, 1), mode="replicate")
        image = (image[..., 2:] + image[..., 1:-1] + image[..., :-2]).mT.contiguous()
        return image, self.loss(image, target)


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randn(2, 12, 6), torch.randn(2, 12, 6))
"""


@pytest.mark.parametrize("border", ['"reflect"', '"constant"'])
def test_rows_that_the_loss_leaves_out_and_the_net_hands_on_are_read(tmp_path, capsys, border):
    ported(tmp_path, HANDED_ON, [('"replicate"', border)])
    found = answer(tmp_path, capsys)
    assert found["outcome"] == "diverged"
    assert [one["layer"] for one in found["origins"]] == [""]
    assert is_right_with_the_patch(tmp_path, capsys)


PLACES = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.value, self.out = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x, mask):
        scores = (self.key(x) @ x.transpose(-1, -2)).masked_fill(~mask, torch.finfo(x.dtype).min)
        return x + self.out(scores.softmax(-1) @ self.value(x))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.places, self.attention = nn.Embedding(12, 6), Attention()

    def forward(self, x, valid):
        position = (valid.long().cumsum(1) - 1).clamp(min=0)
        x = x + self.places(position)
        index = torch.arange(x.shape[1])
        return self.attention(x, (index[None] <= index[:, None])[None] & valid[:, None])


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder, self.head = Decoder(), nn.Linear(6, 7)

    def forward(self, x, valid):
        hidden = self.decoder(x, valid)
        return self.head((hidden * valid[..., None]).sum(1) / valid.sum(1, keepdim=True))


def build():
    torch.manual_seed(5)
    valid = torch.arange(9) >= torch.tensor([0, 3, 5])[:, None]
    return Net().eval(), (torch.randn(3, 9, 6), valid)
"""
BY_PLACES = [
    (".masked_fill(~mask, torch.finfo(x.dtype).min)", " + (1.0 - mask.float()) * -1e3"),
    ("def forward(self, x, valid):\n        position =", "def forward(self, x, position, valid):\n        unused ="),
    (
        "hidden = self.decoder(x, valid)",
        "position = (torch.cumsum(valid.int(), 1) - 1).clamp(min=0)\n        hidden = self.decoder(x, position, valid)",
    ),
]


def test_an_argument_that_says_other_things_is_not_blamed_for_rows_that_nobody_reads(tmp_path, capsys):
    ported(tmp_path, PLACES, BY_PLACES)
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"], found["suspects"]) == ("aligned", [], [])


def test_a_wrong_argument_that_says_other_things_is_blamed(tmp_path, capsys):
    ported(tmp_path, PLACES, [*BY_PLACES[:2], (BY_PLACES[2][0], BY_PLACES[2][1].replace("- 1).clamp", "- 2).clamp"))])
    found = answer(tmp_path, capsys)
    assert found["outcome"] == "diverged"
    assert found["origins"]
