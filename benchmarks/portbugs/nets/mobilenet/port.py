"""The small MobileNetV3 in MindSpore: the correct port; its blocks are nested otherwise."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

# kernel, inputs, inner width, outputs, squeeze-excitation, hard swish, stride
BLOCKS = (
    (3, 16, 16, 16, True, False, 2),
    (3, 16, 72, 24, False, False, 2),
    (3, 24, 88, 24, False, False, 1),
    (5, 24, 96, 40, True, True, 2),
    (5, 40, 160, 40, True, True, 1),
)
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)


def conv(inputs, outputs, kernel, stride=1, groups=1):
    """A convolution that keeps the size, but for its stride."""
    padding = (kernel - 1) // 2
    return nn.Conv2d(inputs, outputs, kernel, stride, pad_mode="pad", padding=padding, group=groups)


def norm(channels):
    """MindSpore's momentum is one minus PyTorch's."""
    return nn.BatchNorm2d(channels, eps=0.001, momentum=0.99)


class ChannelGate(nn.Cell):
    """Weighs the channels by what they have on average."""

    def __init__(self, channels, squeezed):
        super().__init__()
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.reduce = nn.Conv2d(channels, squeezed, 1, has_bias=True)
        self.act = nn.ReLU()
        self.expand = nn.Conv2d(squeezed, channels, 1, has_bias=True)
        self.gate = nn.HSigmoid()

    def construct(self, x):
        out = self.act(self.reduce(self.pool(x)))
        return self.gate(self.expand(out)) * x


class Block(nn.Cell):
    """Widen, filter each channel, weigh, narrow; the narrow end has no activation."""

    def __init__(self, kernel, inputs, inner, outputs, squeeze, swish, stride):
        super().__init__()
        act = nn.HSwish if swish else nn.ReLU
        self.expand = None
        if inner != inputs:
            self.expand = nn.SequentialCell(conv(inputs, inner, 1), norm(inner), act())
        self.depth = nn.SequentialCell(conv(inner, inner, kernel, stride, groups=inner), norm(inner), act())
        self.se = ChannelGate(inner, inner // 4) if squeeze else None
        self.project = nn.SequentialCell(conv(inner, outputs, 1), norm(outputs))
        self.use_shortcut = stride == 1 and inputs == outputs

    def construct(self, x):
        out = x
        if self.expand is not None:
            out = self.expand(out)
        out = self.depth(out)
        if self.se is not None:
            out = self.se(out)
        out = self.project(out)
        if self.use_shortcut:
            out = out + x
        return out


class MobileNet(nn.Cell):
    """Images from 0 to 1 in, scores out; the normalisation of the image is part of the net."""

    def __init__(self, num_classes=12):
        super().__init__()
        self.mean = Tensor(np.array(MEAN, np.float32).reshape(1, 3, 1, 1))
        self.std = Tensor(np.array(STD, np.float32).reshape(1, 3, 1, 1))
        self.stem = nn.SequentialCell(conv(3, 16, 3, 2), norm(16), nn.HSwish())
        self.stages = nn.SequentialCell([Block(*block) for block in BLOCKS])
        self.last = nn.SequentialCell(conv(40, 144, 1), norm(144), nn.HSwish())
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Dense(144, 160)
        self.act = nn.HSwish()
        self.dropout = nn.Dropout(p=0.2)
        self.fc2 = nn.Dense(160, num_classes)

    def construct(self, image):
        x = (image - self.mean) / self.std
        x = self.last(self.stages(self.stem(x)))
        x = self.pool(x).flatten(start_dim=1)
        return self.fc2(self.dropout(self.act(self.fc1(x))))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return MobileNet()


def build_float16():
    """The same in float16, but for the BatchNorms."""
    return ms.amp.auto_mixed_precision(MobileNet(), "O2", ms.float16)
