"""A small convolution-attention hybrid (as in MobileViT), in PyTorch: the reference."""

from __future__ import annotations

import math

import torch
from torch import nn


class ConvBlock(nn.Module):
    """A convolution that halves the image, group normalisation, SiLU."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, outputs)
        self.act = nn.SiLU()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Attention(nn.Module):
    """Self-attention with query, key and value from one projection."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(query @ key.transpose(-2, -1) / math.sqrt(width // self.heads), dim=-1)
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """Attention and a two-layer perceptron, each inside a shortcut."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Net(nn.Module):
    """Two convolution blocks, their pixels as tokens through two attention blocks, and a classifier."""

    def __init__(self, classes: int = 10, width: int = 32):
        super().__init__()
        self.stem = nn.Sequential(ConvBlock(3, 16), ConvBlock(16, width))
        self.blocks = nn.ModuleList([Block(width, heads=4) for _ in range(2)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        x = self.stem(x).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def build():
    """The net with the same weights on every run, and a batch of two images."""
    torch.manual_seed(0)
    net = Net()
    for module in net.modules():
        if isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    return net.eval(), (torch.randn(2, 3, 32, 32),)
