"""A matching net with two inputs and one shared tower, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn


class LayerNorm(nn.Module):
    """Layer normalisation written by hand with the standard deviation, as in many an early transformer."""

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x):
        mean = x.mean(-1, keepdim=True)
        return self.gain * (x - mean) / (x.std(-1, keepdim=True) + self.eps) + self.shift


class Tower(nn.Module):
    """Words to one vector: embedding, perceptron, mean over the words that are there, normalisation."""

    def __init__(self, vocabulary: int, width: int):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.fc1 = nn.Linear(width, 2 * width)
        self.act = nn.Hardswish()
        self.fc2 = nn.Linear(2 * width, width)
        self.norm = LayerNorm(width)

    def forward(self, words, *, present):
        x = self.fc2(self.act(self.fc1(self.embedding(words))))
        weight = present.unsqueeze(-1)
        return self.norm((x * weight).sum(1) / weight.sum(1))


class Matcher(nn.Module):
    """Scores how well an item fits a query; both go through the same tower."""

    def __init__(self, vocabulary: int = 150, width: int = 16):
        super().__init__()
        self.tower = Tower(vocabulary, width)
        self.fc = nn.Linear(4 * width, width)
        self.act = nn.ReLU()
        self.score = nn.Linear(width, 1)

    def forward(self, pair):
        query = self.tower(pair["query"]["words"], present=pair["query"]["present"])
        item = self.tower(pair["item"]["words"], present=pair["item"]["present"])
        features = torch.cat([query, item, (query - item).abs(), query * item], dim=-1)
        return {"score": self.score(self.act(self.fc(features))).squeeze(-1), "vectors": (query, item)}


def sentence(length: int, words: int, batch: int = 4):
    """Random words, and 1.0 where a word is there: the sentences of a batch are not equally long."""
    lengths = torch.randint(length // 2, length, (batch, 1))
    return {"words": torch.randint(0, words, (batch, length)), "present": (torch.arange(length) < lengths).float()}


def build():
    """The net with the same weights on every run, and a batch of four pairs."""
    torch.manual_seed(0)
    net = Matcher()
    nn.init.uniform_(net.tower.norm.gain, 0.5, 1.5)
    nn.init.normal_(net.tower.norm.shift, std=0.2)
    return net.eval(), ({"query": sentence(6, 150), "item": sentence(10, 150)},)
