"""A small vision transformer with a class token, in PyTorch, with timm's names: the reference."""

from __future__ import annotations

import torch
from torch import nn


class PatchEmbed(nn.Module):
    """Patches of the image as a sequence of vectors."""

    def __init__(self, patch: int, width: int):
        super().__init__()
        self.proj = nn.Conv2d(3, width, patch, stride=patch)

    def forward(self, image):
        return self.proj(image).flatten(2).transpose(1, 2)


class Attention(nn.Module):
    """Self-attention with one projection for query, key and value."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.scale = (width // heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width)
        self.attn_drop = nn.Dropout(0.0)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        batch, length, width = x.shape
        qkv = self.qkv(x).reshape(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        query, key, value = qkv.unbind(0)
        weights = self.attn_drop((query * self.scale @ key.transpose(-2, -1)).softmax(dim=-1))
        return self.proj((weights @ value).transpose(1, 2).reshape(batch, length, width))


class Mlp(nn.Module):
    """Perceptron with GELU."""

    def __init__(self, width: int):
        super().__init__()
        self.fc1 = nn.Linear(width, 3 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(3 * width, width)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


class LayerScale(nn.Module):
    """One learned factor for each channel."""

    def __init__(self, width: int):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * self.gamma


class Block(nn.Module):
    """Pre-norm block with layer scale."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.attn = Attention(width, heads)
        self.ls1 = LayerScale(width)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width)
        self.ls2 = LayerScale(width)

    def forward(self, x):
        x = x + self.ls1(self.attn(self.norm1(x)))
        return x + self.ls2(self.mlp(self.norm2(x)))


class VisionTransformer(nn.Module):
    """Patches, class token, places, blocks, and a classifier on the class token."""

    def __init__(self, size: int = 32, patch: int = 8, width: int = 48, heads: int = 4, depth: int = 3):
        super().__init__()
        self.patch_embed = PatchEmbed(patch, width)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, width))
        self.pos_embed = nn.Parameter(torch.zeros(1, (size // patch) ** 2 + 1, width))
        self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(depth)])
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.head = nn.Linear(width, 10)

    def forward(self, image):
        x = self.patch_embed(image)
        x = torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], dim=1) + self.pos_embed
        x = self.norm(self.blocks(x))
        return self.head(x[:, 0])


def build():
    """The net with the same weights on every run, and a batch of four images."""
    torch.manual_seed(16)
    net = VisionTransformer()
    nn.init.normal_(net.cls_token, std=0.1)
    nn.init.normal_(net.pos_embed, std=0.1)
    for module in net.modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.1)
        elif isinstance(module, LayerScale):
            nn.init.uniform_(module.gamma, 0.2, 0.6)
    return net.eval(), (torch.randn(4, 3, 32, 32) * 0.4,)
