"""ResNet-18 in MindSpore with one mistake: pad_mode "same" on convolutions of stride 2.

The shape is right. But "same" pads (0, 1) where torch pads (1, 1): the sampling grid is off by one pixel.
"""

from __future__ import annotations

from mindspore import nn


class BasicBlock(nn.Cell):
    """Two 3x3 convolutions and the shortcut around them."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, pad_mode="same")  # planted: padding=1
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, pad_mode="pad", padding=1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.SequentialCell(
                nn.Conv2d(inputs, outputs, 1, stride=stride, pad_mode="valid"), nn.BatchNorm2d(outputs)
            )

    def construct(self, x):
        shortcut = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return self.relu(out + shortcut)


class ResNet18(nn.Cell):
    """The stem, four stages of two blocks, and the classifier."""

    def __init__(self, width: int = 16, classes: int = 100):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, pad_mode="pad", padding=3)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(3, stride=2, pad_mode="pad", padding=1)
        self.layer1 = self._stage(width, width, stride=1)
        self.layer2 = self._stage(width, 2 * width, stride=2)
        self.layer3 = self._stage(2 * width, 4 * width, stride=2)
        self.layer4 = self._stage(4 * width, 8 * width, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Dense(8 * width, classes)

    @staticmethod
    def _stage(inputs: int, outputs: int, stride: int):
        return nn.SequentialCell(BasicBlock(inputs, outputs, stride), BasicBlock(outputs, outputs))

    def construct(self, x):
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        x = self.avgpool(x)
        return self.fc(x.reshape(x.shape[0], -1))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return ResNet18()
