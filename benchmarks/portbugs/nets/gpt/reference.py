"""A small GPT-2: pre-norm blocks, one projection for query, key and value, a tied head. In PyTorch: the reference."""

from __future__ import annotations

import math

import torch
from torch import nn


class SelfAttention(nn.Module):
    """Causal self-attention; the mask is a buffer that is cut to the sentence."""

    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.heads = heads
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        self.attn_dropout = nn.Dropout(0.1)
        self.resid_dropout = nn.Dropout(0.1)
        self.register_buffer("mask", torch.tril(torch.ones(length, length)).bool(), persistent=False)

    def forward(self, x):
        batch, length, width = x.shape
        query, key, value = self.c_attn(x).split(width, dim=2)
        query = query.view(batch, length, self.heads, -1).transpose(1, 2)
        key = key.view(batch, length, self.heads, -1).transpose(1, 2)
        value = value.view(batch, length, self.heads, -1).transpose(1, 2)
        scores = query @ key.transpose(-2, -1) / math.sqrt(key.shape[-1])
        scores = scores.masked_fill(~self.mask[:length, :length], float("-inf"))
        weights = self.attn_dropout(torch.softmax(scores, dim=-1))
        mixed = (weights @ value).transpose(1, 2).reshape(batch, length, width)
        return self.resid_dropout(self.c_proj(mixed))


class Perceptron(nn.Module):
    """Up, GPT-2's GELU (the one with tanh), down."""

    def __init__(self, width: int):
        super().__init__()
        self.c_fc = nn.Linear(width, 4 * width)
        self.act = nn.GELU(approximate="tanh")
        self.c_proj = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.dropout(self.c_proj(self.act(self.c_fc(x))))


class Block(nn.Module):
    """Attention and perceptron, each behind a norm and inside a shortcut."""

    def __init__(self, width: int, heads: int, length: int):
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, length)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = Perceptron(width)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    """Words and places, blocks, a last norm, and a head that shares the words' weight."""

    def __init__(self, vocabulary: int = 120, length: int = 24, width: int = 48, heads: int = 4, depth: int = 3):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(length, width)
        self.drop = nn.Dropout(0.1)
        self.h = nn.ModuleList([Block(width, heads, length) for _ in range(depth)])
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1])
        x = self.drop(self.wte(tokens) + self.wpe(places))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def build():
    """The net with the same weights on every run, and a batch of three sentences."""
    torch.manual_seed(11)
    net = GPT()
    nn.init.normal_(net.wte.weight, std=0.08)
    nn.init.normal_(net.wpe.weight, std=0.04)
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
    return net.eval(), (torch.randint(0, 120, (3, 20)),)
