"""The inception net in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops


class BasicConv2d(nn.Cell):
    """Convolution, normalisation, ReLU."""

    def __init__(self, inputs, outputs, kernel_size, stride=1, padding=None):
        super().__init__()
        if padding is None:
            self.conv = nn.Conv2d(inputs, outputs, kernel_size, stride, pad_mode="valid")
        else:
            self.conv = nn.Conv2d(inputs, outputs, kernel_size, stride, pad_mode="pad", padding=padding)
        self.bn = nn.BatchNorm2d(outputs, eps=0.001)

    def construct(self, x):
        return ops.relu(self.bn(self.conv(x)))


class Inception(nn.Cell):
    """1x1, factorised 5x5, two 3x3, and a pooled branch, side by side."""

    def __init__(self, inputs, pooled):
        super().__init__()
        self.branch1 = BasicConv2d(inputs, 16, 1)
        self.branch5_1 = BasicConv2d(inputs, 12, 1)
        self.branch5_2 = BasicConv2d(12, 16, (1, 5), padding=(0, 0, 2, 2))
        self.branch5_3 = BasicConv2d(16, 16, (5, 1), padding=(2, 2, 0, 0))
        self.branch3_1 = BasicConv2d(inputs, 16, 1)
        self.branch3_2 = BasicConv2d(16, 24, 3, padding=1)
        self.pool = nn.AvgPool2d(3, stride=1, pad_mode="pad", padding=1, count_include_pad=False)
        self.branch_pool = BasicConv2d(inputs, pooled, 1)

    def construct(self, x):
        one = self.branch1(x)
        five = self.branch5_3(self.branch5_2(self.branch5_1(x)))
        three = self.branch3_2(self.branch3_1(x))
        pooled = self.branch_pool(self.pool(x))
        return ops.cat((one, five, three, pooled), 1)


class DenseLayer(nn.Cell):
    """Normalise first, then convolve; what comes out is put behind what came in."""

    def __init__(self, inputs, growth):
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.relu1 = nn.ReLU()
        self.conv1 = nn.Conv2d(inputs, 2 * growth, 1, pad_mode="valid")
        self.norm2 = nn.BatchNorm2d(2 * growth)
        self.relu2 = nn.ReLU()
        self.conv2 = nn.Conv2d(2 * growth, growth, 3, pad_mode="pad", padding=1)

    def construct(self, x):
        new = self.conv1(self.relu1(self.norm1(x)))
        new = self.conv2(self.relu2(self.norm2(new)))
        return ops.cat((x, new), 1)


class Net(nn.Cell):
    """Scores, and the scores of the auxiliary classifier with their usual weight."""

    def __init__(self, classes=10):
        super().__init__()
        self.stem1 = BasicConv2d(3, 16, 3, 2)
        self.stem2 = BasicConv2d(16, 24, 3)
        self.maxpool = nn.MaxPool2d(3, stride=2, pad_mode="pad", ceil_mode=True)
        self.mixed1 = Inception(24, 8)
        self.mixed2 = Inception(64, 8)
        self.dense = nn.SequentialCell(DenseLayer(64, 12), DenseLayer(76, 12))
        self.norm = nn.BatchNorm2d(88)
        self.squeeze = nn.Conv2d(88, 44, 1, pad_mode="valid")
        self.transition = nn.AvgPool2d(2, stride=2, pad_mode="pad", ceil_mode=True)
        self.grid = nn.AdaptiveAvgPool2d(3)
        self.aux = nn.Dense(64, classes)
        self.fc = nn.Dense(44 * 9, classes)

    def construct(self, x):
        x = x * 2.0 - 1.0
        x = self.mixed1(self.maxpool(self.stem2(self.stem1(x))))
        aux = self.aux(x.mean((2, 3)))
        x = self.dense(self.mixed2(x))
        x = self.transition(self.squeeze(ops.relu(self.norm(x))))
        x = self.grid(x)
        return self.fc(x.reshape(x.shape[0], -1)), 0.3 * aux


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Net()


def build_float16():
    """The same in float16, but for the BatchNorms."""
    return ms.amp.auto_mixed_precision(Net(), "O2", ms.float16)
