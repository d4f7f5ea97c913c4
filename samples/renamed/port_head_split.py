"""The convolution-attention hybrid in MindSpore (other names and nesting) with one mistake: qkv split heads first.

The fused projection is laid out as (q k v, head, channel); read as (head, q k v, channel) it mixes all three.
"""

from __future__ import annotations

import math

from mindspore import nn, ops


class EncoderLayer(nn.Cell):
    """Attention and the feed-forward part in one."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.ln_attention = nn.LayerNorm((width,), epsilon=1e-6)
        self.to_qkv = nn.Dense(width, 3 * width)
        self.to_out = nn.Dense(width, width)
        self.ln_ffn = nn.LayerNorm((width,), epsilon=1e-6)
        self.expand = nn.Dense(width, 2 * width)
        self.contract = nn.Dense(2 * width, width)

    def attend(self, x):
        batch, length, width = x.shape
        # planted: 3 comes before the heads
        qkv = self.to_qkv(x).reshape(batch, length, self.heads, 3, width // self.heads).transpose(3, 0, 2, 1, 4)
        query, key, value = qkv[0], qkv[1], qkv[2]
        weights = ops.softmax(ops.matmul(query, key.swapaxes(-2, -1)) / math.sqrt(width // self.heads), axis=-1)
        return self.to_out(ops.matmul(weights, value).swapaxes(1, 2).reshape(batch, length, width))

    def construct(self, x):
        x = x + self.attend(self.ln_attention(x))
        return x + self.contract(ops.gelu(self.expand(self.ln_ffn(x))))


class HybridNet(nn.Cell):
    """Convolutions, tokens, encoder, classifier."""

    def __init__(self, classes: int = 10, width: int = 32):
        super().__init__()
        self.conv_a = nn.Conv2d(3, 16, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.gn_a = nn.GroupNorm(4, 16)
        self.conv_b = nn.Conv2d(16, width, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.gn_b = nn.GroupNorm(4, width)
        self.encoder = nn.SequentialCell(EncoderLayer(width, heads=4), EncoderLayer(width, heads=4))
        self.ln_final = nn.LayerNorm((width,), epsilon=1e-6)
        self.classifier = nn.Dense(width, classes)

    def construct(self, images):
        x = ops.silu(self.gn_a(self.conv_a(images)))
        x = ops.silu(self.gn_b(self.conv_b(x)))
        batch, channels = x.shape[:2]
        tokens = x.reshape(batch, channels, -1).swapaxes(1, 2)
        tokens = self.encoder(tokens)
        return self.classifier(self.ln_final(tokens).mean(1))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return HybridNet()
