"""A small encoder-decoder transformer with the framework's own attention, in PyTorch: the reference."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional


def sinusoids(length: int, width: int):
    """Sine at even places of the vector, cosine at odd ones."""
    angles = torch.arange(length).unsqueeze(1) * torch.exp(torch.arange(0, width, 2) * (-math.log(10000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], dim=-1).reshape(length, width)


class DecoderLayer(nn.Module):
    """Looks at the words so far, then at the source, then thinks; each behind a norm and inside a shortcut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.self_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm2 = nn.LayerNorm(width)
        self.cross_attn = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm3 = nn.LayerNorm(width)
        self.linear1 = nn.Linear(width, 2 * width)
        self.linear2 = nn.Linear(2 * width, width)

    def forward(self, x, memory, causal, padding):
        normed = self.norm1(x)
        x = x + self.self_attn(normed, normed, normed, attn_mask=causal, need_weights=False)[0]
        normed = self.norm2(x)
        x = x + self.cross_attn(normed, memory, memory, key_padding_mask=padding, need_weights=False)[0]
        return x + self.linear2(functional.relu(self.linear1(self.norm3(x))))


class Translator(nn.Module):
    """Words of two languages; log-probabilities of the next word."""

    def __init__(self, source: int = 90, target: int = 110, width: int = 48, heads: int = 4, depth: int = 2):
        super().__init__()
        self.width = width
        self.source = nn.Embedding(source, width)
        self.target = nn.Embedding(target, width)
        self.encoder = nn.ModuleList(
            [
                nn.TransformerEncoderLayer(
                    width, heads, 2 * width, 0.1, activation="gelu", batch_first=True, norm_first=True
                )
                for _ in range(depth)
            ]
        )
        self.encoder_norm = nn.LayerNorm(width)
        self.decoder = nn.ModuleList([DecoderLayer(width, heads) for _ in range(depth)])
        self.decoder_norm = nn.LayerNorm(width)
        self.generator = nn.Linear(width, target)
        self.register_buffer("places", sinusoids(40, width), persistent=False)

    def embed(self, table, words):
        return table(words) * math.sqrt(self.width) + self.places[: words.shape[1]]

    def forward(self, source, padding, target):
        memory = self.embed(self.source, source)
        bias = padding.float() * -10000.0
        for layer in self.encoder:
            memory = layer(memory, src_key_padding_mask=bias)
        memory = self.encoder_norm(memory)
        length = target.shape[1]
        causal = torch.triu(torch.ones(length, length), diagonal=1).bool()
        x = self.embed(self.target, target)
        for layer in self.decoder:
            x = layer(x, memory, causal, padding)
        return functional.log_softmax(self.generator(self.decoder_norm(x)), dim=-1)


def build():
    """The net with the same weights on every run, and a batch of three sentences of different length."""
    torch.manual_seed(13)
    net = Translator()
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.15)
        elif isinstance(module, nn.MultiheadAttention):
            nn.init.normal_(module.in_proj_bias, std=0.1)
            nn.init.normal_(module.out_proj.bias, std=0.1)
    padding = torch.arange(14) >= torch.tensor([[14], [9], [11]])
    return net.eval(), (torch.randint(0, 90, (3, 14)), padding, torch.randint(0, 110, (3, 10)))
