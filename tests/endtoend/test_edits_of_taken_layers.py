"""A layer that is called in the place of another one of its class, which is called in other calls, or not at all."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.endtoend.test_edits_of_ports import _here, answer, is_right_with_the_patch, ported  # noqa: E402, F401

NET = """
import torch
from torch import nn


class Feed(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm = nn.Linear(6, 6), nn.LayerNorm(6)

    def forward(self, x):
        return self.norm(x + torch.relu(self.one(x)))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.key, self.for_words, self.for_queries = nn.Linear(6, 6), Feed(), Feed()

    def forward(self, x, many, seen):
        x = x + (self.key(x) @ x.transpose(1, 2)).masked_fill(~seen, -1e9).softmax(-1) @ x
        outs = [self.for_queries(x[:, :many])] if many else []
        if x.shape[1] > many:
            outs.append(self.for_words(x[:, many:]))
        return torch.cat(outs, 1)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(2))

    def run(self, x, many):
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        for layer in self.layers:
            x = layer(x, many, seen)
        return x

    def forward(self, queries, words):
        return self.run(torch.cat((queries, words), 1), 3), self.run(queries, 3), self.run(words, 0)


def build():
    torch.manual_seed(5)
    return Net().eval(), (torch.randn(2, 3, 6), torch.randn(2, 5, 6))
"""
HIDDEN = [("masked_fill(~seen, -1e9)", "masked_fill(seen, -1e9)"), (".tril()", ".tril().logical_not()")]


@pytest.mark.parametrize("mask", [[], HIDDEN], ids=["", "in other words"])
def test_it_is_one_mistake_and_no_other_call_is_blamed(tmp_path, capsys, mask):
    ported(tmp_path, NET, [*mask, ("self.for_words(x[:, many:])", "self.for_queries(x[:, many:])")])
    origins = answer(tmp_path, capsys)["origins"]
    assert {origin["layer"] for origin in origins} <= {"layers.0", "layers.1"}
    lines = [line["after"].strip() for origin in origins for line in origin["edit"]["lines"]]
    assert {*lines} == {"outs.append(self.for_words(x[:, many:]))"}
    assert is_right_with_the_patch(tmp_path, capsys)
