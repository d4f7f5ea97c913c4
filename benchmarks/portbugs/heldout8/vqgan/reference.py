"""An image tokenizer (VQGAN with unit-length codes) and a masked transformer over its tokens, in PyTorch: the reference.

An image becomes a grid of tokens and an image again; then a part of the grid is drawn anew for a given class.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CLASSES = 5
CODES = 32
MASK = CODES
STEPS = 3
HEIGHT, WIDTH = 32, 48
GRID = (HEIGHT // 4, WIDTH // 4)


def swish(x):
    return x * torch.sigmoid(x)


def group_norm(channels: int):
    return nn.GroupNorm(4, channels, eps=1e-6)


class ResBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.norm1 = group_norm(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.norm2 = group_norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        if inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1)

    def forward(self, x):
        h = self.conv1(swish(self.norm1(x)))
        h = self.conv2(swish(self.norm2(h)))
        if hasattr(self, "shortcut"):
            x = self.shortcut(x)
        return x + h


class AttnBlock(nn.Module):
    """One head over all the places of the feature map."""

    def __init__(self, channels: int):
        super().__init__()
        self.norm = group_norm(channels)
        self.q = nn.Conv2d(channels, channels, 1)
        self.k = nn.Conv2d(channels, channels, 1)
        self.v = nn.Conv2d(channels, channels, 1)
        self.proj_out = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        h = self.norm(x)
        batch, channels, high, wide = x.shape
        q = self.q(h).reshape(batch, channels, high * wide).permute(0, 2, 1)
        k = self.k(h).reshape(batch, channels, high * wide)
        v = self.v(h).reshape(batch, channels, high * wide)
        weights = torch.softmax(torch.bmm(q, k) * channels**-0.5, dim=2)
        h = torch.bmm(v, weights.permute(0, 2, 1)).reshape(batch, channels, high, wide)
        return x + self.proj_out(h)


class Downsample(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, stride=2, padding=0)

    def forward(self, x):
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class Upsample(nn.Module):
    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x):
        return self.conv(F.interpolate(x, scale_factor=2.0, mode="nearest"))


class Encoder(nn.Module):
    def __init__(self, width: int, factors, latent: int):
        super().__init__()
        self.conv_in = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList()
        inputs = width
        for level, factor in enumerate(factors):
            stage = nn.Module()
            stage.block = nn.ModuleList([ResBlock(inputs, width * factor)])
            inputs = width * factor
            if level + 1 < len(factors):
                stage.downsample = Downsample(inputs)
            self.down.append(stage)
        self.mid = nn.Sequential(ResBlock(inputs, inputs), AttnBlock(inputs), ResBlock(inputs, inputs))
        self.norm_out = group_norm(inputs)
        self.conv_out = nn.Conv2d(inputs, latent, 3, padding=1)

    def forward(self, x):
        h = self.conv_in(x)
        for stage in self.down:
            for block in stage.block:
                h = block(h)
            if hasattr(stage, "downsample"):
                h = stage.downsample(h)
        h = self.mid(h)
        return self.conv_out(swish(self.norm_out(h)))


class Decoder(nn.Module):
    def __init__(self, width: int, factors, latent: int):
        super().__init__()
        inputs = width * factors[-1]
        self.conv_in = nn.Conv2d(latent, inputs, 3, padding=1)
        self.mid = nn.Sequential(ResBlock(inputs, inputs), AttnBlock(inputs), ResBlock(inputs, inputs))
        self.up = nn.ModuleList()
        for level in reversed(range(len(factors))):
            stage = nn.Module()
            stage.block = nn.ModuleList([ResBlock(inputs, width * factors[level])])
            inputs = width * factors[level]
            if level > 0:
                stage.upsample = Upsample(inputs)
            self.up.append(stage)
        self.norm_out = group_norm(inputs)
        self.conv_out = nn.Conv2d(inputs, 3, 3, padding=1)

    def forward(self, z):
        h = self.mid(self.conv_in(z))
        for stage in self.up:
            for block in stage.block:
                h = block(h)
            if hasattr(stage, "upsample"):
                h = stage.upsample(h)
        return self.conv_out(swish(self.norm_out(h)))


class VectorQuantizer(nn.Module):
    """The nearest code on the unit sphere; its number, the commitment's loss and how many codes are in use."""

    def __init__(self, codes: int, dim: int, beta: float = 0.25):
        super().__init__()
        self.beta = beta
        self.project = nn.Conv2d(dim, dim, 1)
        self.embedding = nn.Embedding(codes, dim)

    def lookup(self, tokens, high: int, wide: int):
        found = F.normalize(self.embedding(tokens), dim=-1)
        return found.view(-1, high, wide, found.size(-1)).permute(0, 3, 1, 2)

    def forward(self, z):
        z = F.normalize(self.project(z), dim=1)
        batch, dim, high, wide = z.shape
        flat = z.permute(0, 2, 3, 1).reshape(-1, dim)
        codes = F.normalize(self.embedding.weight, dim=-1)
        distance = flat.pow(2).sum(1, keepdim=True) + codes.pow(2).sum(1) - 2.0 * flat @ codes.t()
        tokens = distance.argmin(dim=1)
        used = F.one_hot(tokens, codes.size(0)).to(z.dtype).mean(dim=0)
        perplexity = torch.exp(-(used * torch.log(used + 1e-10)).sum())
        tokens = tokens.view(batch, high * wide)
        found = self.lookup(tokens, high, wide)
        loss = self.beta * (found.detach() - z).pow(2).mean() + (found - z.detach()).pow(2).mean()
        found = z + (found - z).detach()
        return found, tokens, loss, perplexity


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x):
        batch, places, dim = x.shape
        q, k, v = self.qkv(x).view(batch, places, 3, self.heads, dim // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) * (dim // self.heads) ** -0.5, dim=-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(batch, places, dim))


def modulate(x, shift, scale):
    return x * (1.0 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    """The class says how each part's input is scaled and shifted, and how much of its result counts."""

    def __init__(self, dim: int, heads: int):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.attention = Attention(dim, heads)
        self.norm2 = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(approximate="tanh"), nn.Linear(4 * dim, dim))
        self.modulation = nn.Linear(dim, 6 * dim)

    def forward(self, x, condition):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(F.silu(condition)).chunk(6, dim=-1)
        x = x + gate1.unsqueeze(1) * self.attention(modulate(self.norm1(x), shift1, scale1))
        return x + gate2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift2, scale2))


