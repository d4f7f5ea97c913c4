"""Mistakes in loops: a list that grows, an item that stands still, a place that is found twice, two calls at once."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(6, 12)
        self.steps = nn.ModuleList(nn.Linear(6, 6) for _ in range(3))
        self.last = nn.Linear(30, 6)

    def forward(self, x):
        parts = [*self.first(x).chunk(2, -1)]
        for step in self.steps:
            parts.append(step(parts[-1]))
        return self.last(torch.cat(parts, -1))


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.shared = nn.Linear(6, 6)
        self.norms = nn.ModuleList(nn.LayerNorm(6) for _ in range(3))

    def forward(self, levels):
        found = []
        for i, x in enumerate(levels):
            found.append(self.norms[i](self.shared(x)))
        return torch.cat(found, 1)


class Seeds(nn.Module):
    def forward(self, x):
        left = (x * x).sum(-1) + 1.0
        seeds = []
        for _ in range(5):
            best = left.argmax(-1)
            seed = x[torch.arange(len(x)), best][:, None]
            seeds.append(seed)
            left = left * (1.0 - torch.exp(-((seed - x) ** 2).sum(-1)))
        return torch.cat(seeds, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.block, self.towers, self.seeds = Block(), Towers(), Seeds()

    def forward(self, x):
        x = self.towers([self.block(x), x[:, :4], x[:, 2:]])
        one = x.std((1, 2), keepdim=True)
        other = (x * x).std((1, 2), keepdim=True)
        return self.seeds(x * (one / other))


def build():
    torch.manual_seed(11)
    net = Net()
    for norm in net.towers.norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
    return net.eval(), torch.randn(3, 9, 6)
"""
MISTAKES = {
    "a list that grows": [
        ("        parts = [*self", "        parts = [first, last] = [*self"),
        ("step(parts[-1])", "step(last)"),
    ],
    "an item that stands still": [("self.norms[i]", "self.norms[0]")],
    "a place that is found twice": [
        ("        seeds = []", "        seeds, dense = [], left"),
        ("left = left *", "left = dense *"),
    ],
    "two calls at once": [
        ("x.std((1, 2), keepdim=True)", "x.std()"),
        ("(x * x).std((1, 2), keepdim=True)", "(x * x).std()"),
    ],
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=[*MISTAKES])
def test_the_patch_makes_the_port_right(tmp_path, capsys, mistake):
    ported(tmp_path, NET, mistake)
    found = answer(tmp_path, capsys)
    assert all(one["edit"]["confirmed"] for one in found["origins"])
    assert is_right_with_the_patch(tmp_path, capsys)


DECODER = """
import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.bias = nn.Linear(8, 8), nn.Linear(8, 8), nn.Embedding(9, 2)
        self.softmax = nn.Softmax(-1)

    def forward(self, x, past):
        query, key = (layer(x).reshape(len(x), -1, 2, 4) for layer in (self.query, self.key))
        key = key if past is None else torch.cat([past, key], 1)
        length = key.shape[1]
        place = torch.arange(length)
        bias = self.bias((place[None] - place[:, None]).clamp(-4, 4) + 4)[-x.shape[1]:].permute(2, 0, 1)
        scores = torch.einsum("bqhd,bkhd->bhqk", query, key) + bias
        scores = scores.masked_fill(place > place[length - x.shape[1]:, None], -1e4)
        return torch.einsum("bhqk,bkhd->bqhd", self.softmax(scores), key).flatten(2), key


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.last = Attention(), nn.Linear(8, 8)

    def forward(self, x):
        past, made = None, []
        for start in range(4):
            y, past = self.attention(x[:, start : start + 1], past)
            made.append(self.last(y))
        return torch.cat(made, 1)


def build():
    torch.manual_seed(3)
    return Net().eval(), torch.randn(3, 4, 8)
"""
OTHERWISE = [
    ("place[None] - place[:, None])", "place[None] - place[-x.shape[1]:, None])"),
    ("[-x.shape[1]:].permute", ".permute"),
    (".reshape(len(x), -1, 2, 4)", ".reshape(len(x), -1, 2, 4).transpose(1, 2)"),
    ("torch.cat([past, key], 1)", "torch.cat([past, key], 2)"),
    ("key.shape[1]", "key.shape[2]"),
    ("bqhd,bkhd->bhqk", "bhqd,bhkd->bhqk"),
    ("scores.masked_fill(place > place[length - x.shape[1]:, None], -1e4)",
     "scores + (place > place[length - x.shape[1]:, None]) * -1e4"),
    ("bhqk,bkhd->bqhd", "bhqk,bhkd->bqhd"),
]  # fmt: skip


