"""The bottleneck ResNet in MindSpore: the correct port, with the names that MindSpore's own zoo uses."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn


class Bottleneck(nn.Cell):
    """1x1, 3x3, 1x1 convolutions and the shortcut around them; the 3x3 one has the stride."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int = 1, dilation: int = 1):
        super().__init__()
        outputs = self.expansion * width
        self.conv1 = nn.Conv2d(inputs, width, 1, pad_mode="valid")
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(
            width, width, 3, stride=stride, pad_mode="pad", padding=dilation, dilation=dilation, has_bias=False
        )
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, outputs, 1, pad_mode="valid")
        self.bn3 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.down_sample = None
        if stride != 1 or inputs != outputs:
            self.down_sample = nn.SequentialCell(
                [nn.Conv2d(inputs, outputs, 1, stride=stride, pad_mode="valid"), nn.BatchNorm2d(outputs)]
            )

    def construct(self, x):
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        if self.down_sample is not None:
            identity = self.down_sample(x)
        out = out + identity
        return self.relu(out)


class ResNet(nn.Cell):
    """The stem, three stages and the classifier; the last stage is dilated instead of strided."""

    def __init__(self, width: int = 16, num_classes: int = 20):
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, pad_mode="pad", padding=3)
        self.bn1 = nn.BatchNorm2d(width, eps=1e-3)
        self.relu = nn.ReLU()
        self.max_pool = nn.MaxPool2d(kernel_size=3, stride=2, pad_mode="pad", padding=1)
        self.layer1 = nn.SequentialCell([Bottleneck(width, width)])
        self.layer2 = nn.SequentialCell([Bottleneck(4 * width, 2 * width, stride=2), Bottleneck(8 * width, 2 * width)])
        self.layer3 = nn.SequentialCell([Bottleneck(8 * width, 3 * width, dilation=2)])
        self.pool = nn.AdaptiveAvgPool2d((1, 1))
        self.dropout = nn.Dropout(p=0.2)
        self.classifier = nn.Dense(12 * width, num_classes)

    def construct(self, x):
        x = self.max_pool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = self.pool(x)
        x = x.reshape(x.shape[0], -1)
        return self.classifier(self.dropout(x))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return ResNet()


def build_float16():
    """The same in float16, but for the BatchNorms."""
    return ms.amp.auto_mixed_precision(ResNet(), "O2", ms.float16)
