"""A U-Net with group normalisation, an attention gate and deep supervision, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn


class Double(nn.Module):
    """Two 3x3 convolutions, each with normalisation and a leaky ReLU; the first reflects at the border."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, padding_mode="reflect", bias=False)
        self.norm1 = nn.GroupNorm(4, outputs, eps=1e-6)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.GroupNorm(4, outputs, eps=1e-6)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x):
        x = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(x)))


class Gate(nn.Module):
    """Weighs the skip connection, place by place, by what the coarser level knows."""

    def __init__(self, channels: int):
        super().__init__()
        self.skip = nn.Conv2d(channels, channels // 2, 1)
        self.signal = nn.Conv2d(channels, channels // 2, 1)
        self.relu = nn.ReLU()
        self.psi = nn.Conv2d(channels // 2, 1, 1)

    def forward(self, skip, signal):
        weight = torch.sigmoid(self.psi(self.relu(self.skip(skip) + self.signal(signal))))
        return skip * weight


class UNet(nn.Module):
    """Two levels; class probabilities and, from the coarser level, a second opinion of the same size."""

    def __init__(self, classes: int = 4, width: int = 16):
        super().__init__()
        self.down1 = Double(3, width)
        self.shrink1 = nn.Conv2d(width, width, 3, stride=2, padding=1)
        self.down2 = Double(width, 2 * width)
        self.shrink2 = nn.MaxPool2d(2)
        self.middle = Double(2 * width, 4 * width)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 3, stride=2, padding=1, output_padding=1)
        self.gate2 = Gate(2 * width)
        self.join2 = Double(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
        self.narrow1 = nn.Conv2d(2 * width, width, 1)
        self.join1 = Double(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)
        self.side = nn.Conv2d(2 * width, classes, 1)
        self.softmax = nn.Softmax(dim=1)

    def forward(self, x):
        fine = self.down1(x)
        coarse = self.down2(self.shrink1(fine))
        x = self.up2(self.middle(self.shrink2(coarse)))
        x = self.join2(torch.cat([self.gate2(coarse, x), x], dim=1))
        side = self.side(x)
        x = self.join1(torch.cat([fine, self.narrow1(self.up1(x))], dim=1))
        return {"mask": self.softmax(self.head(x)), "side": nn.functional.interpolate(side, scale_factor=2.0)}


def build():
    """The net with the same weights on every run, and a batch of two images."""
    torch.manual_seed(2)
    net = UNet()
    for module in net.modules():
        if isinstance(module, nn.GroupNorm):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
    return net.eval(), (0.2 * torch.randn(2, 3, 32, 32),)
