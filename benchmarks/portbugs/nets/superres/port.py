"""The super-resolution net in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

MEAN = (0.4488, 0.4371, 0.4040)


def conv3(inputs, outputs, group=1):
    """A 3x3 convolution that keeps the size."""
    return nn.Conv2d(inputs, outputs, 3, pad_mode="pad", padding=1, group=group, has_bias=True)


def channel_shuffle(x, groups):
    """Channels of different groups side by side."""
    batch, channels, high, wide = x.shape
    x = x.reshape(batch, groups, channels // groups, high, wide)
    return x.swapaxes(1, 2).reshape(batch, channels, high, wide)


class ContrastGate(nn.Cell):
    """Weighs the channels by mean plus standard deviation."""

    def __init__(self, channels, squeezed):
        super().__init__()
        self.narrow = nn.Conv2d(channels, squeezed, 1, has_bias=True)
        self.widen = nn.Conv2d(squeezed, channels, 1, has_bias=True)

    def construct(self, x):
        contrast = ops.std(x, (2, 3), ddof=1, keepdims=True) + x.mean((2, 3), keep_dims=True)
        return x * ops.sigmoid(self.widen(ops.relu(self.narrow(contrast))))


class Unit(nn.Cell):
    """Half of the channels pass by; the other half is convolved in groups; the sum is scaled down."""

    def __init__(self, channels):
        super().__init__()
        half = channels // 2
        self.grouped = conv3(half, half, group=4)
        self.prelu = nn.PReLU(half)
        self.mixed = conv3(half, half)
        self.gate = ContrastGate(channels, 8)

    def construct(self, x):
        kept, worked = ops.chunk(x, 2, axis=1)
        worked = self.mixed(channel_shuffle(self.prelu(self.grouped(worked)), 4))
        return x + 0.2 * self.gate(ops.cat((kept, worked), axis=1))


class Upscale(nn.Cell):
    """Four times the channels, then twice the size."""

    def __init__(self, channels):
        super().__init__()
        self.conv = conv3(channels, 4 * channels)
        self.shuffle = nn.PixelShuffle(2)
        self.act = nn.LeakyReLU(0.2)

    def construct(self, x):
        return self.act(self.shuffle(self.conv(x)))


class ReplicateConv2d(nn.Conv2d):
    """A convolution that repeats the edge of the image; nn.Conv2d knows zeros only."""

    def __init__(self, inputs, outputs, kernel):
        super().__init__(inputs, outputs, kernel, pad_mode="valid", has_bias=True)
        self.width = kernel // 2

    def construct(self, x):
        edge = (self.width, self.width, self.width, self.width)
        return super().construct(ops.pad(x, edge, mode="replicate"))


class SuperResolution(nn.Cell):
    """An image from 0 to 1 in, one of twice the size out."""

    def __init__(self, width=48, depth=3):
        super().__init__()
        self.mean = Tensor(np.array(MEAN, np.float32).reshape(1, 3, 1, 1))
        self.head = conv3(3, width)
        self.body = nn.SequentialCell([Unit(width) for _ in range(depth)])
        self.after = nn.Conv2d(width, width, 1, has_bias=True)
        self.upscale = Upscale(width)
        self.tail = ReplicateConv2d(width, 3, 5)

    def construct(self, image):
        x = image - self.mean
        start = self.head(x)
        x = self.upscale(self.after(self.body(start)) + start)
        size = (2 * image.shape[2], 2 * image.shape[3])
        easy = ops.interpolate(image, size=size, mode="bilinear", align_corners=False)
        return (self.tail(x) + self.mean + easy).clamp(0.0, 1.0)


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return SuperResolution()


def build_float16():
    """Everything in float16."""
    return ms.amp.auto_mixed_precision(SuperResolution(), "O3", ms.float16)
