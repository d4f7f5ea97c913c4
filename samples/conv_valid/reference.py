"""A conv-pool-dense net on 3x32x32 images, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """Three convolutions without padding, two poolings, two dense layers."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3)
        self.conv2 = nn.Conv2d(16, 32, 3)
        self.conv3 = nn.Conv2d(32, 32, 3)
        self.pool = nn.MaxPool2d(2)
        self.relu = nn.ReLU()
        self.fc1 = nn.Linear(32 * 4 * 4, 64)
        self.fc2 = nn.Linear(64, classes)

    def forward(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.relu(self.conv3(x))
        x = torch.flatten(x, 1)
        x = self.relu(self.fc1(x))
        return self.fc2(x)


def build():
    """The net with the same weights on every run, and a batch of four images."""
    torch.manual_seed(0)
    net = Net()
    return net.eval(), (torch.randn(4, 3, 32, 32),)
