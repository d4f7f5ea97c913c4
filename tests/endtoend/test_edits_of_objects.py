"""Tables that an object which is no layer makes when it is built: a schedule, a maker of anchors."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import answer, is_right_with_the_patch, ported  # noqa: E402 - as below
from tests.endtoend.test_edits_of_settings import _here  # noqa: E402, F401 - as above

NET = """
import torch
from torch import nn


class Schedule:
    def __init__(self, first=0.1, last=0.9):
        shares = torch.linspace(first, last, 6)
        self.kept = shares.cumprod(0).sqrt()
        self.noise = (1 - self.kept**2).sqrt()

    def mixed(self, x, noise, step):
        return self.kept[step].reshape(-1, 1) * x + self.noise[step].reshape(-1, 1) * noise


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.schedule = Schedule()
        self.body, self.head = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x, noise, step):
        return self.head(self.schedule.mixed(self.body(x), noise, step).tanh())


def build():
    torch.manual_seed(2)
    return Net().eval(), (torch.randn(3, 8), torch.randn(3, 8), torch.tensor([1, 4, 2]))
"""
MISTAKES = {
    "a root": ("self.noise = (1 - self.kept**2).sqrt()", "self.noise = 1 - self.kept**2"),
    "a sum for a product": ("shares.cumprod(0)", "(shares.cumsum(0) / 6)"),
    "a number": ("last=0.9", "last=0.8"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_it_is_mended_where_it_is_made(tmp_path, capsys, mistake):
    old, new = MISTAKES[mistake]
    assert NET.count(old) == 1
    (tmp_path / "ref.py").write_text(NET, encoding="utf-8")
    (tmp_path / "port.py").write_text(NET.replace(old, new), encoding="utf-8")
    found = answer(tmp_path, capsys)
    (origin,) = found["origins"]
    assert origin["edit"]["confirmed"]
    assert not origin["edit"]["only_here"]
    assert is_right_with_the_patch(tmp_path, capsys)


KEPT = """
import torch
from torch import nn


class Tour:
    def __init__(self, x):
        self.need, self.left, self.seen = 0.1 + 0.2 * x.abs(), torch.ones_like(x[:, 0]), torch.zeros_like(x)

    def closed(self):
        return (self.seen > 0) | (self.need > self.left[:, None])

    def go(self, chosen):
        left = self.left - self.need.gather(1, chosen[:, None])[:, 0]
        home = chosen == 0
        self.left = torch.where(home, 1.0, left)
        self.seen = self.seen + nn.functional.one_hot(chosen, 7) * ~home[:, None]


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.out = nn.Linear(7, 9), nn.Linear(9, 7)

    def forward(self, x, closed):
        closed = torch.cat((~closed[:, 1:].all(-1, keepdim=True), closed[:, 1:]), 1)
        return self.out(self.query(x).tanh()).masked_fill(closed, -torch.inf).log_softmax(-1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = Scores()

    def forward(self, x):
        tour, made = Tour(x), []
        for _ in range(12):
            scores = self.scores(x, tour.closed())
            chosen = scores.argmax(-1)
            tour.go(chosen)
            made.append(chosen)
        return torch.stack(made, 1)


def build():
    torch.manual_seed(2)
    return Net().eval(), (torch.randn(4, 7),)
"""


def test_what_an_object_keeps_from_turn_to_turn_is_mended_where_it_is_put_there(tmp_path, capsys):
    """Later on only one way is open, as it is at the reference's end: that is made so, and no other value used here."""
    (tmp_path / "ref.py").write_text(KEPT, encoding="utf-8")
    wrong = KEPT.replace("self.left = torch.where(home, 1.0, left)", "self.left = left")
    (tmp_path / "port.py").write_text(wrong, encoding="utf-8")
    found = answer(tmp_path, capsys)
    (origin,) = found["origins"]
    assert origin["edit"]["lines"][0]["before"].strip() == "self.left = left"
    assert origin["edit"]["confirmed"]
    assert is_right_with_the_patch(tmp_path, capsys)


SHARED = """
import numpy as np
import torch
from torch import nn


class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x, own):
        return (self.inner(x) * own[:, None]).tanh()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two, self.out = Mix(), Mix(), nn.Linear(6, 3)

    def forward(self, x, loop, weight):
        own = torch.ones(len(x))
        own[loop] = weight
        x = self.two(self.one(x, own), own)
        return self.out(x.cumsum(0) * own[:, None])


def build():
    torch.manual_seed(3)
    return Net().eval(), (torch.randn(7, 6), torch.tensor([1, 4]), torch.tensor([0.3, 1.7]))
"""
GRAPH = """class Graph:
    def __init__(self, n, loop, weight):
        own = np.ones(n, np.float32)
        own[loop.numpy()] {} weight.numpy()
        self.own, self.order = torch.from_numpy(own), np.arange(n)


class Mix(nn.Module):"""
IN_AN_OBJECT = [
    (
        "(self, x, own):\n        return (self.inner(x) * own[:, None]).tanh()",
        "(self, x, graph):\n        return (self.inner(x) * graph.own[:, None]).tanh()",
    ),
    ("        own = torch.ones(len(x))\n        own[loop] = weight\n", "        graph = Graph(len(x), loop, weight)\n"),
    ("self.two(self.one(x, own), own)", "self.two(self.one(x, graph), graph)"),
    ("x.cumsum(0) * own[:, None]", "x.cumsum(0) * graph.own[:, None]"),
]


def test_what_an_object_holds_wrong_is_one_mistake_where_it_is_made(tmp_path, capsys):
    ported(tmp_path, SHARED, [("class Mix(nn.Module):", GRAPH.format("+=")), *IN_AN_OBJECT])
    origins = answer(tmp_path, capsys)["origins"]
    lines = [line["after"].strip() for origin in origins for line in (origin["edit"] or {"lines": []})["lines"]]
    assert lines
    assert {*lines} == {"own[loop.numpy()] = weight.numpy()"}
    assert is_right_with_the_patch(tmp_path, capsys)


def test_an_object_with_arrays_is_handed_on_in_a_right_port(tmp_path, capsys):
    ported(tmp_path, SHARED, [("class Mix(nn.Module):", GRAPH.format("=")), *IN_AN_OBJECT])
    found = answer(tmp_path, capsys)
    assert (found["outcome"], found["origins"]) == ("aligned", [])
