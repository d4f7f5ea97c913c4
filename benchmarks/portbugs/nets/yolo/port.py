"""The small detector in MindSpore: the correct port."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ANCHORS = (((5, 7), (8, 15), (16, 11)), ((15, 30), (31, 22), (30, 60)))


class Conv(nn.Cell):
    """Convolution, normalisation, SiLU."""

    def __init__(self, inputs, outputs, kernel=1, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, pad_mode="pad", padding=kernel // 2)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.97)
        self.act = nn.SiLU()

    def construct(self, x):
        return self.act(self.bn(self.conv(x)))


class Focus(nn.Cell):
    """Every second pixel of the image in a channel of its own."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv = Conv(4 * inputs, outputs, 3)

    def construct(self, x):
        parts = (x[..., ::2, ::2], x[..., 1::2, ::2], x[..., ::2, 1::2], x[..., 1::2, 1::2])
        return self.conv(ops.cat(parts, 1))


class Bottleneck(nn.Cell):
    """1x1 and 3x3, with a shortcut if asked for."""

    def __init__(self, channels, shortcut):
        super().__init__()
        self.cv1 = Conv(channels, channels)
        self.cv2 = Conv(channels, channels, 3)
        self.add = shortcut

    def construct(self, x):
        out = self.cv2(self.cv1(x))
        return x + out if self.add else out


class C3(nn.Cell):
    """Half of the channels go through the bottleneck, the other half around it."""

    def __init__(self, inputs, outputs, shortcut=True):
        super().__init__()
        half = outputs // 2
        self.cv1 = Conv(inputs, half)
        self.cv2 = Conv(inputs, half)
        self.cv3 = Conv(outputs, outputs)
        self.m = nn.SequentialCell(Bottleneck(half, shortcut))

    def construct(self, x):
        return self.cv3(ops.cat((self.m(self.cv1(x)), self.cv2(x)), 1))


class SPP(nn.Cell):
    """The features and their maxima over larger and larger windows."""

    def __init__(self, inputs, outputs):
        super().__init__()
        half = inputs // 2
        self.cv1 = Conv(inputs, half)
        self.cv2 = Conv(4 * half, outputs)
        self.m = nn.CellList([nn.MaxPool2d(kernel, 1, pad_mode="pad", padding=kernel // 2) for kernel in (3, 5, 7)])

    def construct(self, x):
        x = self.cv1(x)
        pooled = [x]
        for pool in self.m:
            pooled.append(pool(x))
        return self.cv2(ops.cat(pooled, 1))


class Detect(nn.Cell):
    """Boxes in pixels, objectness and classes of each anchor on two grids."""

    def __init__(self, classes, channels, strides):
        super().__init__()
        self.anchors = Tensor(np.array(ANCHORS, np.float32))
        self.strides = strides
        self.no = classes + 5
        self.m = nn.CellList([nn.Conv2d(width, 3 * self.no, 1, has_bias=True) for width in channels])

    def grid(self, high, wide):
        """The column and the row of every place."""
        rows, columns = ops.meshgrid(ops.arange(high), ops.arange(wide), indexing="ij")
        return ops.stack((columns, rows), 2).reshape(1, 1, high, wide, 2).astype(ms.float32)

    def construct(self, features):
        raw, boxes = [], []
        for level, feature in enumerate(features):
            x = self.m[level](feature)
            batch, _, high, wide = x.shape
            x = x.reshape(batch, 3, self.no, high, wide).transpose(0, 1, 3, 4, 2)
            raw.append(x)
            y = ops.sigmoid(x)
            xy = (y[..., 0:2] * 2.0 - 0.5 + self.grid(high, wide)) * self.strides[level]
            wh = (y[..., 2:4] * 2.0) ** 2 * self.anchors[level].reshape(1, 3, 1, 1, 2)
            boxes.append(ops.cat((xy, wh, y[..., 4:]), -1).reshape(batch, -1, self.no))
        return ops.cat(boxes, 1), raw


class Yolo(nn.Cell):
    """Backbone, a neck that goes up and down once, and the detector."""

    def __init__(self, classes=4, width=16):
        super().__init__()
        self.focus = Focus(3, width)
        self.conv1 = Conv(width, 2 * width, 3, 2)
        self.csp1 = C3(2 * width, 2 * width)
        self.conv2 = Conv(2 * width, 3 * width, 3, 2)
        self.spp = SPP(3 * width, 3 * width)
        self.lateral = Conv(3 * width, 2 * width)
        self.upsample = nn.Upsample(scale_factor=2.0, mode="nearest", recompute_scale_factor=True)
        self.csp2 = C3(4 * width, 2 * width, shortcut=False)
        self.conv3 = Conv(2 * width, 2 * width, 3, 2)
        self.csp3 = C3(4 * width, 3 * width, shortcut=False)
        self.detect = Detect(classes, (2 * width, 3 * width), (4, 8))

    def construct(self, image):
        fine = self.csp1(self.conv1(self.focus(image)))
        top = self.lateral(self.spp(self.conv2(fine)))
        middle = self.csp2(ops.cat((self.upsample(top), fine), 1))
        coarse = self.csp3(ops.cat((self.conv3(middle), top), 1))
        return self.detect([middle, coarse])


def build():
    """The net alone: weights and inputs come from the reference's dump."""
    return Yolo()


def build_float16():
    """The same in float16, but for the BatchNorms."""
    return ms.amp.auto_mixed_precision(Yolo(), "O2", ms.float16)
