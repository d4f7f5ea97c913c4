"""The transformer of 12 layers in MindSpore. `build_wrong` keeps two defaults and forgets one scale."""

from __future__ import annotations

import math

from mindspore import nn, ops

WIDTH, HEADS, DEPTH, WORDS = 768, 12, 12, 8000


class Attention(nn.Cell):
    def __init__(self, scale: float):
        super().__init__()
        self.scale = scale
        self.query, self.key, self.value = nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, WIDTH), nn.Dense(WIDTH, WIDTH)
        self.softmax, self.out = nn.Softmax(-1), nn.Dense(WIDTH, WIDTH)

    def split(self, x):
        return x.reshape(*x.shape[:2], HEADS, WIDTH // HEADS).swapaxes(1, 2)

    def construct(self, x):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        weights = self.softmax(ops.matmul(query, key.swapaxes(-2, -1)) / self.scale)
        return self.out(ops.matmul(weights, value).swapaxes(1, 2).reshape(x.shape))


class Block(nn.Cell):
    def __init__(self, wrong: bool):
        super().__init__()
        self.norm1 = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.attention = Attention(1.0 if wrong else math.sqrt(WIDTH // HEADS))
        self.norm2 = nn.LayerNorm((WIDTH,)) if wrong else nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.up, self.down = nn.Dense(WIDTH, 4 * WIDTH), nn.Dense(4 * WIDTH, WIDTH)
        self.act = nn.GELU(approximate=wrong)

    def construct(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(self.act(self.up(self.norm2(x))))


class Transformer(nn.Cell):
    def __init__(self, wrong: bool = False):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(128, WIDTH)
        self.blocks = nn.CellList([Block(wrong and index == 5) for index in range(DEPTH)])
        self.norm = nn.LayerNorm((WIDTH,), epsilon=1e-5)
        self.head = nn.Dense(WIDTH, WORDS, has_bias=False)

    def construct(self, words):
        x = self.words(words) + self.places(ops.arange(words.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build():
    return Transformer()


def build_wrong():
    return Transformer(wrong=True)
