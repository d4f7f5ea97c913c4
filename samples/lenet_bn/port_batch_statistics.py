"""LeNet with batch normalisation in MindSpore with one mistake: it normalises with the batch at hand, always.

use_batch_statistics=True was taken for torch's track_running_stats=True. It is the opposite: in eval mode the running
statistics are ignored.
"""

from __future__ import annotations

from mindspore import nn


class LeNet(nn.Cell):
    """LeNet-5 with a batch normalisation behind each convolution."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 6, 5, pad_mode="pad", padding=2)
        self.bn1 = nn.BatchNorm2d(6, eps=1e-3, use_batch_statistics=True)  # planted: leave it at None
        self.relu1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2, stride=2)
        self.conv2 = nn.Conv2d(6, 16, 5, pad_mode="valid")
        self.bn2 = nn.BatchNorm2d(16, eps=1e-3, use_batch_statistics=True)
        self.relu2 = nn.ReLU()
        self.pool2 = nn.MaxPool2d(2, stride=2)
        self.fc1 = nn.Dense(16 * 5 * 5, 120)
        self.relu3 = nn.ReLU()
        self.fc2 = nn.Dense(120, 84)
        self.relu4 = nn.ReLU()
        self.fc3 = nn.Dense(84, classes)

    def construct(self, x):
        x = self.pool1(self.relu1(self.bn1(self.conv1(x))))
        x = self.pool2(self.relu2(self.bn2(self.conv2(x))))
        x = x.reshape(x.shape[0], -1)
        x = self.relu3(self.fc1(x))
        x = self.relu4(self.fc2(x))
        return self.fc3(x)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return LeNet()
