"""An LSTM classifier of sentences, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn


class Classifier(nn.Module):
    """An embedding, a bidirectional LSTM of two layers, and a classifier on its last hidden states."""

    def __init__(self, vocabulary: int = 200, width: int = 24, hidden: int = 32, classes: int = 5):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.norm = nn.LayerNorm(2 * hidden)
        self.fc = nn.Linear(2 * hidden, classes)

    def forward(self, tokens):
        outputs, (hidden, _) = self.lstm(self.embedding(tokens))
        sentence = torch.cat([hidden[-2], hidden[-1]], dim=1)
        return self.fc(self.norm(sentence)), outputs


def build():
    """The net with the same weights on every run, and a batch of four sentences of twelve words."""
    torch.manual_seed(0)
    net = Classifier()
    nn.init.uniform_(net.norm.weight, 0.5, 1.5)
    return net.eval(), (torch.randint(1, 200, (4, 12)),)
