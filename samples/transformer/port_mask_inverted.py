"""The GPT-like transformer in MindSpore with one mistake: the mask is taken the other way round.

masked_fill fills where its mask is True; the net's mask is True where a token may look.
"""

from __future__ import annotations

import math

import mindspore as ms
from mindspore import nn, ops


class Attention(nn.Cell):
    """Self-attention with several heads; `mask` is True where a token may look."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Dense(width, width)
        self.key = nn.Dense(width, width)
        self.value = nn.Dense(width, width)
        self.softmax = nn.Softmax(axis=-1)
        self.out = nn.Dense(width, width)

    def split(self, x):
        batch, length, width = x.shape
        return x.reshape(batch, length, self.heads, width // self.heads).swapaxes(1, 2)

    def construct(self, x, mask):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = ops.matmul(query, key.swapaxes(-2, -1)) / math.sqrt(query.shape[-1])
        weights = self.softmax(scores.masked_fill(mask, -1e9))  # planted: True is to be kept
        mixed = ops.matmul(weights, value).swapaxes(1, 2).reshape(x.shape)
        return self.out(mixed), weights


class Block(nn.Cell):
    """Attention and a feed-forward net, each behind a LayerNorm and inside a shortcut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.up = nn.Dense(width, 4 * width)
        self.gelu = nn.GELU(approximate=False)
        self.down = nn.Dense(4 * width, width)
        self.dropout = nn.Dropout(p=0.1)

    def construct(self, x, mask):
        attended, weights = self.attention(self.norm1(x), mask=mask)
        x = x + self.dropout(attended)
        x = x + self.dropout(self.down(self.gelu(self.up(self.norm2(x)))))
        return x, weights


class Transformer(nn.Cell):
    """Token and position embeddings, the blocks, and a head that shares its weight with the token embedding."""

    def __init__(self, vocabulary: int = 100, length: int = 16, width: int = 32, heads: int = 4, depth: int = 2):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.CellList([Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.head = nn.Dense(width, vocabulary, has_bias=False)
        self.head.weight = self.token.embedding_table

    def construct(self, tokens):
        positions = ops.arange(tokens.shape[1])
        mask = ops.tril(ops.ones((tokens.shape[1], tokens.shape[1]))).astype(ms.bool_)
        x = self.token(tokens) + self.position(positions)
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask=mask)
            maps.append(weights)
        hidden = self.norm(x)
        return {"logits": self.head(hidden), "hidden": hidden, "attentions": tuple(maps)}


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Transformer()
