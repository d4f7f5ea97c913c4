"""The small U-Net in MindSpore with one mistake: the leaky ReLU has its default slope.

The reference has 0.1. torch's default would be 0.01, MindSpore's is 0.2: negative values come out doubled.
"""

from __future__ import annotations

from mindspore import nn, ops


class Double(nn.Cell):
    """Two 3x3 convolutions, each with batch normalisation and a leaky ReLU."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, pad_mode="pad", padding=1)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, pad_mode="pad", padding=1)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.act = nn.LeakyReLU()  # planted: alpha=0.1

    def construct(self, x):
        x = self.act(self.bn1(self.conv1(x)))
        return self.act(self.bn2(self.conv2(x)))


class UNet(nn.Cell):
    """Two steps down, two steps up, and a skip connection on each level; the mask comes out at twice the size."""

    def __init__(self, classes: int = 3, width: int = 8):
        super().__init__()
        self.down1 = Double(3, width)
        self.down2 = Double(width, 2 * width)
        self.middle = Double(2 * width, 4 * width)
        self.pool = nn.MaxPool2d(2, stride=2)
        # torch's padding=1, output_padding=1: cut one row at the top and none at the bottom
        self.up2 = nn.Conv2dTranspose(
            4 * width, 2 * width, 3, stride=2, pad_mode="pad", padding=(1, 0, 1, 0), has_bias=True
        )
        self.join2 = Double(4 * width, 2 * width)
        self.up1 = nn.Conv2dTranspose(2 * width, width, 2, stride=2, pad_mode="valid", has_bias=True)
        self.join1 = Double(2 * width, width)
        self.head = nn.Conv2d(width, classes, 1, has_bias=True)
        self.enlarge = nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=True, recompute_scale_factor=True)

    def construct(self, x):
        fine = self.down1(x)
        coarse = self.down2(self.pool(fine))
        x = self.middle(self.pool(coarse))
        x = self.join2(ops.cat([coarse, self.up2(x)], axis=1))
        x = self.join1(ops.cat([fine, self.up1(x)], axis=1))
        return self.enlarge(self.head(x))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return UNet()
