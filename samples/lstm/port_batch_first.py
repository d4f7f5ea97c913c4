"""The LSTM classifier in MindSpore with one mistake: batch_first is missing.

The outputs have the right shape, but the LSTM walks through the batch in place of the sentence.
"""

from __future__ import annotations

from mindspore import nn, ops


class Classifier(nn.Cell):
    """An embedding, a bidirectional LSTM of two layers, and a classifier on its last hidden states."""

    def __init__(self, vocabulary: int = 200, width: int = 24, hidden: int = 32, classes: int = 5):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, bidirectional=True)  # planted: batch_first=True
        self.norm = nn.LayerNorm((2 * hidden,), epsilon=1e-5)
        self.fc = nn.Dense(2 * hidden, classes)

    def construct(self, tokens):
        outputs, (hidden, _) = self.lstm(self.embedding(tokens))
        sentence = ops.cat([hidden[-2], hidden[-1]], axis=1)
        return self.fc(self.norm(sentence)), outputs


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Classifier()
