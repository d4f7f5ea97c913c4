"""The U-Net in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
from mindspore import nn, ops


class ReflectConv2d(nn.Conv2d):
    """A convolution that reflects the image at its border; nn.Conv2d knows zeros only."""

    def __init__(self, inputs: int, outputs: int, kernel: int):
        super().__init__(inputs, outputs, kernel, pad_mode="valid")
        self.border = nn.ReflectionPad2d(kernel // 2)

    def construct(self, x):
        return super().construct(self.border(x))


class Double(nn.Cell):
    """Two 3x3 convolutions, each with normalisation and a leaky ReLU; the first reflects at the border."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv1 = ReflectConv2d(inputs, outputs, 3)
        self.norm1 = nn.GroupNorm(4, outputs, eps=1e-6)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, pad_mode="pad", padding=1)
        self.norm2 = nn.GroupNorm(4, outputs, eps=1e-6)
        self.act = nn.LeakyReLU(alpha=0.1)

    def construct(self, x):
        x = self.act(self.norm1(self.conv1(x)))
        return self.act(self.norm2(self.conv2(x)))


class Gate(nn.Cell):
    """Weighs the skip connection, place by place, by what the coarser level knows."""

    def __init__(self, channels: int):
        super().__init__()
        self.skip = nn.Conv2d(channels, channels // 2, 1, has_bias=True)
        self.signal = nn.Conv2d(channels, channels // 2, 1, has_bias=True)
        self.relu = nn.ReLU()
        self.psi = nn.Conv2d(channels // 2, 1, 1, has_bias=True)

    def construct(self, skip, signal):
        weight = ops.sigmoid(self.psi(self.relu(self.skip(skip) + self.signal(signal))))
        return skip * weight


class UNet(nn.Cell):
    """Two levels; class probabilities and, from the coarser level, a second opinion of the same size."""

    def __init__(self, classes: int = 4, width: int = 16):
        super().__init__()
        self.down1 = Double(3, width)
        self.shrink1 = nn.Conv2d(width, width, 3, stride=2, pad_mode="pad", padding=1, has_bias=True)
        self.down2 = Double(width, 2 * width)
        self.shrink2 = nn.MaxPool2d(2, stride=2)
        self.middle = Double(2 * width, 4 * width)
        # torch's padding=1, output_padding=1: cut one row at the top and none at the bottom
        self.up2 = nn.Conv2dTranspose(
            4 * width, 2 * width, 3, stride=2, pad_mode="pad", padding=(1, 0, 1, 0), has_bias=True
        )
        self.gate2 = Gate(2 * width)
        self.join2 = Double(4 * width, 2 * width)
        self.up1 = nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True, recompute_scale_factor=True)
        self.narrow1 = nn.Conv2d(2 * width, width, 1, has_bias=True)
        self.join1 = Double(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1, has_bias=True)
        self.side = nn.Conv2d(2 * width, classes, 1, has_bias=True)
        self.softmax = nn.Softmax(axis=1)

    def construct(self, x):
        fine = self.down1(x)
        coarse = self.down2(self.shrink1(fine))
        x = self.up2(self.middle(self.shrink2(coarse)))
        x = self.join2(ops.cat([self.gate2(coarse, x), x], axis=1))
        side = self.side(x)
        x = self.join1(ops.cat([fine, self.narrow1(self.up1(x))], axis=1))
        side = ops.interpolate(side, scale_factor=2.0, mode="nearest", recompute_scale_factor=True)
        return {"mask": self.softmax(self.head(x)), "side": side}


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return UNet()


def build_float16():
    """Every layer computes in float16."""
    return UNet().to_float(ms.float16)
