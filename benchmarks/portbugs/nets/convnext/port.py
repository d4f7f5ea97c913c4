"""The small ConvNeXt in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
from mindspore import Parameter, nn, ops


class LayerNorm2d(nn.LayerNorm):
    """Layer normalisation over the channels of an image."""

    def __init__(self, channels):
        super().__init__((channels,), epsilon=1e-6)

    def construct(self, x):
        y = super().construct(x.transpose(0, 2, 3, 1))
        return y.transpose(0, 3, 1, 2)


class ResponseNorm(nn.Cell):
    """Global response normalisation: channels compete by their norm over the image. Channels last."""

    def __init__(self, channels):
        super().__init__()
        self.gamma = Parameter(ops.zeros((1, 1, 1, channels), ms.float32))
        self.beta = Parameter(ops.zeros((1, 1, 1, channels), ms.float32))

    def construct(self, x):
        norm = ops.sqrt((x * x).sum((1, 2), keepdims=True))
        share = norm / (norm.mean(-1, keep_dims=True) + 1e-6)
        return self.gamma * (x * share) + self.beta + x


class Block(nn.Cell):
    """Depthwise convolution, then a two-layer net on the channels of each place."""

    def __init__(self, channels, respond):
        super().__init__()
        self.dwconv = nn.Conv2d(channels, channels, 7, pad_mode="pad", padding=3, group=channels, has_bias=True)
        self.norm = nn.LayerNorm((channels,), epsilon=1e-6)
        self.pwconv1 = nn.Dense(channels, 4 * channels)
        self.act = nn.GELU(approximate=False)
        self.grn = ResponseNorm(4 * channels) if respond else nn.Identity()
        self.pwconv2 = nn.Dense(4 * channels, channels)
        self.gamma = Parameter(ops.full((channels,), 1e-6, dtype=ms.float32))

    def construct(self, x):
        shortcut = x
        x = self.dwconv(x).transpose(0, 2, 3, 1)
        x = self.pwconv2(self.grn(self.act(self.pwconv1(self.norm(x)))))
        x = (self.gamma * x).transpose(0, 3, 1, 2)
        return shortcut + x


class ConvNeXt(nn.Cell):
    """Patches, three stages with a halving of the image before the second and the third, and the classifier."""

    def __init__(self, dims=(16, 32, 64), depths=(2, 1, 1), num_classes=10):
        super().__init__()
        stem = nn.SequentialCell(nn.Conv2d(3, dims[0], 4, 4, pad_mode="valid", has_bias=True), LayerNorm2d(dims[0]))
        halvings = [
            nn.SequentialCell(LayerNorm2d(before), nn.Conv2d(before, after, 2, 2, pad_mode="valid", has_bias=True))
            for before, after in zip(dims, dims[1:])
        ]
        self.downsample_layers = nn.CellList([stem, *halvings])
        self.stages = nn.CellList(
            [
                nn.SequentialCell([Block(width, respond=width == dims[-1]) for _ in range(depth)])
                for width, depth in zip(dims, depths)
            ]
        )
        self.norm = nn.LayerNorm((dims[-1],), epsilon=1e-6)
        self.head = nn.Dense(dims[-1], num_classes)

    def construct(self, x):
        for downsample, stage in zip(self.downsample_layers, self.stages):
            x = stage(downsample(x))
        return self.head(self.norm(x.mean((-2, -1))))


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return ConvNeXt()


def build_float16():
    """The same in float16, but for the layer normalisations."""
    return ms.amp.auto_mixed_precision(ConvNeXt(), "O2", ms.float16)