class MaskedTransformer(nn.Module):
    def __init__(self, dim: int, heads: int, depth: int):
        super().__init__()
        self.tokens = nn.Embedding(CODES + 1, dim)
        self.classes = nn.Embedding(CLASSES + 1, dim)
        self.rows = nn.Parameter(0.5 * torch.randn(GRID[0], dim))
        self.columns = nn.Parameter(0.5 * torch.randn(GRID[1], dim))
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(dim, 2 * dim)
        self.head = nn.Linear(dim, CODES)

    def forward(self, tokens, labels):
        places = (self.rows[:, None] + self.columns[None, :]).flatten(0, 1)
        x = self.tokens(tokens) + places
        condition = self.classes(labels)
        for block in self.blocks:
            x = block(x, condition)
        shift, scale = self.modulation(F.silu(condition)).chunk(2, dim=-1)
        return self.head(modulate(self.norm(x), shift, scale))


class TokenPainter(nn.Module):
    def __init__(self, width: int = 16, factors=(1, 2, 2), latent: int = 16, dim: int = 32, heads: int = 4):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.48, 0.45, 0.40]).view(1, 3, 1, 1), persistent=False)
        self.register_buffer("deviation", torch.tensor([0.26, 0.24, 0.29]).view(1, 3, 1, 1), persistent=False)
        self.encoder = Encoder(width, factors, latent)
        self.quantizer = VectorQuantizer(CODES, latent)
        self.decoder = Decoder(width, factors, latent)
        self.transformer = MaskedTransformer(dim, heads, depth=2)
        self.guidance = 3.0
        self.temperature = 0.8

    def guided(self, tokens, labels, strength: float):
        """The logits with the class, driven away from those without it; one batch for both."""
        nothing = torch.full_like(labels, CLASSES)
        both = self.transformer(torch.cat([tokens, tokens]), torch.cat([labels, nothing]))
        with_class, without = both.chunk(2, dim=0)
        return without + (1.0 + strength) * (with_class - without)

    def paint(self, tokens, kept, labels, noise):
        """Fills the places that are not kept in a few steps, the surest first; the noise is uniform."""
        unknown = (~kept).sum(dim=1)
        tokens = torch.where(kept, tokens, MASK)
        steps = []
        for step in range(STEPS):
            ratio = (step + 1) / STEPS
            logits = self.guided(tokens, labels, self.guidance * ratio)
            log_probs = torch.log_softmax(logits, dim=-1)
            gumbel = -torch.log(-torch.log(noise[step]))
            drawn = (log_probs + self.temperature * gumbel).argmax(dim=-1)
            masked = tokens == MASK
            drawn = torch.where(masked, drawn, tokens)
            sure = log_probs.gather(2, drawn.unsqueeze(2)).squeeze(2)
            sure = sure.masked_fill(~masked, math.inf)
            remain = torch.floor(unknown * math.cos(0.5 * math.pi * ratio) + 1e-4).long()
            border = sure.sort(dim=1).values.gather(1, remain.unsqueeze(1))
            tokens = torch.where(sure < border, MASK, drawn)
            steps.append(log_probs)
        return tokens, torch.stack(steps, dim=1)

    def to_image(self, h):
        return (self.decoder(h) * self.deviation + self.mean).clamp(0.0, 1.0)

    def forward(self, images, labels, kept, noise):
        z = self.encoder((images - self.mean) / self.deviation)
        codes, tokens, loss, perplexity = self.quantizer(z)
        again = self.to_image(codes)
        painted, log_probs = self.paint(tokens, kept, labels, noise)
        picture = self.to_image(self.quantizer.lookup(painted, *z.shape[2:]))
        return again, tokens, loss, perplexity, log_probs, painted, picture


