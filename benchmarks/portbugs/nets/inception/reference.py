"""Inception branches, a dense block and an auxiliary classifier, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn


class BasicConv2d(nn.Module):
    """Convolution, normalisation, ReLU."""

    def __init__(self, inputs: int, outputs: int, **options):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, bias=False, **options)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def forward(self, x):
        return nn.functional.relu(self.bn(self.conv(x)), inplace=True)


class Inception(nn.Module):
    """1x1, factorised 5x5, two 3x3, and a pooled branch, side by side."""

    def __init__(self, inputs: int, pooled: int):
        super().__init__()
        self.branch1 = BasicConv2d(inputs, 16, kernel_size=1)
        self.branch5_1 = BasicConv2d(inputs, 12, kernel_size=1)
        self.branch5_2 = BasicConv2d(12, 16, kernel_size=(1, 5), padding=(0, 2))
        self.branch5_3 = BasicConv2d(16, 16, kernel_size=(5, 1), padding=(2, 0))
        self.branch3_1 = BasicConv2d(inputs, 16, kernel_size=1)
        self.branch3_2 = BasicConv2d(16, 24, kernel_size=3, padding=1)
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
        self.branch_pool = BasicConv2d(inputs, pooled, kernel_size=1)

    def forward(self, x):
        five = self.branch5_3(self.branch5_2(self.branch5_1(x)))
        three = self.branch3_2(self.branch3_1(x))
        return torch.cat([self.branch1(x), five, three, self.branch_pool(self.pool(x))], 1)


class DenseLayer(nn.Module):
    """Normalise first, then convolve; what comes out is put behind what came in."""

    def __init__(self, inputs: int, growth: int):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, 2 * growth, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, x):
        new = self.conv1(self.relu1(self.norm1(x)))
        new = self.conv2(self.relu2(self.norm2(new)))
        return torch.cat([x, new], 1)


class Net(nn.Module):
    """Scores, and the scores of the auxiliary classifier with their usual weight."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.stem1 = BasicConv2d(3, 16, kernel_size=3, stride=2)
        self.stem2 = BasicConv2d(16, 24, kernel_size=3)
        self.maxpool = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.mixed1 = Inception(24, 8)
        self.mixed2 = Inception(64, 8)
        self.dense = nn.Sequential(DenseLayer(64, 12), DenseLayer(76, 12))
        self.norm = nn.BatchNorm2d(88)
        self.squeeze = nn.Conv2d(88, 44, 1, bias=False)
        self.transition = nn.AvgPool2d(2, stride=2, ceil_mode=True)
        self.grid = nn.AdaptiveAvgPool2d(3)
        self.aux = nn.Linear(64, classes)
        self.fc = nn.Linear(44 * 9, classes)

    def forward(self, x):
        x = x * 2.0 - 1.0
        x = self.mixed1(self.maxpool(self.stem2(self.stem1(x))))
        aux = self.aux(x.mean(dim=(2, 3)))
        x = self.dense(self.mixed2(x))
        x = self.transition(self.squeeze(torch.relu(self.norm(x))))
        return self.fc(torch.flatten(self.grid(x), 1)), 0.3 * aux


def pretend_training(net):
    """Give every BatchNorm values as training would: fresh ones (mean 0, variance 1) hide mistakes."""
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.6, 1.6)
            nn.init.normal_(module.bias, std=0.3)
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.02, 0.4)


def build():
    """The net with the same weights on every run, and a batch of two images from 0 to 1."""
    torch.manual_seed(4)
    net = Net()
    pretend_training(net)
    return net.eval(), (torch.rand(2, 3, 57, 57),)
