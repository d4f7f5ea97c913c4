"""The conv-pool-dense net in MindSpore with one mistake: the image is flattened with the channels last.

The line came from a TensorFlow port of the same net; the dense layer's weights expect torch's order.
"""

from __future__ import annotations

from mindspore import nn


class Net(nn.Cell):
    """Three convolutions without padding, two poolings, two dense layers."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, pad_mode="valid", has_bias=True)
        self.conv2 = nn.Conv2d(16, 32, 3, pad_mode="valid", has_bias=True)
        self.conv3 = nn.Conv2d(32, 32, 3, pad_mode="valid", has_bias=True)
        self.pool = nn.MaxPool2d(2, stride=2)
        self.relu = nn.ReLU()
        self.fc1 = nn.Dense(32 * 4 * 4, 64)
        self.fc2 = nn.Dense(64, classes)

    def construct(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.relu(self.conv3(x))
        x = x.transpose(0, 2, 3, 1).reshape(x.shape[0], -1)  # planted: torch flattens (channel, row, column)
        x = self.relu(self.fc1(x))
        return self.fc2(x)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Net()
