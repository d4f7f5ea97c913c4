"""Nets whose two sides give other things: the reference in torch, the port in MindSpore, written as people write them.

    attention   weights and None, or the output alone          decoder   a cache: a dataclass, or nothing
    answer      an object with names against a tuple            loss      in front of the scores, or not
    table       an embedding that is read, and never called     plain     Dropout and Identity that one side leaves out

`wrong` is what the port does wrong besides.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import mindspore
import torch
from mindspore import ops
from torch import nn
from torch.nn import functional as F

WIDTH, WORDS, ROWS = 8, 11, 5


@dataclass
class Cache:
    """What a decoder remembers."""

    keys: list[Any]
    values: list[Any]


class Holder:
    """The same, of a class that aligner does not look into."""

    def __init__(self, keys: list[Any], values: list[Any]) -> None:
        self.keys, self.values = keys, values


class ModelOutput(OrderedDict):  # type: ignore[type-arg]  # as libraries of models write it
    """As the one that people know: keys, attributes and positions."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class TorchAttention(nn.Module):
    def __init__(self, weights=True):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.weights = weights

    def forward(self, x):
        q, k, v = self.q(x), self.k(x), self.v(x)
        weights = torch.softmax(q @ k.transpose(1, 2) * WIDTH**-0.5, -1)
        return self.out(weights @ v), (weights if self.weights else None), (k, v)


class TorchBlock(nn.Module):
    def __init__(self, gives):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), TorchAttention("weights" in gives)
        self.drop, self.path = nn.Dropout(0.1), nn.Identity()
        self.norm2, self.up, self.act, self.down = (
            nn.LayerNorm(WIDTH),
            nn.Linear(WIDTH, 2 * WIDTH),
            nn.GELU(),
            nn.Linear(2 * WIDTH, WIDTH),
        )

    def forward(self, x):
        y, weights, past = self.attention(self.norm1(x))
        x = x + self.path(self.drop(y))
        return x + self.drop(self.down(self.act(self.up(self.norm2(x))))), weights, past


class Torch(nn.Module):
    """`gives` are words: what is returned, and in which form."""

    def __init__(self, gives=""):
        super().__init__()
        self.tokens, self.drop = nn.Embedding(WORDS, WIDTH), nn.Dropout(0.1)
        self.blocks = nn.ModuleList(TorchBlock(gives) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)
        self.gives = gives.split()

    def forward(self, ids):
        x, every, pasts = self.drop(self.tokens(ids)), [], []
        rows = x
        for block in self.blocks:
            x, weights, past = block(x)
            every.append(weights)
            pasts.append(past)
        hidden = self.norm(x)
        scores = self.head(hidden)
        loss = F.cross_entropy(scores.flatten(0, 1), ids.flatten().long())
        return given(self.gives, scores, hidden, loss, every, pasts, rows)


def given(gives, scores, hidden, loss, every, pasts, rows):
    """What either net returns."""
    keys, values = [past[0] for past in pasts], [past[1] for past in pasts]
    known = {
        "loss": loss,
        "scores": scores,
        "cache": Cache(keys, values),
        "holder": Holder(keys, values),
        "pasts": tuple(pasts),
        "weights": tuple(every),
        "hidden": hidden,
        "rows": rows,
        "none": None,
    }
    form = gives[0] if gives else "tensor"
    named = [(name, known[name]) for name in gives[1:]] or [("scores", scores)]
    if form == "tensor":
        return scores
    return ModelOutput(named) if form == "output" else dict(named) if form == "dict" else tuple(v for _, v in named)


class SporeAttention(mindspore.nn.Cell):
    def __init__(self, alone=False, weights=False):
        super().__init__()
        self.q, self.k, self.v, self.out = (mindspore.nn.Dense(WIDTH, WIDTH) for _ in range(4))
        self.alone, self.weights = alone, weights

    def construct(self, x, wrong=()):
        q, k, v = self.q(x), self.k(x), self.v(x)
        scale = WIDTH**-0.5 if "scale" not in wrong else 1.0
        weights = ops.softmax(ops.matmul(q, k.swapaxes(1, 2)) * scale, -1)
        y = ops.matmul(weights, v)
        y = y if "projection" in wrong else self.out(y)
        return y if self.alone else (y, weights if self.weights else None)


class SporeBlock(mindspore.nn.Cell):
    def __init__(self, words, wrong, alone=False, drop=False):
        super().__init__()
        self.norm1, self.attention = (
            mindspore.nn.LayerNorm((WIDTH,), epsilon=1e-5),
            SporeAttention(alone, "weights" in words),
        )
        self.norm2, self.up, self.down = (
            mindspore.nn.LayerNorm((WIDTH,), epsilon=1e-5),
            mindspore.nn.Dense(WIDTH, 2 * WIDTH),
            mindspore.nn.Dense(2 * WIDTH, WIDTH),
        )
        self.drop = mindspore.nn.Dropout(p=0.1) if drop else None
        self.alone, self.wrong = alone, wrong

    def construct(self, x):
        y = self.norm1(x)
        weights = None
        if self.alone:
            y = self.attention(y, self.wrong)
        else:
            y, weights = self.attention(y, self.wrong)
        x = x + y
        y = self.up(x if "norm" in self.wrong else self.norm2(x))
        y = y if "act" in self.wrong else ops.gelu(y, approximate="none")
        return x + self.down(y), weights


class Spore(mindspore.nn.Cell):
    def __init__(self, gives="", wrong=(), table=False, alone=False, drop=False):
        super().__init__()
        self.tokens = mindspore.nn.Embedding(WORDS, WIDTH)
        self.blocks = mindspore.nn.CellList(
            [SporeBlock(gives, wrong if n == 0 else (), alone=alone, drop=drop) for n in range(2)]
        )
        self.norm, self.head = mindspore.nn.LayerNorm((WIDTH,), epsilon=1e-5), mindspore.nn.Dense(WIDTH, WORDS)
        self.gives, self.table, self.wrong = gives.split(), table, wrong

    def construct(self, ids):
        if self.table:
            rows = self.tokens.embedding_table[ids if "rows" not in self.wrong else ids - 1]
            x = rows.reshape(*ids.shape, WIDTH)
        else:
            x = self.tokens(ids)
        every, pasts, rows = [], [], x
        for block in self.blocks:
            x, weights = block(x)
            every.append(weights)
            pasts.append((x, x))
        hidden = self.norm(x)
        scores = self.head(hidden)
        loss = ops.cross_entropy(scores.reshape(-1, WORDS), ids.reshape(-1).astype(mindspore.int32))
        if "loss" in self.wrong:
            loss = loss * 2
        return given(self.gives, scores, hidden, loss, every, pasts, rows)