def make_inputs():
    """Two smooth pictures, their classes, the places that stay (a different number for each), and uniform noise."""
    rng = np.random.RandomState(11)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    images = np.full((2, 3, HEIGHT, WIDTH), 0.45)
    for picture in images:
        for _ in range(9):
            spot = np.exp(-((x - rng.uniform(0, WIDTH)) ** 2 + (y - rng.uniform(0, HEIGHT)) ** 2) / rng.uniform(10, 120))
            picture += rng.uniform(-0.6, 0.6, (3, 1, 1)) * spot
    images = np.clip(images + 0.05 * rng.randn(*images.shape), 0, 1).astype(np.float32)
    places = GRID[0] * GRID[1]
    kept = rng.rand(2, places) < np.array([[0.25], [0.45]])
    noise = rng.uniform(1e-3, 1 - 1e-3, (STEPS, 2, places, CODES)).astype(np.float32)
    return images, np.array([3, 1], dtype=np.int64), kept, noise


def build():
    """The net in eval mode with the same weights on every run, and the pictures to be repainted."""
    torch.manual_seed(0)
    net = TokenPainter()
    for module in net.modules():
        if isinstance(module, nn.GroupNorm):
            nn.init.uniform_(module.weight, 0.6, 1.4)
            nn.init.normal_(module.bias, std=0.2)
    nn.init.zeros_(net.quantizer.project.bias)
    nn.init.normal_(net.transformer.head.weight, std=0.2)
    return net.eval(), tuple(torch.from_numpy(part) for part in make_inputs())
