"""A small Llama: RMSNorm, rotary places, grouped key and value heads, SwiGLU. In PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


class RMSNorm(nn.Module):
    """Divides by the root of the mean square."""

    def __init__(self, width: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Rotary(nn.Module):
    """Cosines and sines of each place, for halves of a head's vector."""

    def __init__(self, width: int, length: int, base: float = 10000.0):
        super().__init__()
        inverse = 1.0 / base ** (torch.arange(0, width, 2).float() / width)
        angles = torch.outer(torch.arange(length).float(), inverse)
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, length: int):
        return self.cos[:length], self.sin[:length]


def turned(x, cos, sin):
    """The vectors of x turned by the angles of their places."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


class Attention(nn.Module):
    """Causal attention whose queries share key and value heads in groups."""

    def __init__(self, width: int, heads: int, shared: int):
        super().__init__()
        self.heads, self.shared, self.head = heads, shared, width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, shared * self.head, bias=False)
        self.v_proj = nn.Linear(width, shared * self.head, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, cos, sin):
        batch, length, width = x.shape
        query = self.q_proj(x).view(batch, length, self.heads, self.head).transpose(1, 2)
        key = self.k_proj(x).view(batch, length, self.shared, self.head).transpose(1, 2)
        value = self.v_proj(x).view(batch, length, self.shared, self.head).transpose(1, 2)
        query, key = turned(query, cos, sin), turned(key, cos, sin)
        key = key.repeat_interleave(self.heads // self.shared, dim=1)
        value = value.repeat_interleave(self.heads // self.shared, dim=1)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, width))


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, width: int, inner: int):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)
        self.act_fn = nn.SiLU()

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and feed-forward net, each behind an RMSNorm and inside a shortcut."""

    def __init__(self, width: int, heads: int, shared: int, inner: int):
        super().__init__()
        self.input_layernorm = RMSNorm(width)
        self.self_attn = Attention(width, heads, shared)
        self.post_attention_layernorm = RMSNorm(width)
        self.mlp = FeedForward(width, inner)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """Words, blocks, a last norm, and a head of its own."""

    def __init__(self, vocabulary: int = 130, width: int = 48, heads: int = 6, shared: int = 2, depth: int = 2):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.rotary_emb = Rotary(width // heads, 64)
        self.layers = nn.ModuleList([Block(width, heads, shared, 128) for _ in range(depth)])
        self.norm = RMSNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        cos, sin = self.rotary_emb(tokens.shape[1])
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.lm_head(self.norm(x))


def build():
    """The net with the same weights on every run, and a batch of two sentences."""
    torch.manual_seed(15)
    net = Llama()
    nn.init.normal_(net.embed_tokens.weight, std=0.06)
    for module in net.modules():
        if isinstance(module, RMSNorm):
            nn.init.uniform_(module.weight, 0.5, 1.3)
    return net.eval(), (torch.randint(0, 130, (2, 18)),)
