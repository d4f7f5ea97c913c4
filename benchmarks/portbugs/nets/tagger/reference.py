"""Reads characters with an LSTM, then tags and summarises with GRU cells, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn


class Pointer(nn.Module):
    """Additive attention of one state over the encoder's outputs."""

    def __init__(self, states: int, width: int):
        super().__init__()
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(states, width, bias=False)
        self.tanh = nn.Tanh()
        self.score = nn.Linear(width, 1)

    def forward(self, state, memory, present):
        scores = self.score(self.tanh(self.query(state).unsqueeze(1) + self.key(memory))).squeeze(-1)
        weights = torch.softmax(scores.masked_fill(present == 0, -1e9), dim=1)
        return (weights.unsqueeze(1) @ memory).squeeze(1), weights


class Decoder(nn.Module):
    """A GRU cell that looks back at the sentence before each of its steps."""

    def __init__(self, states: int, width: int, classes: int):
        super().__init__()
        self.start = nn.Linear(states, width)
        self.pointer = Pointer(states, width)
        self.cell = nn.GRUCell(classes + states, width)
        self.out = nn.Linear(width + states, classes)

    def forward(self, memory, present, final, steps: int):
        state = torch.tanh(self.start(final))
        previous = memory.new_zeros(memory.shape[0], self.out.out_features)
        scores = []
        for _ in range(steps):
            seen, _weights = self.pointer(state, memory, present)
            state = self.cell(torch.cat([previous, seen], dim=1), state)
            previous = torch.sigmoid(self.out(torch.cat([state, seen], dim=1)))
            scores.append(previous)
        return torch.stack(scores, dim=1)


class Tagger(nn.Module):
    """Tags of every word, and a short summary of the sentence."""

    def __init__(self, vocabulary: int = 140, width: int = 24, hidden: int = 32, tags: int = 9, classes: int = 6):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.reader = nn.LSTM(width, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.smooth = nn.GRU(2 * hidden, hidden, batch_first=True)
        self.norm = nn.LayerNorm(hidden)
        self.tag = nn.Linear(3 * hidden, tags)
        self.decoder = Decoder(2 * hidden, hidden, classes)

    def forward(self, words, present):
        memory, (hidden, _cell) = self.reader(self.embedding(words))
        memory = memory * present.unsqueeze(-1)
        smoothed, _state = self.smooth(memory)
        tags = self.tag(torch.cat([memory, self.norm(smoothed)], dim=-1))
        final = torch.cat([hidden[-2], hidden[-1]], dim=1)
        return {"tags": torch.log_softmax(tags, dim=-1), "summary": self.decoder(memory, present, final, steps=3)}


def build():
    """The net with the same weights on every run, and four sentences of different length."""
    torch.manual_seed(14)
    net = Tagger()
    nn.init.uniform_(net.norm.weight, 0.6, 1.4)
    nn.init.normal_(net.norm.bias, std=0.1)
    nn.init.normal_(net.embedding.weight, std=0.8)
    present = (torch.arange(12) < torch.tensor([[12], [7], [10], [9]])).float()
    words = torch.randint(1, 140, (4, 12)) * present.long()
    return net.eval(), (words, present)