def test_a_port_that_works_on_the_newest_part_alone_is_right(tmp_path, capsys):
    ported(tmp_path, DECODER, OTHERWISE)
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"]) == ("aligned", [])


def test_a_part_of_which_something_wrong_is_made_is_wrong(tmp_path, capsys):
    ported(tmp_path, DECODER, [*OTHERWISE, ("place[-x.shape[1]:, None])", "place[:x.shape[1], None])")])
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"][0]["layer"]) == ("diverged", "attention")


EPISODES = """
import torch
from torch import nn


class Memory(nn.Module):
    def __init__(self):
        super().__init__()
        self.start = nn.Parameter(torch.randn(1, 6))
        self.given, self.cell = nn.Linear(11, 6), nn.GRUCell(6, 6)

    def forward(self, x, first):
        start = torch.tanh(self.start).repeat(len(x), 1)
        memory, found = start, []
        for t in range(x.shape[1]):
            new = first[:, t, None]
            memory = memory * (1.0 - new) + start * new
            given = self.given(torch.cat([memory, x[:, t]], -1))
            memory = self.cell(given, memory)
            found.append(memory)
        return torch.stack(found, 1)


def build():
    torch.manual_seed(5)
    first = torch.tensor([[1.0, 0, 0, 1], [1, 0, 1, 0], [1, 0, 0, 0]])
    return Memory().eval(), (torch.randn(3, 4, 5), first)
"""


