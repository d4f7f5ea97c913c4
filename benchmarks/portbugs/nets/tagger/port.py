"""The LSTM tagger with its GRU decoder in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops


class Pointer(nn.Cell):
    """Additive attention of one state over the encoder's outputs."""

    def __init__(self, states: int, width: int):
        super().__init__()
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(states, width, has_bias=False)
        self.tanh = nn.Tanh()
        self.score = nn.Dense(width, 1)

    def construct(self, state, memory, present):
        scores = self.score(self.tanh(self.query(state).expand_dims(1) + self.key(memory))).squeeze(-1)
        weights = ops.softmax(scores.masked_fill(present == 0, -1e9), axis=1)
        return ops.matmul(weights.expand_dims(1), memory).squeeze(1), weights


class Decoder(nn.Cell):
    """A GRU cell that looks back at the sentence before each of its steps."""

    def __init__(self, states: int, width: int, classes: int):
        super().__init__()
        self.classes = classes
        self.start = nn.Dense(states, width)
        self.pointer = Pointer(states, width)
        self.cell = nn.GRUCell(classes + states, width)
        self.out = nn.Dense(width + states, classes)

    def construct(self, memory, present, final, steps: int):
        state = ops.tanh(self.start(final))
        previous = ops.zeros((memory.shape[0], self.classes), memory.dtype)
        scores = []
        for _ in range(steps):
            seen, _weights = self.pointer(state, memory, present)
            state = self.cell(ops.cat([previous, seen], axis=1), state)
            previous = ops.sigmoid(self.out(ops.cat([state, seen], axis=1)))
            scores.append(previous)
        return ops.stack(scores, axis=1)


class Tagger(nn.Cell):
    """Tags of every word, and a short summary of the sentence."""

    def __init__(self, vocabulary: int = 140, width: int = 24, hidden: int = 32, tags: int = 9, classes: int = 6):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=0)
        self.reader = nn.LSTM(width, hidden, num_layers=2, batch_first=True, bidirectional=True)
        self.smooth = nn.GRU(2 * hidden, hidden, batch_first=True)
        self.norm = nn.LayerNorm((hidden,), epsilon=1e-5)
        self.tag = nn.Dense(3 * hidden, tags)
        self.decoder = Decoder(2 * hidden, hidden, classes)

    def construct(self, words, present):
        memory, (hidden, _cell) = self.reader(self.embedding(words))
        memory = memory * present.expand_dims(-1)
        smoothed, _state = self.smooth(memory)
        tags = self.tag(ops.cat([memory, self.norm(smoothed)], axis=-1))
        final = ops.cat([hidden[-2], hidden[-1]], axis=1)
        return {"tags": ops.log_softmax(tags, axis=-1), "summary": self.decoder(memory, present, final, steps=3)}


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Tagger()


def build_float16():
    """The net in float16 but for its norms."""
    return ms.amp.auto_mixed_precision(Tagger(), "O2")
