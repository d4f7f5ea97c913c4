"""Super-resolution by residual units with channel split, shuffle and attention, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional


def shuffle(x, groups: int):
    """Channels of different groups side by side."""
    batch, channels, high, wide = x.shape
    x = x.view(batch, groups, channels // groups, high, wide)
    return x.transpose(1, 2).reshape(batch, channels, high, wide)


class ContrastGate(nn.Module):
    """Weighs the channels by mean plus standard deviation."""

    def __init__(self, channels: int, squeezed: int):
        super().__init__()
        self.narrow = nn.Conv2d(channels, squeezed, 1)
        self.widen = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x):
        contrast = x.std(dim=(2, 3), keepdim=True) + x.mean(dim=(2, 3), keepdim=True)
        return x * torch.sigmoid(self.widen(functional.relu(self.narrow(contrast))))


class Unit(nn.Module):
    """Half of the channels pass by; the other half is convolved in groups; the sum is scaled down."""

    def __init__(self, channels: int):
        super().__init__()
        half = channels // 2
        self.grouped = nn.Conv2d(half, half, 3, padding=1, groups=4)
        self.prelu = nn.PReLU(half)
        self.mixed = nn.Conv2d(half, half, 3, padding=1)
        self.gate = ContrastGate(channels, 8)

    def forward(self, x):
        kept, worked = x.chunk(2, dim=1)
        worked = self.mixed(shuffle(self.prelu(self.grouped(worked)), 4))
        return x + 0.2 * self.gate(torch.cat([kept, worked], dim=1))


class Upscale(nn.Module):
    """Four times the channels, then twice the size."""

    def __init__(self, channels: int):
        super().__init__()
        self.conv = nn.Conv2d(channels, 4 * channels, 3, padding=1)
        self.shuffle = nn.PixelShuffle(2)
        self.act = nn.LeakyReLU(0.2, inplace=True)

    def forward(self, x):
        return self.act(self.shuffle(self.conv(x)))


class SuperResolution(nn.Module):
    """An image from 0 to 1 in, one of twice the size out."""

    def __init__(self, width: int = 48, depth: int = 3):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.4488, 0.4371, 0.4040]).view(1, 3, 1, 1), persistent=False)
        self.head = nn.Conv2d(3, width, 3, padding=1)
        self.body = nn.Sequential(*[Unit(width) for _ in range(depth)])
        self.after = nn.Conv2d(width, width, 1)
        self.upscale = Upscale(width)
        self.tail = nn.Conv2d(width, 3, 5, padding=2, padding_mode="replicate")

    def forward(self, image):
        x = image - self.mean
        start = self.head(x)
        x = self.upscale(self.after(self.body(start)) + start)
        easy = functional.interpolate(image, scale_factor=2, mode="bilinear", align_corners=False)
        return (self.tail(x) + self.mean + easy).clamp(0.0, 1.0)


def build():
    """The net with the same weights on every run, and a batch of two small images."""
    torch.manual_seed(6)
    net = SuperResolution()
    for module in net.modules():
        if isinstance(module, nn.PReLU):
            nn.init.uniform_(module.weight, 0.05, 0.4)
    return net.eval(), (torch.rand(2, 3, 20, 20),)