def test_where_the_first_turn_tells_little_a_later_one_is_asked(tmp_path, capsys):
    """In the first the memory is what it begins with, whatever becomes of it."""
    ported(tmp_path, EPISODES, [(" + start * new", "")])
    origin = answer(tmp_path, capsys)["origins"][0]
    assert origin["edit"]["confirmed"]
    assert "start" in origin["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


PASSES = """
import torch
from torch import nn


class Cross(nn.Module):
    def __init__(self):
        super().__init__()
        self.given, self.act, self.out = nn.Linear(11, 9), nn.GELU(), nn.Linear(9, 6)

    def forward(self, x, source):
        return x + self.out(self.act(self.given(torch.cat([x, source], -1))))


class Passes(nn.Module):
    def __init__(self):
        super().__init__()
        self.cross, self.last = nn.ModuleList(Cross() for _ in range(2)), nn.Linear(6, 6)

    def forward(self, x, source):
        for i in range(3):
            x = self.last(self.cross[min(i, 1)](x, source))
        return x


def build():
    torch.manual_seed(5)
    return Passes().eval(), (torch.randn(3, 6), torch.randn(3, 5))
"""


def test_a_layer_that_is_called_in_the_place_of_another_in_one_turn(tmp_path, capsys):
    """With the edit other calls are made: each is held to the reference's call that it is then."""
    ported(tmp_path, PASSES, [("min(i, 1)", "i % 2")])
    origin = answer(tmp_path, capsys)["origins"][0]
    assert origin["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)


GAPS = """
import torch
from torch import nn


class Gaps(nn.Module):
    def __init__(self):
        super().__init__()
        self.turn, self.out = nn.Linear(10, 5), nn.Linear(5, 3)

    def forward(self, x, seen):
        gaps = torch.zeros_like(seen)
        for t in range(1, x.shape[1]):
            gaps[:, t] = 0.5 + (1.0 - seen[:, t - 1]) * gaps[:, t - 1]
        h = torch.zeros_like(x[:, 0])
        for t in range(x.shape[1]):
            h = torch.tanh(self.turn(torch.cat([x[:, t], h * torch.exp(-gaps[:, t])], -1)))
        return self.out(h)


def build():
    torch.manual_seed(5)
    return Gaps().eval(), (torch.randn(3, 6, 5), (torch.rand(3, 6, 5) > 0.5).float())
"""
ROWS = [
    ("        gaps = torch.zeros_like(seen)\n", "        rows = [torch.zeros_like(seen[:, 0])]\n"),
    ("for t in range(1, x.shape[1])", "for i in range(1, x.shape[1])"),
    (
        "gaps[:, t] = 0.5 + (1.0 - seen[:, t - 1]) * gaps[:, t - 1]",
        "rows.append(0.5 + rows[-1] * (1.0 - seen[:, i]))",
    ),
    ("gaps[:, t])], -1", "rows[t])], -1"),
]


def test_an_item_of_the_turn_before_is_said_by_the_number_that_counts_the_turns(tmp_path, capsys):
    ported(tmp_path, GAPS, ROWS)
    origin = answer(tmp_path, capsys)["origins"][0]
    assert "seen[:, i - 1]" in origin["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)


STALE = """
import torch
from torch import nn


class Refine(nn.Module):
    def __init__(self):
        super().__init__()
        self.read, self.cell, self.wider = nn.Linear(6, 6), nn.GRUCell(6, 6), nn.Linear(6, 6)

    def forward(self, x, slots):
        batch, count, width = slots.shape
        state = slots.reshape(-1, width)
        for _ in range(3):
            found = self.read(state.reshape(batch, count, width)).softmax(1) * x
            state = self.cell(found.reshape(-1, width), state.reshape(-1, width))
            state = state + torch.relu(self.wider(state))
        return state.reshape(batch, count, width)


def build():
    torch.manual_seed(5)
    return Refine().eval(), (torch.randn(3, 1, 6), torch.randn(3, 4, 6))
"""


def test_a_value_that_was_right_in_the_first_turn_is_put_right_where_it_is_taken_again(tmp_path, capsys):
    ported(tmp_path, STALE, [("state.reshape(-1, width))", "slots.reshape(-1, width))")])
    origin = answer(tmp_path, capsys)["origins"][0]
    assert "slots.reshape(-1, width))" in origin["edit"]["lines"][0]["before"]
    assert is_right_with_the_patch(tmp_path, capsys)


SINCE = """
import torch
from torch import nn


class Fill(nn.Module):
    def __init__(self):
        super().__init__()
        self.rate = nn.Parameter(torch.rand(6))

    def forward(self, x, present, last, since):
        kept = torch.exp(-since * self.rate)
        return torch.where(present > 0, x, kept * last)


class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.fill, self.cell = Fill(), nn.GRUCell(6, 6)

    def forward(self, x, present, times):
        last, since, state = torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0]), torch.zeros_like(x[:, 0])
        before = times[:, :1] - 0.3
        for at in range(x.shape[1]):
            now, there = times[:, at : at + 1], present[:, at]
            since = since + (now - before)
            state = self.cell(self.fill(x[:, at], there, last, since), state)
            last = torch.where(there > 0, x[:, at], last)
            since = torch.where(there > 0, torch.zeros_like(since), since)
            before = now
        return state


def build():
    torch.manual_seed(5)
    return Reader().eval(), (torch.randn(4, 7, 6), (torch.rand(4, 7, 6) > 0.5).float(), torch.rand(4, 7).cumsum(1))
"""


def test_a_sum_over_turns_that_has_one_number_for_each_row_in_its_stead(tmp_path, capsys):
    """What the layer is given has another size then, and is spread over the columns inside."""
    ported(tmp_path, SINCE, [("since = since + (now - before)", "since = now - before")])
    (origin,) = answer(tmp_path, capsys)["origins"]
    assert "since = since + " in origin["edit"]["lines"][0]["after"]
    assert is_right_with_the_patch(tmp_path, capsys)
