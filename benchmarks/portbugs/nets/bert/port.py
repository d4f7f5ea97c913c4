"""The small BERT in MindSpore, by somebody with other names and flatter nesting: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
from mindspore import nn, ops


class Attention(nn.Cell):
    """Attention with an additive mask."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.wq = nn.Dense(width, width)
        self.wk = nn.Dense(width, width)
        self.wv = nn.Dense(width, width)
        self.softmax = nn.Softmax(axis=-1)
        self.dropout = nn.Dropout(p=0.1)

    def split(self, x):
        return x.reshape(x.shape[0], x.shape[1], self.heads, -1).transpose(0, 2, 1, 3)

    def construct(self, x, bias):
        query, key, value = self.split(self.wq(x)), self.split(self.wk(x)), self.split(self.wv(x))
        scores = ops.matmul(query, key.swapaxes(-1, -2)) / math.sqrt(query.shape[-1]) + bias
        mixed = ops.matmul(self.dropout(self.softmax(scores)), value)
        return mixed.transpose(0, 2, 1, 3).reshape(x.shape)


class EncoderLayer(nn.Cell):
    """Attention, projection, shortcut, norm; perceptron, shortcut, norm."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.attention = Attention(width, heads)
        self.wo = nn.Dense(width, width)
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-12)
        self.fc1 = nn.Dense(width, 4 * width)
        self.act = nn.GELU(approximate=False)
        self.fc2 = nn.Dense(4 * width, width)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-12)
        self.dropout = nn.Dropout(p=0.1)

    def construct(self, x, bias):
        attended = self.dropout(self.wo(self.attention(x, bias)))
        x = self.norm1(attended + x)
        expanded = self.act(self.fc1(x))
        return self.norm2(self.dropout(self.fc2(expanded)) + x)


class BertModel(nn.Cell):
    """Encoder with a classifier on the pooled state; gives the sequence, the pooled state and the scores."""

    def __init__(self, vocabulary: int = 150, length: int = 32, width: int = 48, heads: int = 4, depth: int = 2):
        super().__init__()
        self.word = nn.Embedding(vocabulary, width, padding_idx=0)
        self.position = nn.Embedding(length, width)
        self.segment = nn.Embedding(2, width)
        self.norm = nn.LayerNorm((width,), epsilon=1e-12)
        self.dropout = nn.Dropout(p=0.1)
        self.layers = nn.CellList([EncoderLayer(width, heads) for _ in range(depth)])
        self.pool = nn.Dense(width, width)
        self.tanh = nn.Tanh()
        self.classifier = nn.Dense(width, 3)

    def embed(self, words, types):
        places = ops.arange(words.shape[1]).expand_dims(0)
        return self.dropout(self.norm(self.word(words) + self.position(places) + self.segment(types)))

    def construct(self, words, present, types):
        bias = (1.0 - present[:, None, None, :].astype(ms.float32)) * -10000.0
        x = self.embed(words, types)
        for layer in self.layers:
            x = layer(x, bias)
        pooled = self.tanh(self.pool(x[:, 0]))
        return x, pooled, self.classifier(pooled)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return BertModel()


def build_float16():
    """The net in float16 where the list of O2 says so; norms stay in float32."""
    return ms.amp.auto_mixed_precision(BertModel(), "O2")
