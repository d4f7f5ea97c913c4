"""A net of 'same' convolutions on 1x32x32 images, in PyTorch: the reference."""

from __future__ import annotations

import torch
from torch import nn


class Net(nn.Module):
    """Convolutions that keep the image's size; only the pooling layers make it smaller."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding="same")
        self.conv2 = nn.Conv2d(16, 32, 5, padding="same")
        self.conv3 = nn.Conv2d(32, 32, 3, padding="same", dilation=2)
        self.relu = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.smooth = nn.AvgPool2d(3, stride=1, padding=1)
        self.pool2 = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.fc = nn.Linear(32, classes)

    def forward(self, x):
        x = self.pool1(self.relu(self.conv1(x)))
        x = self.smooth(self.relu(self.conv2(x)))
        x = self.pool2(self.relu(self.conv3(x)))
        x = x.mean((2, 3))
        return self.fc(x)


def build():
    """The net with the same weights on every run, and a batch of four images."""
    torch.manual_seed(0)
    net = Net()
    return net.eval(), (torch.randn(4, 1, 32, 32),)
