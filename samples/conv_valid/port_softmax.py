"""The conv-pool-dense net in MindSpore with one mistake: it returns probabilities, the reference returns logits.

A softmax in front of a cross entropy that brings its own is easily written and slow to learn.
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
        self.softmax = nn.Softmax(axis=-1)

    def construct(self, x):
        x = self.pool(self.relu(self.conv1(x)))
        x = self.pool(self.relu(self.conv2(x)))
        x = self.relu(self.conv3(x))
        x = x.reshape(x.shape[0], -1)
        x = self.relu(self.fc1(x))
        return self.softmax(self.fc2(x))  # planted: the reference has no softmax


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Net()
