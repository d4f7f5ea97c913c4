"""The net of 'same' convolutions in MindSpore with one mistake: the last pooling drops the incomplete windows.

Without ceil_mode the image is 7x7 in place of 8x8; the mean behind it hides that from everything that follows.
"""

from __future__ import annotations

from mindspore import nn


class Net(nn.Cell):
    """Convolutions that keep the image's size; only the pooling layers make it smaller."""

    def __init__(self, classes: int = 10):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, pad_mode="same", has_bias=True)
        self.conv2 = nn.Conv2d(16, 32, 5, pad_mode="same", has_bias=True)
        self.conv3 = nn.Conv2d(32, 32, 3, pad_mode="same", dilation=2, has_bias=True)
        self.relu = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2, stride=2)
        self.smooth = nn.AvgPool2d(3, stride=1, pad_mode="pad", padding=1)
        self.pool2 = nn.MaxPool2d(3, stride=2)  # planted: ceil_mode=True is missing
        self.fc = nn.Dense(32, classes)

    def construct(self, x):
        x = self.pool1(self.relu(self.conv1(x)))
        x = self.smooth(self.relu(self.conv2(x)))
        x = self.pool2(self.relu(self.conv3(x)))
        x = x.mean((2, 3))
        return self.fc(x)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Net()
