"""The small GPT-2 in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops


class SelfAttention(nn.Cell):
    """Causal self-attention; the mask is a constant that is cut to the sentence."""

    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Dense(width, 3 * width)
        self.c_proj = nn.Dense(width, width)
        self.attn_dropout = nn.Dropout(p=0.1)
        self.resid_dropout = nn.Dropout(p=0.1)
        self.mask = ms.Tensor(np.tril(np.ones((length, length), bool)))

    def construct(self, x):
        batch, length, width = x.shape
        query, key, value = ops.split(self.c_attn(x), width, axis=2)
        query = query.reshape(batch, length, self.heads, -1).swapaxes(1, 2)
        key = key.reshape(batch, length, self.heads, -1).swapaxes(1, 2)
        value = value.reshape(batch, length, self.heads, -1).swapaxes(1, 2)
        scores = ops.matmul(query, key.swapaxes(-2, -1)) / math.sqrt(key.shape[-1])
        hidden = ops.logical_not(self.mask[:length, :length])
        scores = scores.masked_fill(hidden, float("-inf"))
        weights = self.attn_dropout(ops.softmax(scores, axis=-1))
        mixed = ops.matmul(weights, value).swapaxes(1, 2).reshape(batch, length, width)
        return self.resid_dropout(self.c_proj(mixed))


class Perceptron(nn.Cell):
    """Up, GPT-2's GELU (the one with tanh), down."""

    def __init__(self, width: int):
        super().__init__()
        self.c_fc = nn.Dense(width, 4 * width)
        self.act = nn.GELU(approximate=True)
        self.c_proj = nn.Dense(4 * width, width)
        self.dropout = nn.Dropout(p=0.1)

    def construct(self, x):
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Cell):
    """Attention and perceptron, each behind a norm and inside a shortcut."""

    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.attn = SelfAttention(width, heads, length)
        self.ln_2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.mlp = Perceptron(width)

    def construct(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Cell):
    """Words and places, blocks, a last norm, and a head that shares the words' weight."""

    def __init__(self, vocabulary: int = 120, length: int = 24, width: int = 48, heads: int = 4, depth: int = 3):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        self.drop = nn.Dropout(p=0.1)
        self.h = nn.CellList([Block(width, heads, length) for _ in range(depth)])
        self.ln_f = nn.LayerNorm((width,), epsilon=1e-5)
        self.lm_head = nn.Dense(width, vocabulary, has_bias=False)
        self.lm_head.weight = self.wte.embedding_table

    def construct(self, tokens):
        places = ops.arange(tokens.shape[1])
        x = self.drop(self.wte(tokens) + self.wpe(places))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return GPT()


def build_float16():
    """The net with everything in float16."""
    return ms.amp.auto_mixed_precision(GPT(), "O3")
