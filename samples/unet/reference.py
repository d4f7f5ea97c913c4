"""A small U-Net for segmentation, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn


class Double(nn.Module):
    """Two 3x3 convolutions, each with batch normalisation and a leaky ReLU."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, x):
        x = self.act(self.bn1(self.conv1(x)))
        return self.act(self.bn2(self.conv2(x)))


class UNet(nn.Module):
    """Two steps down, two steps up, and a skip connection on each level; the mask comes out at twice the size."""

    def __init__(self, classes: int = 3, width: int = 8):
        super().__init__()
        self.down1 = Double(3, width)
        self.down2 = Double(width, 2 * width)
        self.middle = Double(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2)
        self.up2 = nn.ConvTranspose2d(4 * width, 2 * width, 3, stride=2, padding=1, output_padding=1)
        self.join2 = Double(4 * width, 2 * width)
        self.up1 = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.join1 = Double(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1)
        self.enlarge = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)

    def forward(self, x):
        fine = self.down1(x)
        coarse = self.down2(self.pool(fine))
        x = self.middle(self.pool(coarse))
        x = self.join2(torch.cat([coarse, self.up2(x)], dim=1))
        x = self.join1(torch.cat([fine, self.up1(x)], dim=1))
        return self.enlarge(self.head(x))


def pretend_training(net):
    """Give every BatchNorm values as training would: fresh ones (mean 0, variance 1) hide mistakes."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.2)
            nn.init.normal_(module.running_mean, std=0.2)
            nn.init.uniform_(module.running_var, 0.2, 0.8)


def build():
    """The net with the same weights on every run, and a batch of two images."""
    torch.manual_seed(0)
    net = UNet()
    pretend_training(net)
    return net.eval(), (torch.randn(2, 3, 32, 32),)
