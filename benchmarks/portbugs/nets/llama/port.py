"""The small Llama in MindSpore: the correct port."""

from __future__ import annotations

import math

import mindspore as ms
import numpy as np
from mindspore import nn, ops


class RMSNorm(nn.Cell):
    """Divides by the root of the mean square."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.weight = ms.Parameter(ops.ones(width), name="weight")
        self.eps = eps

    def construct(self, x):
        return self.weight * (x * ops.rsqrt(x.pow(2).mean(-1, keep_dims=True) + self.eps))


class Rotary(nn.Cell):
    """Cosines and sines of each place, for halves of a head's vector."""

    def __init__(self, width: int, length: int, base: float = 10000.0):
        super().__init__()
        inverse = 1.0 / base ** (np.arange(0, width, 2, dtype=np.float32) / width)
        angles = np.outer(np.arange(length, dtype=np.float32), inverse)
        angles = np.concatenate([angles, angles], axis=-1)
        self.cos = ms.Tensor(np.cos(angles), ms.float32)
        self.sin = ms.Tensor(np.sin(angles), ms.float32)

    def construct(self, length: int):
        return self.cos[:length], self.sin[:length]


def turned(x, cos, sin):
    """The vectors of x turned by the angles of their places."""
    first, second = ops.chunk(x, 2, axis=-1)
    return x * cos + ops.cat([-second, first], axis=-1) * sin


class Attention(nn.Cell):
    """Causal attention whose queries share key and value heads in groups."""

    def __init__(self, width: int, heads: int, shared: int):
        super().__init__()
        self.heads, self.shared, self.head = heads, shared, width // heads
        self.q_proj = nn.Dense(width, width, has_bias=False)
        self.k_proj = nn.Dense(width, shared * self.head, has_bias=False)
        self.v_proj = nn.Dense(width, shared * self.head, has_bias=False)
        self.o_proj = nn.Dense(width, width, has_bias=False)

    def construct(self, x, cos, sin):
        batch, length, width = x.shape
        query = self.q_proj(x).reshape(batch, length, self.heads, self.head).swapaxes(1, 2)
        key = self.k_proj(x).reshape(batch, length, self.shared, self.head).swapaxes(1, 2)
        value = self.v_proj(x).reshape(batch, length, self.shared, self.head).swapaxes(1, 2)
        query, key = turned(query, cos, sin), turned(key, cos, sin)
        key = ops.repeat_interleave(key, self.heads // self.shared, 1)
        value = ops.repeat_interleave(value, self.heads // self.shared, 1)
        scores = ops.matmul(query, key.swapaxes(-2, -1)) / math.sqrt(self.head)
        future = ops.triu(ops.ones((length, length)), diagonal=1).astype(ms.bool_)
        weights = ops.softmax(scores.masked_fill(future, float("-inf")), axis=-1)
        mixed = ops.matmul(weights, value)
        return self.o_proj(mixed.swapaxes(1, 2).reshape(batch, length, width))


class FeedForward(nn.Cell):
    """SwiGLU."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Dense(width, inner, has_bias=False)
        self.up_proj = nn.Dense(width, inner, has_bias=False)
        self.down_proj = nn.Dense(inner, width, has_bias=False)
        self.act_fn = nn.SiLU()

    def construct(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Cell):
    """Attention and feed-forward net, each behind an RMSNorm and inside a shortcut."""

    def __init__(self, width: int, heads: int, shared: int, inner: int):
        super().__init__()
        self.input_layernorm = RMSNorm(width)
        self.self_attn = Attention(width, heads, shared)
        self.post_attention_layernorm = RMSNorm(width)
        self.mlp = FeedForward(width, inner)

    def construct(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Cell):
    """Words, blocks, a last norm, and a head of its own."""

    def __init__(self, vocabulary: int = 130, width: int = 48, heads: int = 6, shared: int = 2, depth: int = 2):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.rotary_emb = Rotary(width // heads, 64)
        self.layers = nn.CellList([Block(width, heads, shared, 128) for _ in range(depth)])
        self.norm = RMSNorm(width)
        self.lm_head = nn.Dense(width, vocabulary, has_bias=False)

    def construct(self, tokens):
        x = self.embed_tokens(tokens)
        cos, sin = self.rotary_emb(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Llama()


def build_float16():
    """The net with everything in float16."""
    return ms.amp.auto_mixed_precision(Llama(), "O3")
