"""The small encoder-decoder transformer in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops


def sinusoids(length: int, width: int):
    """Sine at even places of the vector, cosine at odd ones."""
    angles = np.arange(length)[:, None] * np.exp(np.arange(0, width, 2) * (-math.log(10000.0) / width))
    table = np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(length, width)
    return ms.Tensor(table, ms.float32)


class DecoderLayer(nn.Cell):
    """Looks at the words so far, then at the source, then thinks; each behind a norm and inside a shortcut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm((width,), epsilon=1e-5)
        self.self_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm((width,), epsilon=1e-5)
        self.cross_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm3 = nn.LayerNorm((width,), epsilon=1e-5)
        self.linear1 = nn.Dense(width, 2 * width)
        self.linear2 = nn.Dense(2 * width, width)

    def construct(self, x, memory, causal, padding):
        normed = self.norm1(x)
        x = x + self.self_attn(normed, normed, normed, attn_mask=causal, need_weights=False)[0]
        normed = self.norm2(x)
        x = x + self.cross_attn(normed, memory, memory, key_padding_mask=padding, need_weights=False)[0]
        return x + self.linear2(ops.relu(self.linear1(self.norm3(x))))


class Translator(nn.Cell):
    """Words of two languages; log-probabilities of the next word."""

    def __init__(self, source: int = 90, target: int = 110, width: int = 48, heads: int = 4, depth: int = 2):
        super().__init__()
        self.width = width
        self.source = nn.Embedding(source, width)
        self.target = nn.Embedding(target, width)
        self.encoder = nn.CellList(
            [
                nn.TransformerEncoderLayer(
                    width, heads, 2 * width, 0.1, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(depth)
            ]
        )
        self.encoder_norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.decoder = nn.CellList([DecoderLayer(width, heads) for _ in range(depth)])
        self.decoder_norm = nn.LayerNorm((width,), epsilon=1e-5)
        self.generator = nn.Dense(width, target)
        self.places = sinusoids(40, width)

    def embed(self, table, words):
        return table(words) * math.sqrt(self.width) + self.places[: words.shape[1]]

    def construct(self, source, padding, target):
        memory = self.embed(self.source, source)
        bias = padding.astype(ms.float32) * -10000.0
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=bias)
        memory = self.encoder_norm(memory)
        length = target.shape[1]
        causal = ops.triu(ops.ones((length, length)), diagonal=1).astype(ms.bool_)
        x = self.embed(self.target, target)
        for layer in self.decoder:
            x = layer(x, memory, causal, padding)
        return ops.log_softmax(self.generator(self.decoder_norm(x)), axis=-1)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Translator()


def build_float16():
    """The net with everything in float16."""
    return ms.amp.auto_mixed_precision(Translator(), "O3")
