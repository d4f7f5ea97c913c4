"""A small GPT-like transformer with a causal mask, in PyTorch: the reference."""

from __future__ import annotations

import math

import torch
from torch import nn


class Attention(nn.Module):
    """Self-attention with several heads; `mask` is True where a token may look."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.softmax = nn.Softmax(dim=-1)
        self.out = nn.Linear(width, width)

    def split(self, x):
        batch, length, width = x.shape
        return x.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x, mask):
        query, key, value = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
        weights = self.softmax(scores.masked_fill(~mask, -1e9))
        mixed = (weights @ value).transpose(1, 2).reshape(x.shape)
        return self.out(mixed), weights


class Block(nn.Module):
    """Attention and a feed-forward net, each behind a LayerNorm and inside a shortcut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, mask):
        attended, weights = self.attention(self.norm1(x), mask=mask)
        x = x + self.dropout(attended)
        x = x + self.dropout(self.down(self.gelu(self.up(self.norm2(x)))))
        return x, weights


class Transformer(nn.Module):
    """Token and position embeddings, the blocks, and a head that shares its weight with the token embedding."""

    def __init__(self, vocabulary: int = 100, length: int = 16, width: int = 32, heads: int = 4, depth: int = 2):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.02)
        self.head.weight = self.token.weight

    def forward(self, tokens):
        positions = torch.arange(tokens.shape[1])
        mask = torch.tril(torch.ones(tokens.shape[1], tokens.shape[1])).bool()
        x = self.token(tokens) + self.position(positions)
        maps = []
        for block in self.blocks:
            x, weights = block(x, mask=mask)
            maps.append(weights)
        hidden = self.norm(x)
        return {"logits": self.head(hidden), "hidden": hidden, "attentions": tuple(maps)}


def build():
    """The net with the same weights on every run, and a batch of two sentences."""
    torch.manual_seed(0)
    net = Transformer()
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.8, 1.2)
            nn.init.normal_(module.bias, std=0.1)
    return net.eval(), (torch.randint(0, 100, (2, 16)),)
