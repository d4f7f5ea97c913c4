"""The conv-pool-dense net in MindSpore with one mistake: the convolutions have no bias.

torch's Conv2d has a bias unless told otherwise, MindSpore's has none unless told so.
"""

from __future__ import annotations

from mindspore import nn


class Net(nn.Cell):
    """Three convolutions without padding, two poolings, two dense layers."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, pad_mode="valid")  # planted: has_bias is False by default
        self.conv2 = nn.Conv2d(16, 32, 3, pad_mode="valid")
        self.conv3 = nn.Conv2d(32, 32, 3, pad_mode="valid")
        self.pool = nn.MaxPool2d(2, stride=2)
        self.relu = nn.ReLU()
        self.fc1 = nn.Dense(32 * 4 * 4, 64)
        self.fc2 = nn.Dense(64, classes)

    def construct(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.relu(self.conv3(x))
        x = x.reshape(x.shape[0], -1)
        x = self.relu(self.fc1(x))
        return self.fc2(x)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Net()
